import { useEffect, useMemo, useState } from 'preact/hooks';
import { api } from './api';
import { Compare } from './Compare';
import { ComponentMap } from './ComponentMap';
import { FilterBar, MassBar } from './Filters';
import { number, probability, quoted, signed } from './format';
import { Graph } from './Graph';
import { Heatmap } from './Heatmap';
import { useLatest, type Theme } from './hooks';
import { Knockout, suspectOf } from './Knockout';
import { componentNames, parseNode } from './nodes';
import { FIRST_PATHS, collectEdges, holding, shares, touched, type Hover } from './paths';
import { PathList } from './PathList';
import { RootPanel } from './RootPanel';
import { NO_FILTERS, filterBody, filtered, promptBody, type Tab, type View } from './state';
import { TokenStrip } from './TokenStrip';
import type { ModelsAnswer, Trace } from './types';

const TABS: { tab: Tab; label: string }[] = [
  { tab: 'paths', label: 'Paths' },
  { tab: 'interactions', label: 'Interactions' },
  { tab: 'compare', label: 'Compare' },
];

export const hasGated = (models: ModelsAnswer, trace: Trace) =>
  models.models.find((entry) => entry.name === trace.model.name)?.info?.gated ?? ['llama', 'mistral', 'qwen2', 'qwen3'].includes(trace.model.family);

interface AnswerProps {
  trace: Trace;
  busy: boolean;
  models: ModelsAnswer;
  view: View;
  body: Record<string, unknown>;
  raw: boolean;
  theme: Theme;
  onRaw: (raw: boolean) => void;
  onChange: (change: Partial<View>, step?: boolean) => void;
}

export function Answer({ trace, busy, models, view, body, raw, theme, onRaw, onChange }: AnswerProps) {
  const [hover, setHover] = useState<Hover>(null);
  const [picked, setPicked] = useState<string | null>(null); // an edge that was clicked
  const root = trace.root === 'target' ? null : trace.root;
  const gated = hasGated(models, trace);

  // The trace brings the strongest paths without filters; other questions about paths are asked apart.
  const [most, setMost] = useState(FIRST_PATHS);
  const pathsBody = { ...body, ...filterBody(view.filters), top_paths: most };
  const apart = filtered(view.filters) || most > FIRST_PATHS;
  const other = useLatest(apart ? JSON.stringify(pathsBody) : null, (signal) => api.paths(pathsBody, signal));
  const source = apart && other.data ? other.data : trace;
  const shown = useMemo(() => holding(source.paths, source.coverage, view.mass), [source, view.mass]);
  const edges = useMemo(() => collectEdges(shown.paths, root !== null), [shown, root]);
  const lit = useMemo(() => touched(hover, shown.paths, edges), [hover, shown, edges]);
  const litTokens = useMemo(() => (lit ? new Set([...lit].map((index) => parseNode(shown.paths[index].nodes[0]).position)) : null), [lit, shown]);
  useEffect(() => setHover(null), [source]);
  useEffect(() => {
    const more = !shown.reached && source.paths.length >= most && most < models.limits.max_paths;
    if (more && !other.busy) setMost(Math.min(models.limits.max_paths, most * 4));
  }, [shown, most, other.busy]);
  useEffect(() => {
    setMost(FIRST_PATHS);
    setPicked(null);
  }, [trace]);

  const reroot = (node: string) => onChange({ trail: [...view.trail, node], filters: NO_FILTERS, mass: null }, true);
  const up = () => onChange({ trail: view.trail.slice(0, -1), filters: NO_FILTERS, mass: null }, true);
  const suspect = suspectOf(edges.find((edge) => edge.key === picked) ?? null, root, view.filters.through, view.filters.from, trace.tokens, view.other);
  const components = componentNames(trace.model.layers, trace.model.heads, 'pos' in trace.node_credit);
  // Kept as they are while only the pointer, the progress or something else moves: drawing them is most of the work.
  const pick = (key: string) => setPicked((old) => (key === old ? null : key));
  const graph = useMemo(() => <Graph trace={trace} root={root} edges={edges} hover={hover} lit={lit} picked={picked} onHover={setHover} onReroot={reroot} onPick={pick} />, [trace, edges, hover, lit, picked, view.trail]);
  const side = useMemo(
    () => (root ? <RootPanel trace={trace} onReroot={reroot} /> : <ComponentMap trace={trace} through={view.filters.through} onThrough={(through) => onChange({ filters: { ...view.filters, through } })} />),
    [trace, view.filters, view.trail],
  );
  const list = useMemo(() => <PathList paths={shown.paths} rooted={root !== null} lit={lit} onHover={setHover} onPick={setPicked} />, [shown, lit]);
  return (
    <div class={`answer ${busy ? 'busy' : ''}`} onKeyDown={(event) => event.key === 'Escape' && view.trail.length > 0 && up()}>
      <section class="card" aria-label="Token credit">
        <div class="row spread">
          <h2 class="title">{root ? `What ${root} reads, by token` : 'Which tokens it comes from'}</h2>
          <div class="segmented" role="group" aria-label="Numbers">
            <button type="button" aria-pressed={!raw} onClick={() => onRaw(false)}>percent</button>
            <button type="button" aria-pressed={raw} onClick={() => onRaw(true)}>credit</button>
          </div>
        </div>
        <Summary trace={trace} root={root} />
        <TokenStrip
          tokens={trace.tokens}
          credit={trace.token_credit}
          percents={trace.token_percent}
          raw={raw}
          from={view.filters.from}
          lit={litTokens}
          label="Token credit"
          onHover={setHover}
          onFrom={(from) => onChange({ filters: { ...view.filters, from } })}
        />
        {[...new Set([...trace.warnings, ...source.warnings])].map((warning) => <p key={warning} class="warning">{warning}</p>)}
      </section>
      <nav class="tabs" aria-label="Views">
        {TABS.map(({ tab, label }) => (
          <button key={tab} type="button" id={`tab-${tab}`} aria-pressed={view.tab === tab} onClick={() => onChange({ tab })}>{label}</button>
        ))}
      </nav>
      {view.tab === 'interactions' && <Heatmap body={promptBody(view)} tokens={trace.tokens} dark={isDark(theme)} />}
      {view.tab === 'compare' && <Compare trace={trace} body={body} other={view.other} raw={raw} onOther={(text) => onChange({ other: text })} />}
      {view.tab === 'paths' && (
        <div class="explore">
          <section class="card graph" aria-label="Paths">
            <Breadcrumb trail={view.trail} target={trace.target.text} onGo={(depth) => onChange({ trail: view.trail.slice(0, depth), filters: NO_FILTERS, mass: null }, true)} />
            <FilterBar
              filters={view.filters}
              branches={gated ? ['K', 'Q', 'V', 'G', 'U'] : ['K', 'Q', 'V']}
              components={components}
              tokens={trace.tokens}
              layers={trace.model.layers}
              onChange={(filters) => onChange({ filters })}
            />
            {other.error && <p class="problem" role="alert">{other.error}</p>}
            <MassBar
              mass={view.mass}
              shown={shown}
              shares={shares(shown.absolute, source.coverage)}
              busy={other.busy}
              limited={most >= models.limits.max_paths || source.paths.length < most}
              onMass={(mass) => onChange({ mass })}
            />
            {graph}
            <Legend gated={gated} />
          </section>
          <div class="side-column">
            {side}
            {models.endpoints.includes('intervene') && suspect && <Knockout suspect={suspect} body={body} />}
          </div>
          <section class={`card list ${root ? 'below' : ''}`} aria-label="Strongest paths">
            <h2 class="title">Paths <span class="muted">strongest first</span></h2>
            {list}
          </section>
        </div>
      )}
    </div>
  );
}

const isDark = (theme: Theme) => theme === 'dark' || (theme === 'auto' && matchMedia('(prefers-color-scheme: dark)').matches);

function Summary({ trace, root }: { trace: Trace; root: string | null }) {
  const { target, conservation } = trace;
  const lost = conservation.first !== 0 ? 100 * (1 - conservation.reached / conservation.first) : 0;
  return (
    <p class="summary">
      {root ? <>Credit 1 was put on <b>{root}</b> and followed down.</> : (
        <>
          <b>{quoted(target.text)}</b> {probability(target.probability)}
          {target.versus_text ? <> against <b>{quoted(target.versus_text)}</b></> : null}
          {target.logit_difference !== null ? <>, logit difference {signed(target.logit_difference)}</> : <>, logit {signed(target.logit)}</>}.
        </>
      )}{' '}
      <span class="muted" title="The floor of the denominators lets some credit go; it is reported, never hidden">
        Credit given {number(conservation.first)}, reached tokens {number(conservation.reached)} ({lost >= 0 ? `${Math.round(lost)}% lost on the way` : `${Math.round(-lost)}% more`}).
      </span>
    </p>
  );
}

function Breadcrumb({ trail, target, onGo }: { trail: string[]; target: string; onGo: (depth: number) => void }) {
  return (
    <nav class="crumbs" aria-label="Roots">
      <ol>
        {['', ...trail].map((node, depth) => {
          const label = depth === 0 ? `target ${quoted(target)}` : node;
          const current = depth === trail.length;
          return <li key={depth}>{current ? <span aria-current="page">{label}</span> : <button type="button" class="link" onClick={() => onGo(depth)}>{label}</button>}</li>;
        })}
      </ol>
      <span class="muted small">{trail.length ? 'Esc goes back' : 'click a node to reroot there'}</span>
    </nav>
  );
}

function Legend({ gated }: { gated: boolean }) {
  return (
    <p class="legend small muted">
      <span class="key positive" /> raises <span class="key negative" /> lowers the target · width: credit (square root) · K, Q, V: read as key, query, value
      {gated ? ' · G, U: gate, up' : ''} · arrow keys move between nodes, Enter reroots
    </p>
  );
}
