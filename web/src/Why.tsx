import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { once, type Body } from './api';
import { AFTERWARDS, askAhead, useAsk } from './ask';
import { Controls } from './Controls';
import type { Exports } from './exports';
import {
  clipped,
  number,
  percent,
  plural,
  probability,
  share,
  signed,
  tokenText,
  withMinus,
} from './format';
import { GraphView } from './GraphView';
import { layOut } from './graph_layout';
import { Term } from './Help';
import { Inspector } from './Inspector';
import { componentNames, parseNode } from './nodes';
import { Overview } from './Overview';
import { questionText } from './question';
import { LISTED, choose, collectEdges, sharesMislead, sumOf, touched, type Hover } from './routes';
import { RouteList } from './RouteList';
import {
  NO_FILTERS,
  filterBody,
  filtered,
  pinsOf,
  promptBody,
  rootOf,
  togglePin,
  traceBody,
  type View,
  rootBody,
} from './state';
import { Status } from './Status';
import type { PathsAnswer, Trace, WordsAnswer } from './types';
import { whyFigure } from './why_figure';

interface Props {
  trace: Trace;
  stale: boolean;
  view: View;
  body: Body;
  gated: boolean;
  dark: boolean;
  exports: { current: Exports | null };
  tokenHover: number | null;
  onChange: (change: Partial<View>, step?: boolean) => void;
}

const SOON = 200; // ms in which a reroot that is answered needs no frame in between

export function Why({
  trace,
  stale,
  view,
  body,
  gated,
  dark,
  exports,
  tokenHover,
  onChange,
}: Props) {
  const [hover, setHover] = useState<Hover>(null);
  const [picked, setPicked] = useState<string | null>(null);
  const [unfold, setUnfold] = useState(false);
  const root = trace.root === 'target' ? null : trace.root;
  const pins = pinsOf(view);

  // The trace brings the strongest routes without filters; filtered ones are asked for apart.
  const apart = filtered(view.filters);
  const asked = useAsk<PathsAnswer>(apart && !stale ? 'paths' : null, {
    ...body,
    ...filterBody(view.filters),
    top_paths: LISTED,
  });
  const source: PathsAnswer = apart && asked.data ? asked.data : trace;
  const total = sumOf(trace.token_credit);
  const shown = useMemo(
    () =>
      choose(source.paths, total, {
        count: view.routes,
        threshold: view.threshold,
        skipFirst: view.skipFirst,
      }),
    [source, view.routes, view.threshold, view.skipFirst],
  );
  const edges = useMemo(() => collectEdges(shown.routes, root !== null), [shown, root]);
  const layout = useMemo(
    () =>
      layOut({
        edges,
        root,
        unfold,
        labels: trace.tokens.map((token) => clipped(tokenText(token.text, token.bytes), 16)),
        targetPosition: trace.target.position,
        targetLabel:
          `${clipped(tokenText(trace.target.text), 14)}` +
          (trace.target.versus_text
            ? ` vs ${clipped(tokenText(trace.target.versus_text), 14)}`
            : ''),
        layers: trace.model.layers,
      }),
    [edges, root, unfold, trace],
  );
  const pointed: Hover = hover ?? (tokenHover !== null ? { token: tokenHover } : null);
  const lit = useMemo(() => {
    const set = touched(pointed, shown.routes, edges);
    return set && set.size === 0 ? null : set;
  }, [pointed && JSON.stringify(pointed), shown, edges]);
  useEffect(() => {
    setHover(null);
    setPicked(null);
  }, [trace]);
  useEffect(() => setUnfold(false), [trace.tokens.length]);

  // The focus follows a reroot to the root, and back.
  const rerooted = useRef(false);
  useEffect(() => {
    if (!rerooted.current || stale) return;
    rerooted.current = false;
    const wanted = root ?? view.selected;
    const node = wanted
      ? document.querySelector<SVGElement>(`#graph [data-node="${CSS.escape(wanted)}"]`)
      : null;
    (node ?? document.querySelector<SVGElement>('#graph [tabindex="0"]'))?.focus({
      preventScroll: true,
    });
  }, [trace, stale]);
  const now = useRef(view);
  now.current = view;
  const go = async (trail: string[], selected: string | null) => {
    if (trail.length)
      await askAhead(
        'reroot',
        rootBody({ ...traceBody({ ...view, trail }), top_paths: LISTED }),
        SOON,
      );
    if (now.current !== view) return; // something else was asked meanwhile
    rerooted.current = true;
    onChange({ trail, selected, filters: NO_FILTERS }, true);
  };
  const reroot = (node: string) => node !== root && go([...view.trail, node], node);
  const select = (node: string | null) =>
    onChange({ selected: node === view.selected ? node : node });
  const pin = (node: string) => onChange(togglePin(view, node));

  const question = questionText(trace.target, root);
  const carried = sharesMislead(shown, source.coverage)
    ? `${plural(shown.routes.length, 'route')}, together ${signed(shown.net)}`
    : `${plural(shown.routes.length, 'route')} carr` +
      (shown.routes.length === 1 ? 'ies' : 'y') +
      ` ${share(shown.net, shown.total)} of the net credit`;
  const facts =
    `${trace.model.name}; P(${tokenText(trace.target.text)}) = ` +
    `${probability(trace.target.probability)}; ` +
    (trace.target.logit_difference !== null
      ? `logit difference ${signed(trace.target.logit_difference)}`
      : `logit ${signed(trace.target.logit)}`) +
    `; ${carried}`;
  exports.current = {
    name: 'why',
    figure: () =>
      whyFigure(
        trace,
        layout,
        `${question}  ${clipped(view.prompt.replace(/\s+/g, ' '), 90)}`,
        facts,
        root,
        pins,
        view.skipFirst,
      ),
    rows: () => [
      ['route', 'credit', 'percent_of_positive_token_credit', 'source_position', 'source_token'],
      ...shown.routes.map((path) => [
        path.text,
        path.credit,
        path.percent,
        parseNode(path.nodes[0]).position,
        trace.tokens[parseNode(path.nodes[0]).position].text,
      ]),
    ],
    // What the graph of a root does without is in the file all the same.
    data: async () => ({
      ...trace,
      ...(root ? await once<object>('reroot', { ...traceBody(view), top_paths: 0 }) : {}),
      paths: shown.routes,
      coverage: source.coverage,
    }),
  };
  const selected =
    view.selected && parseNode(view.selected).position < trace.tokens.length ? view.selected : null;
  const { top_paths: _, ...plain } = body;
  return (
    <div
      class={`why ${stale ? 'stale' : ''}`}
      onKeyDown={(event) =>
        event.key === 'Escape' &&
        view.trail.length > 0 &&
        !document.fullscreenElement &&
        go(view.trail.slice(0, -1), view.trail.at(-2) ?? view.trail.at(-1) ?? null)
      }
    >
      <section class="card graph" aria-label="Graph">
        <Breadcrumb
          trail={view.trail}
          target={trace.target.text}
          onGo={(depth) =>
            go(view.trail.slice(0, depth), view.trail[depth - 1] ?? view.trail[depth] ?? null)
          }
        />
        <Controls
          view={view}
          shown={shown}
          coverage={source.coverage}
          branches={gated ? ['K', 'Q', 'V', 'G', 'U'] : ['K', 'Q', 'V']}
          components={componentNames(
            trace.model.layers,
            trace.model.heads,
            'pos' in trace.node_credit,
          )}
          tokens={trace.tokens}
          layers={trace.model.layers}
          onChange={onChange}
        />
        <Status ask={asked} what="Filtering" />
        {shown.routes.length === 0 && !root && (
          <p class="muted">No route passes the filters: clear them, or lower the threshold.</p>
        )}
        <GraphView
          trace={trace}
          layout={layout}
          root={root}
          lit={lit}
          hover={hover}
          selected={selected}
          pins={pins}
          picked={picked}
          skipFirst={view.skipFirst}
          position={trace.target.position}
          onHover={setHover}
          onSelect={select}
          onReroot={reroot}
          onPin={pin}
          onPick={setPicked}
          onFold={() => setUnfold(true)}
          onToken={(from) =>
            onChange({
              filters: { ...view.filters, from: view.filters.from === from ? null : from },
            })
          }
        />
        <p class="legend small muted">
          <span class="key positive" /> {root ? 'positive' : 'raises the target'}{' '}
          <span class="key negative" /> {root ? 'negative' : 'lowers it'}{' '}
          <span class="key dashed" /> from another position · width, fill: credit ·{' '}
          <span class="together">
            read as K, Q, V <Term of="kqv" />
          </span>{' '}
          ·{' '}
          <span class="together">
            mouse and keys <Term of="keys" />
          </span>
          {unfold && (
            <>
              {' '}
              ·{' '}
              <button type="button" class="link" onClick={() => setUnfold(false)}>
                fold unused tokens
              </button>
            </>
          )}
        </p>
        {[...new Set([...trace.warnings, ...source.warnings])].map((warning) => (
          <p key={warning} class="warning">
            {warning}
          </p>
        ))}
      </section>
      <div class="side-column">
        {selected ? (
          <Inspector
            node={selected}
            edge={edges.find((edge) => edge.key === picked) ?? null}
            pins={pins}
            trace={trace}
            body={plain}
            promptBody={promptBody(view)}
            other={view.other}
            dark={dark}
            onSelect={select}
            onReroot={reroot}
            onPin={pin}
            onOther={() => onChange({ tab: 'compare' }, true)}
          />
        ) : (
          <Overview
            trace={trace}
            edge={edges.find((edge) => edge.key === picked) ?? null}
            body={plain}
            other={view.other}
            onSelect={select}
            onOther={() => onChange({ tab: 'compare' }, true)}
          />
        )}
      </div>
      <section class="card words" aria-label="In words">
        <h2 class="title">
          In words <span class="muted">made from the numbers alone</span>
        </h2>
        <Words
          body={{ ...plain, ...(rootOf(view) ? { root: rootOf(view) } : {}) }}
          stale={stale}
          onSelect={select}
        />
      </section>
      <section class="card list" aria-label="Strongest routes">
        <h2 class="title">
          Routes <span class="muted">strongest first; point at one to see it</span>{' '}
          <Term of="route" />
        </h2>
        <RouteList
          routes={shown.routes}
          tokens={trace.tokens}
          rooted={root !== null}
          lit={lit}
          onHover={setHover}
          onSelect={select}
        />
        <p class="small muted">
          Credit given {number(trace.conservation.first)}, arrived at tokens{' '}
          {number(trace.conservation.reached)}
          {trace.conservation.first
            ? ` (${percent((100 * trace.conservation.reached) / trace.conservation.first)})`
            : ''}
          ; the rest was let go where scores cancel <Term of="beta" />
        </p>
      </section>
    </div>
  );
}

function Words({
  body,
  stale,
  onSelect,
}: {
  body: Body;
  stale: boolean;
  onSelect: (node: string) => void;
}) {
  const ask = useAsk<WordsAnswer>(
    stale ? null : 'words',
    { ...body, sentences: 4 },
    AFTERWARDS,
    true,
  );
  return (
    <>
      <Status ask={ask} what="Putting it into words" />
      {!ask.data && <div class="to-come" aria-hidden="true" />}
      {ask.data && (
        <ol class={`sentences ${ask.stale ? 'stale' : ''}`}>
          {ask.data.sentences.map((sentence) => (
            <li key={sentence.node} class={sentence.credit < 0 ? 'negative' : 'positive'}>
              <button
                type="button"
                class="link name"
                title={`look closer at ${sentence.node}`}
                onClick={() => onSelect(sentence.node)}
              >
                {sentence.node.split('@')[0]}
              </button>
              {withMinus(sentence.text.slice(sentence.node.split('@')[0].length))}
            </li>
          ))}
        </ol>
      )}
    </>
  );
}

function Breadcrumb({
  trail,
  target,
  onGo,
}: {
  trail: string[];
  target: string;
  onGo: (depth: number) => void;
}) {
  if (trail.length === 0) return null;
  return (
    <nav class="crumbs" aria-label="Roots">
      <ol>
        {['', ...trail].map((node, depth) => {
          const label = depth === 0 ? `target ${tokenText(target)}` : node;
          const current = depth === trail.length;
          return (
            <li key={depth}>
              {current ? (
                <span aria-current="page">{label}</span>
              ) : (
                <button type="button" class="link" onClick={() => onGo(depth)}>
                  {label}
                </button>
              )}
            </li>
          );
        })}
      </ol>
      <span class="muted small">
        credit 1 was put on {trail.at(-1)} and followed down <Term of="reroot" />; Esc goes back
      </span>
    </nav>
  );
}
