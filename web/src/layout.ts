// Where things stand in the graph: tokens across, layers upward, a row for the heads and one for the MLP of every layer.
import { parseNode, type Node } from './nodes';
import { TARGET, type Edge } from './paths';

export const NODE = 30; // room for one node
const ROW = 40;
const EMPTY_ROW = 9;
const AXIS = 34;
const FOOT = 26;
const HEAD = 34;

export interface Placed extends Node {
  text: string;
  x: number;
  y: number;
}

export interface Column {
  position: number;
  x: number; // centre
  width: number;
}

export interface Layout {
  width: number;
  height: number;
  nodes: Map<string, Placed>;
  columns: Column[];
  layers: { layer: number; y: number; top: number; bottom: number; empty: boolean }[];
  target: { x: number; y: number } | null;
  tokensY: number;
}

interface Wanted {
  edges: Edge[];
  root: string | null;
  length: number;
  layers: number;
  targetPosition: number;
  available: number; // pixels; the graph may be wider and then scrolls
}

const slot = (node: Node) => (node.kind === 'head' ? node.head : node.kind === 'pos' ? 1 : 0);
const rowOf = (node: Node) => (node.layer < 0 ? 0 : 1 + 2 * node.layer + (node.kind === 'mlp' ? 1 : 0));

export function layOut({ edges, root, length, layers: all, targetPosition, available }: Wanted): Layout {
  const layers = root ? parseNode(root).layer + 1 : all; // nothing above a root is ever reached
  const names = new Set<string>(root ? [root] : []);
  for (const edge of edges) {
    names.add(edge.from);
    if (edge.to !== TARGET) names.add(edge.to);
  }
  const cells = new Map<string, Node[]>();
  const used = new Array<boolean>(1 + 2 * layers).fill(false);
  used[0] = true;
  for (const name of names) {
    const node = parseNode(name);
    const key = `${rowOf(node)}/${node.position}`;
    cells.set(key, [...(cells.get(key) ?? []), node]);
    used[rowOf(node)] = true;
  }

  const widest = new Array<number>(length).fill(0);
  for (const [key, nodes] of cells) {
    const position = Number(key.split('/')[1]);
    widest[position] = Math.max(widest[position], nodes.length);
  }
  // A token that no path touches needs no more than its label; few tokens spread over the room there is.
  const narrow = length > 40 ? 16 : 34;
  const wanted = widest.map((count) => Math.max(narrow, count * NODE + 8));
  const total = wanted.reduce((sum, width) => sum + width, 0);
  const stretch = Math.max(1, (available - AXIS - 8) / total);
  const columns: Column[] = [];
  let x = AXIS;
  for (let position = 0; position < length; ++position) {
    const width = wanted[position] * stretch;
    columns.push({ position, x: x + width / 2, width });
    x += width;
  }

  const heights = used.map((any) => (any ? ROW : EMPTY_ROW));
  const height = HEAD + FOOT + heights.reduce((sum, value) => sum + value, 0);
  const rows: number[] = [];
  let bottom = height - FOOT;
  heights.forEach((value, row) => {
    rows[row] = bottom - value / 2;
    bottom -= value;
  });

  const nodes = new Map<string, Placed>();
  for (const cell of cells.values()) {
    cell.sort((a, b) => slot(a) - slot(b));
    const column = columns[cell[0].position];
    const gap = Math.min(NODE + 6, (column.width - 4) / cell.length);
    cell.forEach((node, index) => {
      const text = `${node.name}@${node.position}`;
      nodes.set(text, { ...node, text, x: column.x + (index - (cell.length - 1) / 2) * gap, y: rows[rowOf(node)] });
    });
  }
  return {
    width: x + 8,
    height,
    nodes,
    columns,
    layers: Array.from({ length: layers }, (_, layer) => {
      const low = 1 + 2 * layer;
      return {
        layer, y: (rows[low] + rows[low + 1]) / 2, top: rows[low + 1] - heights[low + 1] / 2, bottom: rows[low] + heights[low] / 2, empty: !used[low] && !used[low + 1],
      };
    }),
    target: root ? null : { x: columns[targetPosition]?.x ?? 0, y: HEAD / 2 + 2 },
    tokensY: height - FOOT / 2,
  };
}

const PORTS: Record<string, number> = { K: -7, Q: 0, V: 7, G: -6, U: 6 };

interface Point {
  x: number;
  y: number;
}

// From the writer up to the reader; K, Q and V come in side by side. `at` gives points along it, 0 at the writer and 1 at the reader.
export function curve(from: Point, to: Point, branch: string | null): { d: string; at: (t: number) => Point } {
  const port = branch ? (PORTS[branch] ?? 0) : 0;
  const x0 = from.x, y0 = from.y - 10, x1 = to.x + port, y1 = to.y + 11;
  const bend = Math.max(14, (y0 - y1) * 0.5);
  const mix = (t: number, a: number, b: number, c: number, d: number) => (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t ** 2 * c + t ** 3 * d;
  const short = (v: number) => Math.round(v * 10) / 10;
  return {
    d: `M${short(x0)} ${short(y0)}C${short(x0)} ${short(y0 - bend)} ${short(x1)} ${short(y1 + bend)} ${short(x1)} ${short(y1)}`,
    at: (t) => ({ x: mix(t, x0, x0, x1, x1), y: mix(t, y0, y0 - bend, y1 + bend, y1) }),
  };
}

export interface Label extends Point {
  key: string;
  text: string;
  negative: boolean;
}

const LABEL_ROOM = 10;

// The letters of the branches, the heaviest edges first, each at the first spot along its edge that is still free of letters and nodes; without one it is left out.
export function placeLabels(layout: Layout, edges: Edge[]): Label[] {
  const taken: Point[] = [...layout.nodes.values()];
  const labels: Label[] = [];
  for (const edge of [...edges].reverse()) {
    const from = layout.nodes.get(edge.from), to = layout.nodes.get(edge.to);
    if (!edge.branch || !from || !to) continue;
    const line = curve(from, to, edge.branch);
    for (let t = 0.92; t > 0.3; t -= 0.06) {
      const spot = line.at(t);
      if (taken.some((other, index) => Math.hypot(other.x - spot.x, other.y - spot.y) < (index < layout.nodes.size ? 20 : LABEL_ROOM))) continue;
      taken.push(spot);
      labels.push({ ...spot, key: edge.key, text: edge.branch, negative: edge.credit < 0 });
      break;
    }
  }
  return labels;
}

// The node that an arrow key leads to: the nearest in that direction, sideways steps counted double.
export function neighbour(layout: Layout, from: string, key: string): string | null {
  const here = layout.nodes.get(from);
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  if (!here || !step) return null;
  let best: string | null = null;
  let least = Infinity;
  for (const node of layout.nodes.values()) {
    const dx = node.x - here.x, dy = node.y - here.y;
    const along = dx * step[0] + dy * step[1];
    const across = Math.abs(dx * step[1]) + Math.abs(dy * step[0]);
    if (along > 1 && along + 2 * across < least) {
      least = along + 2 * across;
      best = node.text;
    }
  }
  return best;
}
