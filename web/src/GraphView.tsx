import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { clipped, number, percent, signed, tokenText } from './format';
import {
  BOX,
  PORT,
  neighbour,
  pathData,
  textWidth,
  type Box,
  type Layout,
  type Line,
} from './graph_layout';
import { useSize } from './hooks';
import { canReroot } from './nodes';
import { TARGET, edgeText, type Hover } from './routes';
import { tint } from './tint';
import type { Trace } from './types';

interface Props {
  trace: Trace;
  layout: Layout;
  root: string | null;
  lit: Set<number> | null;
  hover: Hover;
  selected: string | null;
  pins: string[];
  picked: string | null; // an edge
  skipFirst: boolean;
  position: number;
  onHover: (hover: Hover) => void;
  onSelect: (node: string | null) => void;
  onReroot: (node: string) => void;
  onPin: (node: string) => void;
  onPick: (edge: string | null) => void;
  onFold: () => void;
  onToken: (position: number) => void;
}

const LABELS = 46; // room for the layers' names, which stay in view
const AXIS = 46; // and for the tokens, which keep their size
const LEAST = 0.3,
  MOST = 4;
// Size of the tokens' numbers; one that would meet its neighbour shows when it is pointed at.
const TINY = 10;

interface Place {
  k: number;
  x: number;
  y: number;
}

export function GraphView(props: Props) {
  const {
    trace,
    layout,
    root,
    lit,
    hover,
    selected,
    pins,
    picked,
    skipFirst,
    position,
    onHover,
    onSelect,
    onReroot,
    onPin,
    onPick,
    onFold,
    onToken,
  } = props;
  const [frame, size] = useSize<HTMLDivElement>();
  const svg = useRef<SVGSVGElement>(null);
  const [full, setFull] = useState(false);
  const [moved, setMoved] = useState<Place | null>(null); // null: as it fits best
  const [cursor, setCursor] = useState<string | null>(null);
  const drag = useRef<{ x: number; y: number; place: Place } | null>(null);

  useEffect(() => setMoved(null), [layout, full]);
  const across = (size.width - LABELS - 4) / layout.width;
  // A full screen shows all of it, as far as names stay readable.
  const k0 = full
    ? Math.min(1.6, Math.max(0.62, Math.min(across, (size.height - AXIS) / layout.floorY)))
    : Math.min(1.15, Math.max(0.62, across));
  const natural = layout.floorY * k0 + AXIS;
  const height = full
    ? size.height
    : Math.round(Math.max(220, Math.min(natural, Math.max(420, 0.74 * window.innerHeight))));
  const place: Place = moved ?? {
    k: k0,
    // A graph wider than its frame starts where its routes end.
    x:
      layout.width * k0 <= size.width - LABELS
        ? LABELS + (size.width - LABELS - layout.width * k0) / 2
        : Math.min(LABELS, size.width - layout.width * k0),
    y: natural < height ? (height - natural) / 2 : 0,
  };
  const zoom = (factor: number, cx = size.width / 2, cy = height / 2) => {
    const k = Math.min(MOST, Math.max(LEAST, place.k * factor));
    setMoved({ k, x: cx - ((cx - place.x) * k) / place.k, y: cy - ((cy - place.y) * k) / place.k });
  };
  const fit = () => {
    const k = Math.max(
      0.1,
      Math.min(1.15, (size.width - LABELS - 4) / layout.width, (height - AXIS) / layout.floorY),
    );
    setMoved({
      k,
      x: LABELS + (size.width - LABELS - layout.width * k) / 2,
      y: (height - AXIS - layout.floorY * k) / 2,
    });
  };
  const latest = useRef({ zoom, place, full });
  latest.current = { zoom, place, full };
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    // The page scrolls as ever; with Ctrl, or where the graph is all there is, the wheel is the
    // graph's.
    const wheel = (event: WheelEvent) => {
      const now = latest.current;
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        const box = element.getBoundingClientRect();
        now.zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
      } else if (now.full) {
        event.preventDefault();
        setMoved({ ...now.place, x: now.place.x - event.deltaX, y: now.place.y - event.deltaY });
      }
    };
    element.addEventListener('wheel', wheel, { passive: false });
    return () => element.removeEventListener('wheel', wheel);
  }, []);
  useEffect(() => {
    const leave = () => setFull(document.fullscreenElement === frame.current);
    document.addEventListener('fullscreenchange', leave);
    return () => document.removeEventListener('fullscreenchange', leave);
  }, []);
  const toggleFull = () => {
    if (full) {
      if (document.fullscreenElement) void document.exitFullscreen();
      setFull(false);
    } else {
      setFull(true);
      // Where that is not allowed, the window is filled.
      frame.current?.requestFullscreen?.().catch(() => undefined);
    }
  };

  const names = [...layout.boxes.values()].filter((box) => box.node);
  const focusable =
    (cursor && layout.boxes.has(cursor) ? cursor : null) ??
    (selected && layout.boxes.has(selected) ? selected : null) ??
    root ??
    names.at(-1)?.name ??
    null;
  const isLit = (line: Line) => lit === null || line.edge.routes.some((route) => lit.has(route));
  const litNodes = useMemo(() => {
    if (!lit) return null;
    const out = new Set<string>();
    for (const line of layout.lines) if (isLit(line)) out.add(line.edge.from).add(line.edge.to);
    return out;
  }, [layout, lit]);
  const credit = (box: Box) =>
    box.node ? (trace.node_credit[box.node.name]?.[box.node.position] ?? 0) : 0;
  const largest = useMemo(
    () => Math.max(1e-30, ...names.map((box) => Math.abs(credit(box)))),
    [layout],
  );

  const onKey = (event: KeyboardEvent, box: Box) => {
    if (!box.node) return;
    if (event.key === 'p' || event.key === 'P' || (event.key === 'Enter' && event.shiftKey))
      onPin(box.name);
    else if (event.key === 'Enter' && canReroot(box.node)) onReroot(box.name);
    else if (event.key === ' ') onSelect(box.name);
    else if (event.key === '+' || event.key === '=') zoom(1.25);
    else if (event.key === '-') zoom(0.8);
    else if (event.key === '0') fit();
    else if (event.key === 'e' || event.key === 'E') onPick(nextEdge(layout, box.name, picked));
    else {
      const next = neighbour(layout, box.name, event.key);
      if (!next) return;
      setCursor(next);
      svg.current
        ?.querySelector<SVGElement>(`[data-node="${CSS.escape(next)}"]`)
        ?.focus({ preventScroll: false });
    }
    event.preventDefault();
  };

  // Kept while the graph is only moved: drawing it is most of the work.
  const content = useMemo(
    () => (
      <>
        {layout.bands.map((band) => (
          <rect
            key={band.layer}
            class="band"
            x={0}
            y={band.top}
            width={layout.width}
            height={band.bottom - band.top}
            rx={5}
          />
        ))}
        {[...layout.lines].reverse().map((line) => (
          <EdgeLine
            key={line.edge.key}
            line={line}
            state={lit ? (isLit(line) ? 'lit' : 'dim') : ''}
            picked={line.edge.key === picked}
            onHover={onHover}
            onPick={onPick}
          />
        ))}
        {[...layout.boxes.values()].map((box) => (
          <GraphBox
            key={box.name}
            box={box}
            trace={trace}
            credit={credit(box)}
            share={credit(box) / largest}
            isRoot={box.name === root}
            dim={litNodes !== null && !litNodes.has(box.name)}
            selected={box.name === selected}
            pinned={pins.includes(box.name)}
            focusable={box.name === focusable}
            onHover={onHover}
            onSelect={onSelect}
            onReroot={onReroot}
            onPin={onPin}
            onKey={onKey}
          />
        ))}
      </>
    ),
    [layout, lit, selected, pins.join(), picked, focusable, trace, place.k === k0],
  );

  const axisY = Math.min(place.y + place.k * layout.floorY + 20, height - 26);
  const largestToken = Math.max(
    1e-30,
    ...trace.token_credit.map((x, i) => (skipFirst && i === 0 ? 0 : Math.abs(x))),
  );
  return (
    <div
      class={`graph-frame ${full ? 'full' : ''}`}
      ref={frame}
      style={full ? {} : { height: `${height}px` }}
      onKeyDown={(event) => full && event.key === 'Escape' && toggleFull()}
    >
      <svg
        ref={svg}
        id="graph"
        width={size.width}
        height={height}
        role="group"
        aria-label={
          'Routes through the model: tokens across, layers upward. Arrow keys move between ' +
          'nodes, Space selects, Enter reroots, P pins, E picks the edges into a node, one ' +
          'after another'
        }
        onPointerDown={(event) => {
          if (event.button !== 0 || (event.target as Element).closest('.node, .edge, .axis'))
            return;
          drag.current = { x: event.clientX, y: event.clientY, place };
          event.currentTarget.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) => {
          if (!drag.current) return;
          const dx = event.clientX - drag.current.x,
            dy = event.clientY - drag.current.y;
          if (Math.hypot(dx, dy) > 3)
            setMoved({
              ...drag.current.place,
              x: drag.current.place.x + dx,
              y: drag.current.place.y + (event.pointerType === 'touch' && !full ? 0 : dy),
            });
        }}
        onPointerUp={(event) => {
          const start = drag.current;
          drag.current = null;
          if (start && Math.hypot(event.clientX - start.x, event.clientY - start.y) <= 3) {
            onSelect(null);
            onPick(null);
          }
        }}
      >
        <g class="content" transform={`translate(${place.x} ${place.y}) scale(${place.k})`}>
          {content}
        </g>
        <g class="layer-labels">
          <rect x={0} y={0} width={LABELS - 6} height={height} />
          {layout.bands.map((band) => {
            const y = place.y + (place.k * (band.top + band.bottom)) / 2;
            return y > 6 && y < axisY - 14 ? (
              <text key={band.layer} x={6} y={y + 4}>
                L{band.layer}
              </text>
            ) : null;
          })}
        </g>
        <g class="axis" aria-label="Tokens">
          <rect
            class="ground"
            x={0}
            y={axisY - 17}
            width={size.width}
            height={Math.max(0, height - axisY + 17)}
          />
          {layout.columns.map((column) => {
            const x = place.x + place.k * column.x;
            if (x < -80 || x > size.width + 80) return null;
            if (column.count > 1) {
              return (
                <g
                  key={`fold${column.position}`}
                  class="fold"
                  role="button"
                  tabindex={0}
                  aria-label={`${column.count} tokens that no shown route touches; show them`}
                  onClick={onFold}
                  onKeyDown={(event) => (event.key === 'Enter' || event.key === ' ') && onFold()}
                  transform={`translate(${x} ${axisY})`}
                >
                  <rect x={-15} y={-14} width={30} height={19} rx={9} />
                  <text>{column.label}</text>
                  <title>{`${column.count} tokens that no shown route touches: ${trace.tokens
                    .slice(column.position, column.position + column.count)
                    .map((token) => token.text)
                    .join('')}`}</title>
                </g>
              );
            }
            const value = trace.token_credit[column.position] ?? 0;
            const hidden = skipFirst && column.position === 0;
            const text = tokenText(
              trace.tokens[column.position].text,
              trace.tokens[column.position].bytes,
            );
            const width = Math.max(
              20,
              Math.min(place.k * (column.w - 6), textWidth(text, 13.5) + 10),
            );
            // The first one keeps its beginning.
            const inside = x > 0 ? Math.max(x, width / 2 + 2) : x;
            const credited = hidden ? 'left out' : signed(value, 2);
            return (
              <g
                key={column.position}
                class={`token ${column.position === position ? 'here' : ''}`}
                transform={`translate(${inside} ${axisY})`}
                onMouseEnter={() => onHover({ token: column.position })}
                onMouseLeave={() => onHover(null)}
                onClick={() => onToken(column.position)}
              >
                <rect
                  x={-width / 2}
                  y={-14}
                  width={width}
                  height={19}
                  rx={4}
                  style={{ fill: hidden ? 'transparent' : tint(value / largestToken) }}
                />
                <text>{clipped(text, Math.max(2, Math.floor(width / 7.2)))}</text>
                <text
                  class={
                    'tiny ' + (textWidth(credited, TINY) > place.k * column.w - 2 ? 'crowded' : '')
                  }
                  y={18}
                >
                  {credited}
                </text>
                <title>
                  {`${text}, position ${column.position}: credit ${signed(value)} ` +
                    `(${percent(trace.token_percent[column.position] ?? 0)} of the positive); ` +
                    'click: only routes from here'}
                </title>
              </g>
            );
          })}
        </g>
      </svg>
      <div class="graph-tools" role="group" aria-label="Graph view">
        <button
          type="button"
          aria-label="Zoom in"
          title="zoom in (+; or Ctrl and the wheel)"
          onClick={() => zoom(1.3)}
        >
          +
        </button>
        <button
          type="button"
          aria-label="Zoom out"
          title="zoom out (−)"
          onClick={() => zoom(1 / 1.3)}
        >
          −
        </button>
        <button type="button" aria-label="Fit" title="all of it (0)" onClick={fit}>
          fit
        </button>
        <button
          type="button"
          id="fullscreen"
          aria-label="Full screen"
          aria-pressed={full}
          title="full screen"
          onClick={toggleFull}
        >
          {full ? 'close' : 'full'}
        </button>
      </div>
      <EdgeNote
        line={layout.lines.find(
          (line) => line.edge.key === (hover && 'edge' in hover ? hover.edge : picked),
        )}
      />
    </div>
  );
}

// The edges into a node, strongest first, and then none.
function nextEdge(layout: Layout, node: string, picked: string | null): string | null {
  const keys = layout.lines.filter((line) => line.edge.to === node).map((line) => line.edge.key);
  return keys[keys.indexOf(picked ?? '') + 1] ?? null;
}

function EdgeNote({ line }: { line: Line | undefined }) {
  if (!line) return null;
  return (
    <p class="edge-note" role="status">
      {edgeText(line.edge)}: {signed(line.edge.credit)} over {line.edge.routes.length} shown route
      {line.edge.routes.length === 1 ? '' : 's'}
    </p>
  );
}

interface EdgeProps {
  line: Line;
  state: string;
  picked: boolean;
  onHover: (hover: Hover) => void;
  onPick: (edge: string | null) => void;
}

function EdgeLine({ line, state, picked, onHover, onPick }: EdgeProps) {
  const { edge } = line;
  const d = pathData(line.points);
  return (
    <g
      class={
        'edge ' +
        (edge.credit < 0 ? 'negative' : 'positive') +
        ` ${state} ${picked ? 'picked' : ''} ${line.crosses ? 'crosses' : ''} ` +
        (line.thin ? 'thin' : '')
      }
      data-edge={edge.key}
      onMouseEnter={() => onHover({ edge: edge.key })}
      onMouseLeave={() => onHover(null)}
      onClick={() => onPick(picked ? null : edge.key)}
    >
      <path class="hit" d={d} />
      <path class="drawn" d={d} stroke-width={line.width} />
    </g>
  );
}

interface BoxProps {
  box: Box;
  trace: Trace;
  credit: number;
  share: number;
  isRoot: boolean;
  dim: boolean;
  selected: boolean;
  pinned: boolean;
  focusable: boolean;
  onHover: (hover: Hover) => void;
  onSelect: (node: string) => void;
  onReroot: (node: string) => void;
  onPin: (node: string) => void;
  onKey: (event: KeyboardEvent, box: Box) => void;
}

function GraphBox({
  box,
  trace,
  credit,
  share,
  isRoot,
  dim,
  selected,
  pinned,
  focusable,
  onHover,
  onSelect,
  onReroot,
  onPin,
  onKey,
}: BoxProps) {
  const { node } = box;
  const frame = (
    <rect
      class="body"
      x={-box.w / 2}
      y={-BOX / 2}
      width={box.w}
      height={BOX}
      rx={5}
      style={isRoot || !node ? {} : { fill: tint(share) }}
    />
  );
  if (!node) {
    return (
      <g
        class={`node target ${dim ? 'dim' : ''}`}
        transform={`translate(${box.x} ${box.y})`}
        onMouseEnter={() => onHover({ node: TARGET })}
        onMouseLeave={() => onHover(null)}
      >
        {frame}
        <text class="name" y={4}>
          {box.label}
        </text>
        <title>
          {`the target ${tokenText(trace.target.text)}` +
            (trace.target.versus_text ? ` against ${tokenText(trace.target.versus_text)}` : '')}
        </title>
      </g>
    );
  }
  const open = canReroot(node) && !isRoot;
  const label =
    `${box.name} at ${tokenText(trace.tokens[node.position]?.text ?? '')}, credit ` +
    `${number(credit)}${pinned ? ', pinned' : ''}`;
  return (
    <g
      class={
        `node ${node.kind} ${isRoot ? 'root' : ''} ${dim ? 'dim' : ''} ` +
        `${selected ? 'selected' : ''} ${pinned ? 'pinned' : ''} ${open ? 'open' : ''}`
      }
      transform={`translate(${box.x} ${box.y})`}
      data-node={box.name}
      tabindex={focusable ? 0 : -1}
      role="button"
      aria-pressed={selected}
      aria-label={label}
      onMouseEnter={() => onHover({ node: box.name })}
      onMouseLeave={() => onHover(null)}
      onFocus={(event) =>
        event.currentTarget.matches(':focus-visible') && onHover({ node: box.name })
      }
      onBlur={() => onHover(null)}
      onClick={(event) => (event.shiftKey ? onPin(box.name) : onSelect(box.name))}
      onDblClick={() => open && onReroot(box.name)}
      onKeyDown={(event) => onKey(event, box)}
    >
      {box.ports.map((port) => (
        <g key={port.branch} class={`port ${port.used ? 'used' : ''}`}>
          <rect x={port.x - PORT / 2 - 1} y={BOX / 2 - 1} width={PORT + 2} height={PORT} rx={2} />
          <text x={port.x} y={BOX / 2 + PORT - 3}>
            {port.branch}
          </text>
        </g>
      ))}
      {frame}
      <text class="name" y={4}>
        {box.label}
      </text>
      {pinned && <circle class="pin" cx={box.w / 2 - 1} cy={-BOX / 2 + 1} r={4.5} />}
      <title>
        {`${label}\nclick: look closer; ${open ? 'double click: reroot; ' : ''}Shift-click: ` +
          (pinned ? 'unpin' : 'pin')}
      </title>
    </g>
  );
}
