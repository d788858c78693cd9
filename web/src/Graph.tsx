import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useWidth } from './hooks';
import { curve, layOut, neighbour, placeLabels, type Placed } from './layout';
import { canReroot } from './nodes';
import { number, percent, signed, tokenText } from './format';
import { TARGET, type Edge, type Hover } from './paths';
import type { Token, Trace } from './types';

interface Props {
  trace: Trace;
  root: string | null;
  edges: Edge[];
  hover: Hover;
  lit: Set<number> | null;
  picked: string | null;
  onHover: (hover: Hover) => void;
  onReroot: (node: string) => void;
  onPick: (edge: string) => void;
}

const MOST_EDGES = 500;

export function Graph({ trace, root, edges, hover, lit, picked, onHover, onReroot, onPick }: Props) {
  const [frame, width] = useWidth<HTMLDivElement>();
  const svg = useRef<SVGSVGElement>(null);
  const [cursor, setCursor] = useState<string | null>(null);
  const drawn = useMemo(() => edges.slice(-MOST_EDGES), [edges]);
  const layout = useMemo(
    () =>
      layOut({ edges: drawn, root, length: trace.tokens.length, layers: trace.model.layers, targetPosition: trace.target.position, available: Math.max(300, width) }),
    [drawn, root, trace, width],
  );
  const heaviest = Math.max(1e-30, ...drawn.map((edge) => edge.mass));
  const isLit = (edge: Edge) => lit === null || edge.paths.some((path) => lit.has(path));
  const litNodes = useMemo(() => {
    if (!lit) return null;
    const names = new Set<string>();
    for (const edge of drawn) if (isLit(edge)) names.add(edge.from).add(edge.to);
    return names;
  }, [drawn, lit]);
  const labels = useMemo(() => placeLabels(layout, lit ? drawn.filter(isLit) : drawn), [layout, lit]);
  // A graph wider than its frame starts where its paths end.
  useEffect(() => {
    const end = root ? layout.nodes.get(root)?.x : layout.target?.x;
    if (frame.current && end !== undefined) frame.current.scrollLeft = end - width / 2;
  }, [trace, width > 0]);
  const place = (name: string) => (name === TARGET ? layout.target : layout.nodes.get(name));
  const first = root ?? [...layout.nodes.keys()].at(-1) ?? null;
  const focusable = cursor !== null && layout.nodes.has(cursor) ? cursor : first;

  const onKey = (event: KeyboardEvent, node: Placed) => {
    if ((event.key === 'Enter' || event.key === ' ') && canReroot(node)) {
      event.preventDefault();
      onReroot(node.text);
      return;
    }
    const next = neighbour(layout, node.text, event.key);
    if (!next) return;
    event.preventDefault();
    setCursor(next);
    svg.current?.querySelector<SVGElement>(`[data-node="${CSS.escape(next)}"]`)?.focus();
  };

  return (
    <div class="graph-frame" ref={frame}>
      <svg ref={svg} id="graph" width={layout.width} height={layout.height} viewBox={`0 0 ${layout.width} ${layout.height}`} role="group" aria-label="Paths through the model: tokens across, layers upward">
        {layout.layers.map((band) => (
          <g key={band.layer} class={`band ${band.layer % 2 ? 'odd' : ''}`}>
            <rect x={0} y={band.top} width={layout.width} height={band.bottom - band.top} />
            {!band.empty && <text x={8} y={band.y + 4}>{`L${band.layer}`}</text>}
          </g>
        ))}
        {trace.tokens.map((token) => (
          <TokenLabel key={token.position} token={token} column={layout.columns[token.position]} y={layout.tokensY} onHover={onHover} />
        ))}
        <g class="edges">
          {drawn.map((edge) => {
            const from = place(edge.from), to = place(edge.to);
            if (!from || !to) return null;
            const path = curve(from, to, edge.branch);
            return (
              <path
                key={edge.key}
                d={path.d}
                class={`edge ${edge.credit < 0 ? 'negative' : 'positive'} ${lit ? (isLit(edge) ? 'lit' : 'dim') : ''} ${edge.key === picked ? 'picked' : ''}`}
                data-edge={edge.key}
                stroke-width={Math.max(0.8, 9 * Math.sqrt(edge.mass / heaviest))}
                onMouseEnter={() => onHover({ edge: edge.key })}
                onMouseLeave={() => onHover(null)}
                onClick={() => onPick(edge.key)}
              >
                <title>{`${edge.from}${edge.branch ? ` -[${edge.branch}]` : ' -'}-> ${edge.to}\ncredit ${signed(edge.credit)} over ${edge.paths.length} shown path${edge.paths.length === 1 ? '' : 's'}`}</title>
              </path>
            );
          })}
        </g>
        <g class="labels">
          {labels.map((label) => (
            <text key={label.key} x={label.x} y={label.y + 3.5} class={label.negative ? 'negative' : 'positive'}>{label.text}</text>
          ))}
        </g>
        {layout.target && (
          <g class={`node target ${litNodes && !litNodes.has(TARGET) ? 'dim' : ''}`} transform={`translate(${layout.target.x} ${layout.target.y})`}>
            <rect x={-34} y={-12} width={68} height={24} rx={12} />
            <text y={4}>{tokenText(trace.target.text).slice(0, 9)}</text>
            <title>{`the target ${trace.target.text}${trace.target.versus_text ? ` against ${trace.target.versus_text}` : ''}`}</title>
          </g>
        )}
        {[...layout.nodes.values()].map((node) => (
          <GraphNode
            key={node.text}
            node={node}
            trace={trace}
            isRoot={node.text === root}
            dim={litNodes !== null && !litNodes.has(node.text)}
            hot={hover !== null && 'node' in hover && hover.node === node.text}
            tabIndex={node.text === focusable ? 0 : -1}
            onHover={onHover}
            onReroot={onReroot}
            onKey={onKey}
          />
        ))}
      </svg>
    </div>
  );
}

interface LabelProps {
  token: Token;
  column: { x: number; width: number };
  y: number;
  onHover: (hover: Hover) => void;
}

function TokenLabel({ token, column, y, onHover }: LabelProps) {
  if (!column) return null;
  const room = Math.max(1, Math.floor(column.width / 7));
  const text = tokenText(token.text).trim() || tokenText(token.text);
  return (
    <text class="token-label" x={column.x} y={y + 4} onMouseEnter={() => onHover({ token: token.position })} onMouseLeave={() => onHover(null)}>
      {text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text}
      <title>{`${text} (position ${token.position})`}</title>
    </text>
  );
}

interface NodeProps {
  node: Placed;
  trace: Trace;
  isRoot: boolean;
  dim: boolean;
  hot: boolean;
  tabIndex: number;
  onHover: (hover: Hover) => void;
  onReroot: (node: string) => void;
  onKey: (event: KeyboardEvent, node: Placed) => void;
}

const shortName = (node: Placed) => (node.kind === 'head' ? `H${node.head}` : node.kind === 'mlp' ? 'MLP' : node.kind);

function GraphNode({ node, trace, isRoot, dim, hot, tabIndex, onHover, onReroot, onKey }: NodeProps) {
  const credit = trace.node_credit[node.name]?.[node.position] ?? 0;
  const token = trace.tokens[node.position];
  const open = canReroot(node) && !isRoot;
  const label = `${node.text} at ${token ? tokenText(token.text) : ''}, credit ${number(credit)}`;
  return (
    <g
      class={`node ${node.kind} ${credit < 0 ? 'negative' : 'positive'} ${isRoot ? 'root' : ''} ${dim ? 'dim' : ''} ${hot ? 'hot' : ''} ${open ? 'open' : ''}`}
      transform={`translate(${node.x} ${node.y})`}
      data-node={node.text}
      tabIndex={tabIndex}
      role={open ? 'button' : 'img'}
      aria-label={open ? `${label}; press Enter to reroot here` : label}
      onMouseEnter={() => onHover({ node: node.text })}
      onMouseLeave={() => onHover(null)}
      onFocus={() => onHover({ node: node.text })}
      onBlur={() => onHover(null)}
      onClick={() => open && onReroot(node.text)}
      onKeyDown={(event) => onKey(event, node)}
    >
      {node.kind === 'head' ? <circle r={13} /> : node.kind === 'mlp' ? <rect x={-15} y={-11} width={30} height={22} rx={4} /> : <rect x={-14} y={-9} width={28} height={18} rx={9} />}
      <text y={3.5}>{shortName(node)}</text>
      <title>{`${label}${open ? '\nclick to reroot here' : ''}${node.kind === 'emb' || node.kind === 'pos' ? `\n${percent(trace.token_percent[node.position] ?? 0)} of the positive token credit` : ''}`}</title>
    </g>
  );
}
