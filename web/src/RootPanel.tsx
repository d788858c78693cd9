import { useState } from 'preact/hooks';
import { number, percent, tokenText } from './format';
import { canReroot, parseNode } from './nodes';
import type { Trace } from './types';

interface Props {
  trace: Trace;
  onReroot: (node: string) => void;
}

const MOST = 8;

// What the root reads: where a head looks and which sources its credit goes to, and who wrote what it read.
export function RootPanel({ trace, onReroot }: Props) {
  const root = parseNode(trace.root);
  return (
    <section class="card" aria-label={`Root ${trace.root}`}>
      <h2 class="title">{trace.root} <span class="muted">{root.kind === 'head' ? 'attention and credit by source' : 'neurons with most credit'}</span></h2>
      {Array.isArray(trace.entries) ? <Sources trace={trace} /> : trace.entries ? <Neurons neurons={trace.entries.neurons} /> : null}
      <Incoming trace={trace} onReroot={onReroot} />
    </section>
  );
}

function Sources({ trace }: { trace: Trace }) {
  const entries = trace.entries as number[];
  const pattern = trace.pattern ?? [];
  const largest = Math.max(1e-30, ...entries.map(Math.abs));
  return (
    <table class="sources">
      <thead>
        <tr><th scope="col">source</th><th scope="col">attention</th><th scope="col">credit</th></tr>
      </thead>
      <tbody>
        {entries.map((share, position) => (
          <tr key={position}>
            <th scope="row">{tokenText(trace.tokens[position]?.text ?? '')}<span class="muted">@{position}</span></th>
            <td><Meter size={pattern[position] ?? 0} kind="plain" text={percent(100 * (pattern[position] ?? 0))} /></td>
            <td><Meter size={Math.abs(share) / largest} kind={share < 0 ? 'negative' : 'positive'} text={number(share)} /></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Meter({ size, kind, text }: { size: number; kind: string; text: string }) {
  return (
    <span class={`gauge ${kind}`}>
      <span class="meter"><span style={{ width: `${100 * Math.min(1, size)}%` }} /></span>
      <span class="value">{text}</span>
    </span>
  );
}

function Neurons({ neurons }: { neurons: { neuron: number; credit: number }[] }) {
  const largest = Math.max(1e-30, ...neurons.map((entry) => Math.abs(entry.credit)));
  return (
    <ul class="ranked two">
      {neurons.map((entry) => (
        <li key={entry.neuron}>
          <span class="name">neuron {entry.neuron}</span>
          <Meter size={Math.abs(entry.credit) / largest} kind={entry.credit < 0 ? 'negative' : 'positive'} text={number(entry.credit)} />
        </li>
      ))}
    </ul>
  );
}

interface Row {
  name: string;
  value: number;
}

function nodeRows(credits: Record<string, number[]>): Row[] {
  const rows = Object.entries(credits).flatMap(([component, values]) => values.map((value, position) => ({ name: `${component}@${position}`, value })));
  return rows.filter((row) => row.value !== 0).sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, MOST);
}

function Incoming({ trace, onReroot }: Props) {
  const [by, setBy] = useState<'node' | 'component'>('node');
  const branches = Object.keys(trace.incoming ?? {});
  const rows = (branch: string): Row[] =>
    by === 'node' ? nodeRows(trace.incoming?.[branch] ?? {}) : (trace.composition?.[branch] ?? []).slice(0, MOST).map((entry) => ({ name: entry.component, value: entry.mass }));
  const largest = Math.max(1e-30, ...branches.flatMap(rows).map((row) => Math.abs(row.value)));
  return (
    <>
      <div class="row spread">
        <h3>What it reads, by branch</h3>
        <div class="segmented" role="group" aria-label="Ranked by">
          <button type="button" aria-pressed={by === 'node'} onClick={() => setBy('node')}>credit of nodes</button>
          <button type="button" aria-pressed={by === 'component'} onClick={() => setBy('component')}>mass of components</button>
        </div>
      </div>
      <div class="branches">
        {branches.map((branch) => (
          <div key={branch}>
            <h4>{branch}</h4>
            <ol class="ranked">
              {rows(branch).map((row) => (
                <li key={row.name}>
                  {by === 'node' && canReroot(parseNode(row.name)) ? (
                    <button type="button" class="link name" title="reroot here" onClick={() => onReroot(row.name)}>{row.name}</button>
                  ) : (
                    <span class="name">{row.name}</span>
                  )}
                  <Meter size={Math.abs(row.value) / largest} kind={by === 'component' ? 'plain' : row.value < 0 ? 'negative' : 'positive'} text={number(row.value)} />
                </li>
              ))}
            </ol>
          </div>
        ))}
      </div>
    </>
  );
}
