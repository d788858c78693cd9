// Small charts that several panels share.
import { clipped, number, signed, tokenText } from './format';
import type { Token, TokenEffect } from './types';

export function Meter({ size, kind, text }: { size: number; kind: string; text: string }) {
  return (
    <span class={`gauge ${kind}`}>
      <span class="meter">
        <span style={{ width: `${100 * Math.min(1, size)}%` }} />
      </span>
      <span class="value">{text}</span>
    </span>
  );
}

export const sign = (x: number): string => (x < 0 ? 'negative' : 'positive');

export function SignedMeter({ value, largest }: { value: number; largest: number }) {
  return (
    <span class={`signed-meter ${sign(value)}`}>
      <span
        style={{
          width: `${(50 * Math.abs(value)) / Math.max(1e-30, largest)}%`,
          [value < 0 ? 'right' : 'left']: '50%',
        }}
      />
    </span>
  );
}

export function Effects({ title, list }: { title: string; list: TokenEffect[] }) {
  const largest = Math.max(1e-30, ...list.map((effect) => Math.abs(effect.logit)));
  return (
    <div>
      <h4>{title}</h4>
      {list.length === 0 && <p class="muted small">nothing</p>}
      <ol class="ranked">
        {list.map((effect) => (
          <li key={effect.id}>
            <span class="word">{tokenText(effect.text)}</span>
            <Meter
              size={Math.abs(effect.logit) / largest}
              kind={sign(effect.logit)}
              text={signed(effect.logit)}
            />
          </li>
        ))}
      </ol>
    </div>
  );
}

// An attention pattern: row = the token that looks, column = where it looks.
export function drawPattern(
  canvas: HTMLCanvasElement,
  pattern: number[][],
  side: number,
  dark: boolean,
): void {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  const n = pattern.length;
  const pixels = Math.round(side * ratio);
  canvas.width = canvas.height = pixels;
  canvas.style.width = canvas.style.height = `${side}px`;
  const context = canvas.getContext('2d');
  if (!context) return;
  const picture = context.createImageData(pixels, pixels);
  const ground = dark ? [25, 33, 42] : [255, 255, 255],
    empty = dark ? [34, 43, 53] : [244, 246, 248],
    ink = dark ? [120, 196, 255] : [8, 84, 144];
  for (let y = 0; y < pixels; ++y) {
    const q0 = Math.floor((y * n) / pixels),
      q1 = Math.max(q0, Math.ceil(((y + 1) * n) / pixels) - 1);
    for (let x = 0; x < pixels; ++x) {
      const s0 = Math.floor((x * n) / pixels),
        s1 = Math.max(s0, Math.ceil(((x + 1) * n) / pixels) - 1);
      // More tokens than pixels: the largest weight under the pixel, so that none vanishes.
      let weight = -1;
      for (let q = q0; q <= Math.min(q1, n - 1); ++q)
        for (let s = s0; s <= s1; ++s) weight = Math.max(weight, pattern[q][s] ?? -1);
      const strength = weight < 0 ? 0 : Math.sqrt(weight);
      const base = weight < 0 ? empty : ground;
      const at = 4 * (y * pixels + x);
      for (let c = 0; c < 3; ++c) picture.data[at + c] = base[c] + (ink[c] - base[c]) * strength;
      picture.data[at + 3] = 255;
    }
  }
  context.putImageData(picture, 0, 0);
}

interface PatternProps {
  pattern: number[][];
  tokens: Token[];
  side: number;
  dark: boolean;
  label: string;
  onPoint?: (text: string | null) => void;
}

export function Pattern({ pattern, tokens, side, dark, label, onPoint }: PatternProps) {
  return (
    <canvas
      class="pattern"
      role="img"
      aria-label={label}
      ref={(canvas) => {
        if (canvas) drawPattern(canvas, pattern, side, dark);
      }}
      onMouseMove={(event) => {
        const n = pattern.length;
        const q = Math.min(n - 1, Math.floor((event.offsetY * n) / side)),
          s = Math.min(n - 1, Math.floor((event.offsetX * n) / side));
        const weight = pattern[q]?.[s];
        onPoint?.(
          weight === undefined
            ? null
            : `${tokenText(tokens[q]?.text ?? '')} (${q}) looks ` +
                `${Math.round(1000 * weight) / 10}% at ${tokenText(tokens[s]?.text ?? '')} (${s})`,
        );
      }}
      onMouseLeave={() => onPoint?.(null)}
    />
  );
}

export const LEGIBLE = 8; // px of a row: below that names would run into each other

// The same with its tokens at both sides, where there is room for their names; `row`: the one that
// is asked about.
export function LabelledPattern({ row, ...rest }: PatternProps & { row: number }) {
  const each = rest.side / rest.pattern.length;
  if (each < LEGIBLE) return <Pattern {...rest} />;
  const names = rest.tokens.map((token) => clipped(tokenText(token.text, token.bytes), 12));
  const size = `${Math.min(11, each - 1)}px`;
  return (
    <div class="labelled" style={{ fontSize: size }}>
      <div class="columns" aria-hidden="true">
        {names.map((name, i) => (
          <span key={i} style={{ width: `${each}px` }}>
            {name}
          </span>
        ))}
      </div>
      <div class="rows" aria-hidden="true">
        {names.map((name, i) => (
          <span
            key={i}
            class={i === row ? 'asked' : ''}
            style={{ height: `${each}px`, lineHeight: `${each}px` }}
          >
            {name}
          </span>
        ))}
      </div>
      <Pattern {...rest} />
    </div>
  );
}

export const amount = (x: number): string => number(x);
