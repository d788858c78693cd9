import { useEffect, useMemo, useState } from 'preact/hooks';
import { align } from './align';
import type { Body } from './api';
import { useAsk } from './ask';
import { SignedMeter } from './charts';
import type { Exports } from './exports';
import { clipped, number, percent, signed, tokenText } from './format';
import { Term } from './Help';
import { gridFigure } from './grid_figure';
import { secondPrompt, type View } from './state';
import { Status } from './Status';
import type { Path, Token, Trace } from './types';

interface Props {
  trace: Trace;
  stale: boolean;
  body: Body; // of the first prompt's trace
  view: View;
  exports: { current: Exports | null };
  onChange: (change: Partial<View>, step?: boolean) => void;
}

const PATHS = 300;

// The same target and contrast for both, or the difference would say nothing.
export function Compare({ trace, stale, body, view, exports, onChange }: Props) {
  const [draft, setDraft] = useState(view.other || view.prompt);
  useEffect(() => {
    if (view.other) setDraft(view.other);
  }, [view.other]);
  const {
    root: _r,
    target: _t,
    versus: _v,
    target_ids: _ti,
    versus_ids: _vi,
    position: _p,
    top_paths: _n,
    ...rest
  } = body;
  const goal = {
    target_ids: trace.target.ids,
    ...(trace.target.versus_ids ? { versus_ids: trace.target.versus_ids } : {}),
    top_paths: PATHS,
  };
  const { other } = view;
  // A root is a node of the first prompt alone: both are compared from the target.
  const first = useAsk<Trace>(other && !stale ? 'trace' : null, {
    ...rest,
    ...goal,
    ...('position' in body ? { position: body.position } : {}),
  });
  const second = useAsk<Trace>(other && !stale ? 'trace' : null, {
    ...rest,
    ...goal,
    ...secondPrompt(body, other),
  });
  const ready = first.data && second.data && !first.stale && !second.stale;
  const rows = useMemo(
    () => (first.data && second.data ? differences(first.data, second.data) : null),
    [first.data, second.data],
  );
  exports.current =
    ready && rows && first.data && second.data
      ? compareExports(first.data, second.data, rows, view)
      : null;
  const ask = () => onChange({ other: draft }, true);
  return (
    <section class="card" aria-label="Compare">
      <h2 class="title">
        Compare{' '}
        <span class="muted">
          the same question about a second prompt: {tokenText(trace.target.text)}
          {trace.target.versus_text ? ` against ${tokenText(trace.target.versus_text)}` : ''}
        </span>{' '}
        <Term of="compare" />
      </h2>
      <div class="compare-row">
        <textarea
          id="other"
          rows={2}
          aria-label={
            view.talk ? 'The user’s last turn in the second conversation' : 'Second prompt'
          }
          value={draft}
          spellcheck={false}
          onInput={(event) => setDraft(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              ask();
            }
          }}
        />
        <button id="compare" type="button" class="primary" disabled={!draft} onClick={ask}>
          Compare
        </button>
      </div>
      {!other && (
        <p class="muted">
          Change a word (a name, a number) and compare: the tokens, components and routes that make
          the difference are listed. The second prompt also serves “Test it”, where components can
          be replaced by what they write in it.
        </p>
      )}
      <Status
        ask={first.status !== 'done' && first.status !== 'idle' ? first : second}
        what="Comparing"
      />
      {first.data && second.data && rows && (
        <div class={ready ? '' : 'stale'}>
          <div class="sides">
            {[first.data, second.data].map((each, index) => (
              <p key={index}>
                <b>{index === 0 ? 'First' : 'Second'}</b>: {tokenText(each.target.text)} at{' '}
                {percent(100 * each.target.probability)},{' '}
                {each.target.logit_difference === null ? 'logit' : 'logit difference'}{' '}
                {number(each.target.logit_difference ?? each.target.logit)}
              </p>
            ))}
          </div>
          <h3>Tokens</h3>
          <table class="difference tokens">
            <thead>
              <tr>
                <th scope="col">first</th>
                <th scope="col">second</th>
                <th scope="col" class="number">
                  credit
                </th>
                <th scope="col" class="wide">
                  second minus first
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.tokens.map((row, i) => (
                <tr key={i} class={row.same ? '' : 'changed'}>
                  <td class="word">{row.left}</td>
                  <td class="word">{row.right}</td>
                  <td class="value">
                    {number(row.before)} → {number(row.after)}
                  </td>
                  <td class="wide">
                    <SignedMeter value={row.after - row.before} largest={rows.largestToken} />
                    <span class="value">{signed(row.after - row.before)}</span>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
          <div class="sides">
            <Differences
              id="components"
              title="Components that differ most"
              rows={rows.components}
            />
            <Differences id="routes-differ" title="Routes that differ most" rows={rows.paths} />
          </div>
          <p class="small muted">
            Positions are those of the first prompt. “weak”: not among the {PATHS} strongest routes
            of that prompt, and counted as nothing.
          </p>
        </div>
      )}
    </section>
  );
}

interface Row {
  name: string;
  before: number;
  after: number;
  unlisted?: 'before' | 'after'; // a route that is not among the strongest of that prompt
}

function Differences({ id, title, rows }: { id: string; title: string; rows: Row[] }) {
  const largest = Math.max(1e-30, ...rows.map((row) => Math.abs(row.after - row.before)));
  return (
    <div>
      <h3>{title}</h3>
      <table class={`difference ${id}`}>
        <tbody>
          {rows.map((row) => (
            <tr key={row.name}>
              <th scope="row" class="name">
                {row.name}
                <br />
                <span class="muted">
                  {row.unlisted === 'before' ? 'weak' : number(row.before)} →{' '}
                  {row.unlisted === 'after' ? 'weak' : number(row.after)}
                </span>
              </th>
              <td class="wide">
                <SignedMeter value={row.after - row.before} largest={largest} />
                <span class="value">{signed(row.after - row.before)}</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface Differing {
  tokens: { left: string; right: string; before: number; after: number; same: boolean }[];
  largestToken: number;
  components: Row[];
  paths: Row[];
}

const bySize = (rows: Row[], most: number): Row[] =>
  rows.sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before)).slice(0, most);

function differences(left: Trace, right: Trace): Differing {
  const pairs = align(left.tokens, right.tokens);
  const shown = (token: Token | undefined) => (token ? tokenText(token.text, token.bytes) : '–');
  const tokens = pairs.map((pair) => ({
    left: shown(left.tokens[pair.left ?? -1]),
    right: shown(right.tokens[pair.right ?? -1]),
    before: pair.left === null ? 0 : left.token_credit[pair.left],
    after: pair.right === null ? 0 : right.token_credit[pair.right],
    same:
      pair.left !== null &&
      pair.right !== null &&
      left.tokens[pair.left].id === right.tokens[pair.right].id,
  }));
  const total = (trace: Trace, name: string) =>
    (trace.node_credit[name] ?? []).reduce((sum, x) => sum + x, 0);
  const components = Object.keys(left.node_credit)
    .filter((name) => name !== 'emb' && name !== 'pos')
    .map((name) => ({ name, before: total(left, name), after: total(right, name) }));
  // Routes of the second prompt under the positions that their tokens have in the first.
  const positions = new Map(
    pairs.flatMap((pair) =>
      pair.left !== null && pair.right !== null ? [[pair.right, pair.left] as const] : [],
    ),
  );
  const moved = (path: Path) =>
    path.text.replace(/@(\d+)/g, (_, at: string) =>
      positions.has(Number(at)) ? `@${positions.get(Number(at))}` : `@second ${at}`,
    );
  const paths = new Map<string, Row>();
  for (const path of left.paths)
    paths.set(path.text, { name: path.text, before: path.credit, after: 0, unlisted: 'after' });
  for (const path of right.paths) {
    const name = moved(path);
    const known = paths.get(name);
    const row: Row = known
      ? { ...known, unlisted: undefined }
      : { name, before: 0, after: 0, unlisted: 'before' };
    row.after = path.credit;
    paths.set(name, row);
  }
  return {
    tokens,
    largestToken: Math.max(1e-30, ...tokens.map((row) => Math.abs(row.after - row.before))),
    components: bySize(components, 10),
    paths: bySize([...paths.values()], 10),
  };
}

function compareExports(left: Trace, right: Trace, rows: Differing, view: View): Exports {
  const grid = (list: Row[]) => {
    const most = Math.max(
      1e-30,
      ...list.map((row) =>
        Math.max(Math.abs(row.before), Math.abs(row.after), Math.abs(row.after - row.before)),
      ),
    );
    return list.map((row, i) => ({
      apart: i === 0,
      label: row.name,
      cells: [row.before, row.after, row.after - row.before].map((x, column) => ({
        text: row.unlisted && row.unlisted === ['before', 'after'][column] ? 'weak' : signed(x),
        share: x / most,
      })),
    }));
  };
  const tokens: Row[] = rows.tokens.map((row) => ({
    name: row.same ? row.left : `${row.left} / ${row.right}`,
    before: row.before,
    after: row.after,
  }));
  return {
    name: 'compare',
    figure: () =>
      gridFigure({
        title: `Two prompts: credit of ${tokenText(left.target.text)}`,
        subtitle:
          `${left.model.name}; first: ${clipped(view.prompt, 60)}; second: ` +
          `${clipped(view.other, 60)}`,
        columns: ['first', 'second', 'difference'],
        rows: [...grid(tokens), ...grid(rows.components), ...grid(rows.paths)],
        legend:
          'tokens, then components, then routes that differ most; blue raises the target, ' +
          `orange lowers it; relative within each part; weak: not among the ${PATHS} strongest ` +
          'routes, counted as nothing',
      }),
    rows: () => [
      ['kind', 'name', 'first', 'second', 'difference'],
      ...tokens.map((row) => ['token', row.name, row.before, row.after, row.after - row.before]),
      ...rows.components.map((row) => [
        'component',
        row.name,
        row.before,
        row.after,
        row.after - row.before,
      ]),
      ...rows.paths.map((row) => [
        'route',
        row.name,
        row.unlisted === 'before' ? '' : row.before,
        row.unlisted === 'after' ? '' : row.after,
        row.after - row.before,
      ]),
    ],
    data: () => ({ first: left, second: right, differences: rows }),
  };
}
