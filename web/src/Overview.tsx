import type { Body } from './api';
import { number, probability, signed, tokenText } from './format';
import { Term } from './Help';
import { edgeText, type Edge } from './routes';
import { TestIt } from './TestIt';
import { tint } from './tint';
import type { Trace } from './types';
import { walk } from './walk';

interface Props {
  trace: Trace;
  edge: Edge | null;
  body: Body;
  other: string;
  onSelect: (node: string) => void;
  onOther: () => void;
}

// Where nothing is selected: the predictions, and every component at a glance.
export function Overview({ trace, edge, body, other, onSelect, onOther }: Props) {
  return (
    <>
      {edge ? (
        <section class="card" aria-label={`Inspector: ${edgeText(edge)}`}>
          <h2 class="title">
            An edge <span class="muted">{signed(edge.credit)} over the shown routes</span>{' '}
            <Term of="test" />
          </h2>
          <TestIt
            suspect={{ edge }}
            body={body}
            target={trace.target}
            credit={trace.root === 'target' ? edge.credit : null}
            other={other}
            onOther={onOther}
          />
        </section>
      ) : (
        <section class="card" aria-label="Next token">
          <h2 class="title">
            Next token <Term of="prediction" />
          </h2>
          <ol class="bars">
            {trace.predictions.slice(0, 6).map((prediction) => {
              const role = trace.target.ids.includes(prediction.id)
                ? 'target'
                : trace.target.versus_ids?.length === 1 &&
                    trace.target.versus_ids[0] === prediction.id
                  ? 'contrast'
                  : '';
              return (
                <li key={prediction.id} class={`bar ${role}`}>
                  <span
                    class="fill"
                    style={{
                      width:
                        (100 * prediction.probability) / (trace.predictions[0]?.probability || 1) +
                        '%',
                    }}
                  />
                  <span class="text">{tokenText(prediction.text)}</span>
                  <span class="tag">{role}</span>
                  <span class="value">{probability(prediction.probability)}</span>
                </li>
              );
            })}
          </ol>
        </section>
      )}
      <ComponentMap trace={trace} onSelect={onSelect} />
    </>
  );
}

function ComponentMap({ trace, onSelect }: { trace: Trace; onSelect: (node: string) => void }) {
  const { layers, heads } = trace.model;
  const total = (name: string) => (trace.node_credit[name] ?? []).reduce((sum, x) => sum + x, 0);
  // The position where it matters most.
  const node = (name: string) => {
    const values = trace.node_credit[name] ?? [];
    const best = values.reduce(
      (most, x, i) => (Math.abs(x) > Math.abs(values[most]) ? i : most),
      0,
    );
    return `${name}@${Math.abs(values[best] ?? 0) > 0 ? best : trace.target.position}`;
  };
  const names = Array.from({ length: layers }, (_, layer) => [
    ...Array.from({ length: heads }, (__, head) => `A${layer}.H${head}`),
    `MLP${layer}`,
  ]);
  const largest = Math.max(1e-30, ...names.flat().map((name) => Math.abs(total(name))));
  return (
    <section class="card" aria-label="Credit of every component">
      <h2 class="title">
        Components <span class="muted">credit that reached each; click to look closer</span>{' '}
        <Term of="credit" />
      </h2>
      <div
        class="map"
        onKeyDown={walk(heads + 1)}
        style={{
          gridTemplateColumns: `auto repeat(${heads}, minmax(14px, 1fr)) minmax(30px, 1.6fr)`,
        }}
      >
        <span />
        {Array.from({ length: heads }, (_, head) => (
          <span key={head} class="axis-label">
            {heads > 16 && head % 4 ? '' : `H${head}`}
          </span>
        ))}
        <span class="axis-label">MLP</span>
        {names
          .map((row, layer) => ({ row, layer }))
          .reverse()
          .map(({ row, layer }) => [
            <span key={`axis${layer}`} class="axis-label left">
              L{layer}
            </span>,
            ...row.map((name) => (
              <button
                key={name}
                type="button"
                data-component={name}
                tabIndex={name === `A${layers - 1}.H0` ? 0 : -1}
                aria-label={`${name} ${number(total(name))}`}
                title={
                  `${name}: credit ${signed(total(name))}, direct ` +
                  `${signed(trace.importance[name] ?? 0)}`
                }
                style={{ background: tint(total(name) / largest) }}
                onClick={() => onSelect(node(name))}
              />
            )),
          ])}
      </div>
    </section>
  );
}
