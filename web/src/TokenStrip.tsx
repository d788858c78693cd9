import { number, percent, signed, tokenText } from './format';
import type { Hover } from './paths';
import type { Token } from './types';

interface Props {
  tokens: Token[];
  credit: number[];
  percents: number[];
  raw: boolean;
  from: number | null;
  lit: Set<number> | null; // positions that the hovered paths start at
  label: string;
  onHover?: (hover: Hover) => void;
  onFrom?: (position: number | null) => void;
}

// Signed colour: the sign is in the number too, so that colour never stands alone.
export const tint = (share: number): string =>
  `color-mix(in srgb, var(${share < 0 ? '--negative' : '--positive'}) ${Math.round(72 * Math.sqrt(Math.min(1, Math.abs(share))))}%, var(--card))`;

export function TokenStrip({ tokens, credit, percents, raw, from, lit, label, onHover, onFrom }: Props) {
  const largest = Math.max(1e-30, ...credit.map(Math.abs));
  return (
    <div class="strip" role="group" aria-label={label}>
      {tokens.map((token) => {
        const share = (credit[token.position] ?? 0) / largest;
        const text = raw ? number(credit[token.position] ?? 0, 2) : percent(percents[token.position] ?? 0);
        return (
          <button
            key={token.position}
            type="button"
            class={`token ${lit && !lit.has(token.position) ? 'dim' : ''}`}
            aria-pressed={from === token.position}
            style={{ background: tint(share) }}
            title={`position ${token.position}: ${signed(credit[token.position] ?? 0)} (${percent(percents[token.position] ?? 0)}); click to show only paths from here`}
            onMouseEnter={() => onHover?.({ token: token.position })}
            onMouseLeave={() => onHover?.(null)}
            onFocus={() => onHover?.({ token: token.position })}
            onBlur={() => onHover?.(null)}
            onClick={() => onFrom?.(from === token.position ? null : token.position)}
          >
            <span class="word">{tokenText(token.text)}</span>
            <span class="credit">{text}</span>
          </button>
        );
      })}
    </div>
  );
}
