// Where the boxes and lines of the graph go: tokens along the bottom, layers upward, K, Q and V as
// ports under a box, every edge on a lane and a track of its own so that none runs behind a box. y
// grows downward.
import { parseNode, type Node } from './nodes';
import { TARGET, type Edge } from './routes';

export const BOX = 22,
  PORT = 11,
  PORT_STEP = 15;
const LANE = 6,
  TRACK = 6,
  MARGIN = 12,
  TOKEN_ROOM = 46,
  TOP = 10,
  CELL_GAP = 10;
const STRONG = 80; // edges with lanes of their own; weaker ones share

export interface Point {
  x: number;
  y: number;
}

export interface Port {
  branch: string;
  x: number; // from the box's centre
  used: boolean;
}

export interface Box extends Point {
  name: string; // a node, or TARGET
  node: Node | null; // null: the target
  label: string;
  w: number;
  h: number; // without its ports
  ports: Port[];
}

export interface Line {
  edge: Edge;
  points: Point[];
  width: number;
  thin: boolean; // one of the many weak ones, which share lanes
  crosses: boolean; // from one position to another
}

export interface Column extends Point {
  w: number;
  position: number; // of a fold: its first
  count: number; // 1: a token; more: that many folded
  label: string;
}

export interface Layout {
  width: number;
  height: number;
  tokensY: number; // baseline of the tokens' texts
  floorY: number; // where the graph ends and the tokens begin
  boxes: Map<string, Box>;
  lines: Line[]; // the strongest first
  columns: Column[];
  bands: { layer: number; top: number; bottom: number }[];
}

interface Wanted {
  edges: Edge[]; // heaviest first
  root: string | null;
  labels: string[]; // of the tokens
  targetPosition: number;
  targetLabel: string;
  layers: number;
  unfold: boolean;
}

const FOLD_FROM = 3; // unused tokens in a row that fold
const ALL_TOKENS = 16; // prompts up to this length show every token

export const textWidth = (text: string, size: number): number => {
  let width = 0;
  for (const letter of text)
    width += /[\u1100-\uffdc\u{1f000}-\u{3ffff}]/u.test(letter)
      ? 1
      : /[ijltfr.,·:;'|!()[\]]/.test(letter)
        ? 0.36
        : /[mwMW@%]/.test(letter)
          ? 0.9
          : /[A-Z0-9]/.test(letter)
            ? 0.68
            : 0.58;
  return width * size;
};

interface Span {
  from: number;
  to: number;
  slot: number;
}

// Gives overlapping spans different slots; returns how many that takes.
function assignSlots(spans: Span[], margin: number): number {
  const ends: number[] = [];
  for (const span of [...spans].sort((a, b) => a.from - b.from)) {
    let slot = ends.findIndex((end) => end + margin < span.from);
    if (slot < 0) slot = ends.length;
    ends[slot] = span.to;
    span.slot = slot;
  }
  return ends.length;
}

interface Step {
  edge: Edge;
  from: Box;
  to: Box;
  fromRow: number;
  toRow: number;
  column: number;
  crosses: boolean;
  lane: Span | null;
  jog: Span | null;
  approach: Span | null;
  outX: number;
  inX: number;
  laneX: number;
  thin: boolean;
}

const trunk = (step: Step) => (step.lane ? step.laneX : step.outX);

export function layOut(wanted: Wanted): Layout {
  return new Builder(wanted).build();
}

class Builder {
  private boxes = new Map<string, Box>();
  private columns: Column[] = [];
  private columnOf = new Map<number, number>();
  private rows: number[] = []; // ids of the rows that hold a box, upward
  private rowOfBox = new Map<string, number>();
  private cells = new Map<string, Box[]>(); // "column/row"
  private steps: Step[] = [];
  private halfCell: number[] = [];
  private laneCount = new Map<string, number>();
  private rowY: number[] = [];

  constructor(private w: Wanted) {}

  build(): Layout {
    this.makeBoxes();
    this.makeColumns();
    this.fillCells();
    this.makeSteps();
    this.findLanes();
    const width = this.placeColumns();
    this.placePorts();
    const { height, floorY } = this.placeRows();
    const tokensY = floorY + 20;
    return {
      width,
      height,
      tokensY,
      floorY,
      boxes: this.boxes,
      lines: this.drawLines(),
      columns: this.columns.map((column) => ({ ...column, y: tokensY })),
      bands: this.bands(),
    };
  }

  private rowId(box: Box): number {
    if (!box.node) return 1 + 2 * this.w.layers;
    return box.node.layer < 0 ? 0 : 1 + 2 * box.node.layer + (box.node.kind === 'mlp' ? 1 : 0);
  }

  private makeBoxes(): void {
    const add = (name: string) => {
      if (this.boxes.has(name)) return;
      const node = name === TARGET ? null : parseNode(name);
      const label = node ? node.name : this.w.targetLabel;
      this.boxes.set(name, {
        name,
        node,
        label,
        x: 0,
        y: 0,
        w: Math.max(node && node.layer < 0 ? 34 : 52, textWidth(label, 11) + 16),
        h: BOX,
        ports: [],
      });
    };
    if (this.w.root) add(this.w.root);
    else add(TARGET);
    for (const edge of this.w.edges) {
      add(edge.from);
      add(edge.to);
    }
    // Every head shows its three ports; other boxes the branches that they are read through.
    const used = new Map<string, Set<string>>();
    for (const edge of this.w.edges) {
      if (edge.branch && edge.branch !== 'MLP')
        used.set(edge.to, (used.get(edge.to) ?? new Set()).add(edge.branch));
    }
    for (const box of this.boxes.values()) {
      const seen = used.get(box.name) ?? new Set<string>();
      const letters =
        box.node?.kind === 'head'
          ? ['K', 'Q', 'V']
          : ['G', 'R', 'U'].filter((letter) => seen.has(letter));
      box.ports = letters.map((branch, i) => ({
        branch,
        x: PORT_STEP * (i - (letters.length - 1) / 2),
        used: seen.has(branch),
      }));
    }
  }

  private makeColumns(): void {
    const used = new Set<number>();
    for (const box of this.boxes.values())
      used.add(box.node ? box.node.position : this.w.targetPosition);
    const { labels, unfold } = this.w;
    const token = (position: number) => {
      this.columnOf.set(position, this.columns.length);
      this.columns.push({ position, count: 1, label: labels[position], x: 0, y: 0, w: 0 });
    };
    for (let position = 0; position < labels.length;) {
      let end = position;
      while (end < labels.length && !used.has(end)) ++end;
      if (end - position >= FOLD_FROM && !unfold && labels.length > ALL_TOKENS) {
        this.columns.push({
          position,
          count: end - position,
          label: `+${end - position}`,
          x: 0,
          y: 0,
          w: 0,
        });
        position = end;
      } else {
        token(position++);
      }
    }
  }

  private columnOfBox(box: Box): number {
    return this.columnOf.get(box.node ? box.node.position : this.w.targetPosition) ?? 0;
  }

  private fillCells(): void {
    const ids = new Set([0]);
    for (const box of this.boxes.values()) ids.add(this.rowId(box));
    this.rows = [...ids].sort((a, b) => a - b);
    const order = (box: Box) =>
      box.node ? (box.node.kind === 'pos' ? 1 : Math.max(0, box.node.head)) : 0;
    for (const box of [...this.boxes.values()].sort((a, b) => order(a) - order(b))) {
      const row = this.rows.indexOf(this.rowId(box));
      this.rowOfBox.set(box.name, row);
      const key = `${this.columnOfBox(box)}/${row}`;
      this.cells.set(key, [...(this.cells.get(key) ?? []), box]);
    }
  }

  private makeSteps(): void {
    this.steps = this.w.edges.map((edge, rank) => {
      const from = this.boxes.get(edge.from) as Box,
        to = this.boxes.get(edge.to) as Box;
      return {
        edge,
        from,
        to,
        fromRow: this.rowOfBox.get(edge.from) ?? 0,
        toRow: this.rowOfBox.get(edge.to) ?? 0,
        column: this.columnOfBox(from),
        crosses: this.columnOfBox(from) !== this.columnOfBox(to),
        lane: null,
        jog: null,
        approach: null,
        outX: 0,
        inX: 0,
        laneX: 0,
        thin: rank >= STRONG,
      };
    });
  }

  // A line that would run through boxes of its own column takes a lane beside them: left within a
  // position, right where it leaves. Weak ones share one.
  private findLanes(): void {
    const lanes = new Map<string, Span[]>();
    const shared = new Map<string, Span>();
    for (const step of this.steps) {
      let blocked = false;
      for (let row = step.fromRow + 1; row < step.toRow; ++row)
        blocked ||= this.cells.has(`${step.column}/${row}`);
      if (!blocked) continue;
      const key = `${step.column}/${step.crosses}`;
      const span = { from: step.fromRow + 0.5, to: step.toRow - 0.5, slot: 0 };
      if (step.thin) {
        const lane = shared.get(key) ?? span;
        lane.from = Math.min(lane.from, span.from);
        lane.to = Math.max(lane.to, span.to);
        shared.set(key, lane);
        step.lane = lane;
      } else {
        step.lane = span;
        lanes.set(key, [...(lanes.get(key) ?? []), span]);
      }
    }
    for (const [key, lane] of shared) lanes.set(key, [...(lanes.get(key) ?? []), lane]);
    for (const [key, spans] of lanes) this.laneCount.set(key, assignSlots(spans, 0.1));
  }

  private lanes(column: number, crosses: boolean): number {
    return this.laneCount.get(`${column}/${crosses}`) ?? 0;
  }

  private placeColumns(): number {
    const widths = new Array<number>(this.columns.length).fill(0);
    const cellWidth = (boxes: Box[]) =>
      CELL_GAP * (boxes.length - 1) + boxes.reduce((sum, box) => sum + box.w, 0);
    for (const [key, boxes] of this.cells) {
      const column = Number(key.split('/')[0]);
      widths[column] = Math.max(widths[column], cellWidth(boxes));
    }
    let x = MARGIN;
    this.columns.forEach((column, c) => {
      const left = LANE * this.lanes(c, false),
        right = LANE * this.lanes(c, true);
      const centre = Math.max(
        widths[c],
        column.count > 1 ? 26 : textWidth(column.label, 12.5) + 14,
      );
      column.w = left + centre + right + 14;
      column.x = x + 7 + left + centre / 2;
      this.halfCell.push(widths[c] / 2);
      x += column.w;
    });
    for (const [key, boxes] of this.cells) {
      let at = this.columns[Number(key.split('/')[0])].x - cellWidth(boxes) / 2;
      for (const box of boxes) {
        box.x = at + box.w / 2;
        at += box.w + CELL_GAP;
      }
    }
    for (const step of this.steps) {
      const beside = this.halfCell[step.column] + 6 + LANE * (step.lane?.slot ?? 0);
      step.laneX = this.columns[step.column].x + (step.crosses ? beside : -beside);
    }
    return x + MARGIN;
  }

  private placePorts(): void {
    const leaving = new Map<Box, Step[]>(),
      arriving = new Map<string, Step[]>();
    for (const step of this.steps) {
      leaving.set(step.from, [...(leaving.get(step.from) ?? []), step]);
      const key = `${step.to.name}/${step.edge.branch ?? ''}`;
      arriving.set(key, [...(arriving.get(key) ?? []), step]);
    }
    const spread = (
      steps: Step[],
      centre: number,
      room: number,
      put: (step: Step, x: number) => void,
    ) => {
      const gap = steps.length > 1 ? Math.min(LANE, room / (steps.length - 1)) : 0;
      steps.forEach((step, i) => put(step, centre + gap * (i - (steps.length - 1) / 2)));
    };
    for (const [box, steps] of leaving) {
      const heading = (step: Step) => (step.lane ? step.laneX : step.to.x);
      steps.sort((a, b) => heading(a) - heading(b));
      spread(steps, box.x, box.w - 16, (step, x) => (step.outX = x));
    }
    for (const steps of arriving.values()) {
      const { to, edge } = steps[0];
      const port = to.ports.find((each) => each.branch === edge.branch);
      steps.sort((a, b) => trunk(a) - trunk(b));
      spread(
        steps,
        to.x + (port?.x ?? 0),
        port ? PORT - 4 : to.w - 16,
        (step, x) => (step.inX = x),
      );
    }
  }

  // Horizontal stretches run in the gaps between rows, each on a track of its own; weak ones share
  // one.
  private placeRows(): { height: number; floorY: number } {
    const gaps: Span[][] = this.rows.slice(1).map(() => []);
    const shared = new Map<number, Span>();
    const stretch = (step: Step, a: number, b: number, gap: number): Span | null => {
      if (Math.abs(a - b) < 0.5) return null;
      const span = { from: Math.min(a, b), to: Math.max(a, b), slot: 0 };
      if (!step.thin) {
        gaps[gap].push(span);
        return span;
      }
      const common = shared.get(gap) ?? span;
      common.from = Math.min(common.from, span.from);
      common.to = Math.max(common.to, span.to);
      if (!shared.has(gap)) gaps[gap].push(common);
      shared.set(gap, common);
      return common;
    };
    for (const step of this.steps) {
      if (step.lane) step.jog = stretch(step, step.outX, step.laneX, step.fromRow);
      step.approach = stretch(step, trunk(step), step.inX, step.toRow - 1);
    }
    const ports = this.rows.map((_, row) =>
      [...this.boxes.values()].some(
        (box) => this.rowOfBox.get(box.name) === row && box.ports.length > 0,
      ),
    );
    const above = gaps.map(
      (spans, gap) =>
        Math.max(16, 12 + TRACK * assignSlots(spans, 4)) + (ports[gap + 1] ? PORT : 0),
    );
    const total = above.reduce((sum, x) => sum + x, 0) + BOX * this.rows.length;
    const height = TOP + total + TOKEN_ROOM;
    let y = TOP + total;
    this.rows.forEach((_, row) => {
      this.rowY.push(y - BOX / 2);
      y -= BOX + (above[row] ?? 0);
    });
    for (const box of this.boxes.values()) box.y = this.rowY[this.rowOfBox.get(box.name) ?? 0];
    return { height, floorY: TOP + total };
  }

  private drawLines(): Line[] {
    const heaviest = this.w.edges[0]?.mass || 1;
    return this.steps.map((step) => {
      const start = step.from.y - BOX / 2;
      const end =
        step.to.y +
        BOX / 2 +
        (step.to.ports.some((port) => port.branch === step.edge.branch) ? PORT : 0);
      const points: Point[] = [{ x: step.outX, y: start }];
      let x = step.outX;
      if (step.lane) {
        const jog = start - 7 - TRACK * (step.jog?.slot ?? 0);
        points.push({ x, y: jog }, { x: step.laneX, y: jog });
        x = step.laneX;
      }
      if (Math.abs(x - step.inX) >= 0.5) {
        const approach =
          this.rowY[step.toRow - 1] - BOX / 2 - 7 - TRACK * (step.approach?.slot ?? 0);
        points.push({ x, y: approach }, { x: step.inX, y: approach });
      }
      points.push({ x: step.inX, y: end });
      return {
        edge: step.edge,
        points,
        width: step.thin ? 0.9 : Math.max(1.1, 5 * Math.sqrt(step.edge.mass / heaviest)),
        thin: step.thin,
        crosses: step.crosses,
      };
    });
  }

  private bands(): Layout['bands'] {
    const bands: Layout['bands'] = [];
    this.rows.forEach((id, row) => {
      if (id === 0 || id > 2 * this.w.layers) return;
      const layer = Math.floor((id - 1) / 2);
      const ported = [...this.boxes.values()].some(
        (box) => this.rowOfBox.get(box.name) === row && box.ports.length > 0,
      );
      const top = this.rowY[row] - BOX / 2 - 4,
        bottom = this.rowY[row] + BOX / 2 + 4 + (ported ? PORT : 0);
      const last = bands.at(-1);
      if (last?.layer === layer) last.top = top;
      else bands.push({ layer, top, bottom });
    });
    return bands;
  }
}

// An SVG path with rounded corners.
export function pathData(points: Point[], radius = 5): string {
  const short = (x: number) => Math.round(x * 10) / 10;
  let d = `M${short(points[0].x)} ${short(points[0].y)}`;
  for (let i = 1; i + 1 < points.length; ++i) {
    const [a, b, c] = [points[i - 1], points[i], points[i + 1]];
    const before = Math.hypot(b.x - a.x, b.y - a.y),
      after = Math.hypot(c.x - b.x, c.y - b.y);
    const r = Math.min(radius, before / 2, after / 2);
    if (!(r > 0.2)) {
      d += `L${short(b.x)} ${short(b.y)}`;
      continue;
    }
    d +=
      `L${short(b.x + ((a.x - b.x) * r) / before)} ` +
      `${short(b.y + ((a.y - b.y) * r) / before)}Q${short(b.x)} ${short(b.y)} ` +
      `${short(b.x + ((c.x - b.x) * r) / after)} ${short(b.y + ((c.y - b.y) * r) / after)}`;
  }
  const last = points[points.length - 1];
  return `${d}L${short(last.x)} ${short(last.y)}`;
}

// The box that an arrow key leads to: the nearest in that direction, sideways steps counted double.
export function neighbour(layout: Layout, from: string, key: string): string | null {
  const here = layout.boxes.get(from);
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  if (!here || !step) return null;
  let best: string | null = null;
  let least = Infinity;
  for (const box of layout.boxes.values()) {
    const dx = box.x - here.x,
      dy = box.y - here.y;
    const along = dx * step[0] + dy * step[1];
    const across = Math.abs(dx * step[1]) + Math.abs(dy * step[0]);
    if (box.node && along > 1 && along + 2 * across < least) {
      least = along + 2 * across;
      best = box.name;
    }
  }
  return best;
}
