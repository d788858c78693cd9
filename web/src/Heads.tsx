import { useMemo, useState } from 'preact/hooks';
import { useAsk } from './ask';
import { LEGIBLE, LabelledPattern } from './charts';
import type { Exports } from './exports';
import { MUTED, POSITIVE, WHITE, mix, type Item } from './figure';
import { Heatmap } from './Heatmap';
import { clipped, signed, tokenText } from './format';
import { Term } from './Help';
import { promptBody, type View } from './state';
import { Status } from './Status';
import type { AttentionAnswer, Trace } from './types';

interface Props {
  trace: Trace;
  view: View;
  stale: boolean;
  dark: boolean;
  exports: { current: Exports | null };
  onChange: (change: Partial<View>, step?: boolean) => void;
}

const SIDE = 180; // px of a pattern
const FIRST = 12;

// Attention patterns of the heads that matter, the largest credit first.
export function Heads({ trace, view, stale, dark, exports, onChange }: Props) {
  const [most, setMost] = useState(FIRST);
  const [point, setPoint] = useState<string | null>(null);
  const [readers, setReaders] = useState(false);
  const ranked = useMemo(
    () =>
      Object.entries(trace.node_credit)
        .filter(([name]) => name.startsWith('A'))
        .map(([name, values]) => ({
          name,
          credit: values.reduce((sum, x) => sum + x, 0),
          position: values.reduce(
            (best, x, i) => (Math.abs(x) > Math.abs(values[best]) ? i : best),
            0,
          ),
        }))
        .sort((a, b) => Math.abs(b.credit) - Math.abs(a.credit)),
    [trace],
  );
  const wanted = ranked.slice(0, most);
  const ask = useAsk<AttentionAnswer>(stale || !wanted.length ? null : 'attention', {
    ...promptBody(view),
    heads: wanted.map((head) => head.name),
  });
  const credit = new Map(ranked.map((head) => [head.name, head]));
  const answer = ask.data;
  exports.current = answer && {
    name: 'heads',
    figure: () => {
      const named = trace.tokens.length <= 20; // rows high enough for their tokens
      const side = 170,
        gap = named ? 84 : 26,
        across = 4,
        edge = 24 + (named ? 58 : 0);
      const items: Item[] = [
        {
          kind: 'text',
          x: 24,
          y: 34,
          text: `Attention of the heads with most credit for ${tokenText(trace.target.text)}`,
          size: 18,
          bold: true,
        },
        {
          kind: 'text',
          x: 24,
          y: 54,
          text:
            `${trace.model.name}; ${clipped(view.prompt.replace(/\s+/g, ' '), 110)}; rows look ` +
            'at columns, first token top left; darker: more',
          size: 12,
          fill: MUTED,
        },
      ];
      answer.heads.slice(0, FIRST).forEach((head, i) => {
        const x = edge + (i % across) * (side + gap),
          y = 84 + Math.floor(i / across) * (side + 36);
        items.push({
          kind: 'text',
          x,
          y: y - 5,
          text: `${head.head}  ${signed(credit.get(head.head)?.credit ?? 0)}`,
          size: 12,
          bold: true,
        });
        const n = head.pattern.length,
          bins = Math.min(n, 48),
          cell = side / bins;
        for (let q = 0; q < bins; ++q) {
          for (let s = 0; s <= q; ++s) {
            // The largest weight of the tokens that fall together.
            let weight = 0;
            for (
              let a = Math.floor((q * n) / bins);
              a < Math.max(Math.floor((q * n) / bins) + 1, Math.floor(((q + 1) * n) / bins));
              ++a
            )
              for (
                let b = Math.floor((s * n) / bins);
                b < Math.max(Math.floor((s * n) / bins) + 1, Math.floor(((s + 1) * n) / bins));
                ++b
              )
                weight = Math.max(weight, head.pattern[a]?.[b] ?? 0);
            if (weight > 0.01)
              items.push({
                kind: 'rect',
                x: x + s * cell,
                y: y + q * cell,
                w: cell,
                h: cell,
                fill: mix(POSITIVE, WHITE, Math.sqrt(weight)),
              });
          }
        }
        if (named)
          trace.tokens.forEach((token, q) =>
            items.push({
              kind: 'text',
              x: x - 5,
              y: y + (q + 0.5) * cell + 3,
              text: clipped(tokenText(token.text, token.bytes), 12),
              size: 8,
              anchor: 'end',
              fill: MUTED,
            }),
          );
        items.push({ kind: 'rect', x, y, w: side, h: side, stroke: '#9aa5b1' });
      });
      const shownRows = Math.ceil(Math.min(FIRST, answer.heads.length) / across);
      return {
        title: 'Attention',
        width: Math.max(edge + across * (side + gap), 760),
        height: 84 + shownRows * (side + 36),
        items,
      };
    },
    rows: () => [
      ['head', 'credit', 'query', 'source', 'weight'],
      ...answer.heads.flatMap((head) =>
        head.pattern.flatMap((row, q) =>
          row.flatMap((weight, s) =>
            weight >= 0.001 ? [[head.head, credit.get(head.head)?.credit ?? 0, q, s, weight]] : [],
          ),
        ),
      ),
    ],
    data: () =>
      answer.heads.map((head) => ({ ...head, credit: credit.get(head.head)?.credit ?? 0 })),
  };
  return (
    <>
      <section class={`card ${stale ? 'stale' : ''}`} aria-label="Heads">
        <h2 class="title">
          Heads{' '}
          <span class="muted">
            where they look, the largest credit first; rows look at columns
          </span>{' '}
          <Term of="attention" />
        </h2>
        <Status ask={ask} what="Reading attention" />
        <p class="small muted" aria-live="polite">
          {point ?? 'Point at a cell; click a pattern to look closer at the head.'}
        </p>
        {answer && (
          <div
            class={
              `patterns ${trace.tokens.length * LEGIBLE <= SIDE ? 'named' : ''} ` +
              (ask.stale ? 'stale' : '')
            }
          >
            {answer.heads.map((head) => (
              <button
                key={head.head}
                type="button"
                data-head={head.head}
                onClick={() =>
                  onChange(
                    {
                      selected:
                        `${head.head}@` +
                        (credit.get(head.head)?.position ?? trace.target.position),
                      tab: 'why',
                    },
                    true,
                  )
                }
              >
                <LabelledPattern
                  row={credit.get(head.head)?.position ?? trace.target.position}
                  pattern={head.pattern}
                  tokens={trace.tokens}
                  side={SIDE}
                  dark={dark}
                  label={`Attention pattern of ${head.head}`}
                  onPoint={(text) => setPoint(text && `${head.head}: ${text}`)}
                />
                <span>
                  <b>{head.head}</b> {signed(credit.get(head.head)?.credit ?? 0)}
                </span>
              </button>
            ))}
          </div>
        )}
        {most < ranked.length && (
          <button type="button" class="link" onClick={() => setMost(most + FIRST)}>
            Show {Math.min(FIRST, ranked.length - most)} more of {ranked.length} heads
          </button>
        )}
      </section>
      <details class="card more-of" onToggle={(event) => setReaders(event.currentTarget.open)}>
        <summary>Who reads whom: interaction scores of every reader and writer</summary>
        {readers && !stale && <Heatmap body={promptBody(view)} tokens={trace.tokens} dark={dark} />}
      </details>
    </>
  );
}
