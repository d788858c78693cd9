import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { useAsk } from './ask';
import type { Exports } from './exports';
import { clipped, probability, tokenText } from './format';
import { gridFigure } from './grid_figure';
import { Term } from './Help';
import { promptBody, targetBody, type View } from './state';
import { Status } from './Status';
import type { LensAnswer, Trace } from './types';
import { walk } from './walk';

interface Props {
  trace: Trace;
  view: View;
  stale: boolean;
  exports: { current: Exports | null };
  onChange: (change: Partial<View>, step?: boolean) => void;
}

// What the model would say if it stopped at a layer, at every position.
export function Layers({ trace, view, stale, exports, onChange }: Props) {
  const [of, setOf] = useState<'top' | 'target'>('top');
  const { versus: _, versus_ids: __, raw_logit: ___, ...target } = targetBody(view);
  const ask = useAsk<LensAnswer>(stale ? null : 'lens', {
    ...promptBody(view),
    ...target,
    ...('target' in target || 'target_ids' in target ? {} : { target_ids: trace.target.ids }),
  });
  const lens = ask.data;
  // Where there is not room for all positions, the one that is asked about is in view.
  const frame = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const cell = frame.current?.querySelector<HTMLElement>('button[tabindex="0"]')?.parentElement;
    if (frame.current && cell)
      frame.current.scrollLeft = cell.offsetLeft + cell.offsetWidth - frame.current.clientWidth + 2;
  }, [lens === null, trace.target.position]);
  const names = lens
    ? lens.layers.map((_, layer) => (layer === lens.layers.length - 1 ? 'output' : `L${layer}`))
    : [];
  const word = lens ? tokenText(lens.target.text) : '';
  exports.current = lens && {
    name: 'layers',
    figure: () =>
      gridFigure({
        title:
          of === 'top'
            ? 'Logit lens: the likeliest next token, layer by layer'
            : `Logit lens: probability of ${word}, layer by layer`,
        subtitle: `${trace.model.name}; ${clipped(view.prompt.replace(/\s+/g, ' '), 110)}`,
        columns: trace.tokens.slice(-60).map((token) => tokenText(token.text, token.bytes)),
        rows: lens.layers
          .map((cells, layer) => ({
            label: names[layer],
            cells: cells.slice(-60).map((cell) => ({
              text: of === 'top' ? tokenText(cell.text) : probability(cell.target),
              share: of === 'top' ? cell.probability : cell.target,
              plain: true,
            })),
          }))
          .reverse(),
        legend:
          'darker: more likely; the stream before each layer through the final norm and ' +
          'unembedding' +
          (lens.layers[0].length > 60 ? '; the last 60 positions' : ''),
      }),
    rows: () => [
      ['layer', 'position', 'token', 'top', 'probability', 'probability_of_target'],
      ...lens.layers.flatMap((cells, layer) =>
        cells.map((cell, position) => [
          names[layer],
          position,
          trace.tokens[position].text,
          cell.text,
          cell.probability,
          cell.target,
        ]),
      ),
    ],
    data: () => lens,
  };
  return (
    <section class={`card ${ask.stale || stale ? 'stale' : ''}`} aria-label="Layers">
      <div class="row spread">
        <h2 class="title">
          Layers <span class="muted">what the model would say if it stopped there</span>{' '}
          <Term of="lens" />
        </h2>
        <div class="segmented" role="group" aria-label="What is shown">
          <button type="button" aria-pressed={of === 'top'} onClick={() => setOf('top')}>
            likeliest token
          </button>
          <button type="button" aria-pressed={of === 'target'} onClick={() => setOf('target')}>
            probability of {word || 'the target'}
          </button>
        </div>
      </div>
      <Status ask={ask} what="Reading every layer" />
      {lens && (
        <div class="scroll" ref={frame}>
          <table class="lens" onKeyDown={walk(trace.tokens.length)}>
            <thead>
              <tr>
                <th scope="col" />
                {trace.tokens.map((token) => (
                  <th key={token.position} scope="col" title={`position ${token.position}`}>
                    {clipped(tokenText(token.text, token.bytes), 12)}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {lens.layers
                .map((cells, layer) => ({ cells, layer }))
                .reverse()
                .map(({ cells, layer }) => (
                  <tr key={layer}>
                    <th scope="row">{names[layer]}</th>
                    {cells.map((cell, position) => {
                      const strength = of === 'top' ? cell.probability : cell.target;
                      return (
                        <td
                          key={position}
                          class={cell.id === lens.target.id ? 'is-target' : ''}
                          onClick={() =>
                            onChange(
                              {
                                position,
                                target: { id: cell.id },
                                versus: null,
                                trail: [],
                                selected: null,
                                tab: 'why',
                              },
                              true,
                            )
                          }
                        >
                          <button
                            type="button"
                            tabIndex={
                              layer === lens.layers.length - 1 && position === trace.target.position
                                ? 0
                                : -1
                            }
                            style={{
                              background:
                                'color-mix(in srgb, var(--positive-fill) ' +
                                `${Math.round(72 * strength)}%, var(--card))`,
                            }}
                            title={
                              `${names[layer]}, after ` +
                              `${tokenText(trace.tokens[position]?.text ?? '')}: ` +
                              `${tokenText(cell.text)} ${probability(cell.probability)}; ` +
                              `${word} ${probability(cell.target)}; click: ask why here`
                            }
                          >
                            {of === 'top'
                              ? clipped(tokenText(cell.text), 10)
                              : probability(cell.target)}
                          </button>
                        </td>
                      );
                    })}
                  </tr>
                ))}
            </tbody>
          </table>
        </div>
      )}
      <p class="small muted">
        Outlined: {word || 'the target'} is the likeliest. Click a cell to ask why that token,
        there; arrow keys walk from cell to cell.
      </p>
    </section>
  );
}
