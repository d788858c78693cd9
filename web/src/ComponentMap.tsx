import { number, signed } from './format';
import { tint } from './TokenStrip';
import type { Trace } from './types';

interface Props {
  trace: Trace;
  through: string | null;
  onThrough: (component: string | null) => void;
}

// One stop for Tab; the arrow keys walk over the cells.
const walk = (columns: number) => (event: KeyboardEvent & { currentTarget: HTMLElement }) => {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
  const cells = [...event.currentTarget.querySelectorAll('button')];
  const next = cells[cells.indexOf(document.activeElement as HTMLButtonElement) + (step ?? 0)];
  if (!step || !next) return;
  event.preventDefault();
  next.focus();
};

// Every head and MLP at a glance: all the credit that reached it, direct and indirect.
export function ComponentMap({ trace, through, onThrough }: Props) {
  const { layers, heads } = trace.model;
  const total = (name: string) => (trace.node_credit[name] ?? []).reduce((sum, x) => sum + x, 0);
  const names = Array.from({ length: layers }, (_, layer) => [...Array.from({ length: heads }, (__, head) => `A${layer}.H${head}`), `MLP${layer}`]);
  const largest = Math.max(1e-30, ...names.flat().map((name) => Math.abs(total(name))));
  return (
    <section class="card" aria-label="Credit of every component">
      <h2 class="title">Components <span class="muted">credit that reached each; click to see its paths</span></h2>
      <div class="map" onKeyDown={walk(heads + 1)} style={{ gridTemplateColumns: `auto repeat(${heads}, minmax(14px, 1fr)) minmax(30px, 1.6fr)` }}>
        <span />
        {Array.from({ length: heads }, (_, head) => <span key={head} class="axis">{heads > 16 && head % 4 ? '' : `H${head}`}</span>)}
        <span class="axis">MLP</span>
        {names.map((row, layer) => ({ row, layer })).reverse().map(({ row, layer }) => [
          <span key={`axis${layer}`} class="axis left">L{layer}</span>,
          ...row.map((name) => (
            <button
              key={name}
              type="button"
              tabIndex={name === (through ?? `A${layers - 1}.H0`) ? 0 : -1}
              aria-label={`${name} ${number(total(name))}`}
              aria-pressed={through === name}
              title={`${name}: credit ${signed(total(name))}, direct ${signed(trace.importance[name] ?? 0)}`}
              style={{ background: tint(total(name) / largest) }}
              onClick={() => onThrough(through === name ? null : name)}
            />
          )),
        ])}
      </div>
    </section>
  );
}
