import { describe, expect, it } from 'vitest';
import { BOX, PORT, layOut, neighbour, pathData, type Layout } from '../src/graph_layout';
import { collectEdges } from '../src/routes';
import type { Path } from '../src/types';

const path = (nodes: string[], branches: (string | null)[], credit = 1): Path => ({
  nodes,
  branches,
  credit,
  percent: 0,
  text: nodes.join(' '),
});
const labels = (count: number) => Array.from({ length: count }, (_, i) => `·t${i}`);
const build = (paths: Path[], count: number, more = {}): Layout =>
  layOut({
    edges: collectEdges(paths, false),
    root: null,
    labels: labels(count),
    targetPosition: count - 1,
    targetLabel: '·x',
    layers: 4,
    unfold: false,
    ...more,
  });

const paths = [
  path(['emb@1', 'MLP0@1', 'A2.H3@4'], [null, null, 'V']),
  path(['pos@1', 'A2.H5@4'], [null, 'K']),
  path(['emb@1', 'A0.H0@4', 'MLP2@4'], [null, 'Q', null]),
  path(['emb@4', 'MLP0@4', 'MLP1@4', 'A3.H1@4'], [null, null, null, 'Q']),
];
const layout = build(paths, 6);

// Horizontal and vertical stretches of a line against the insides of boxes that it neither leaves
// nor enters.
function crossings(of: Layout): string[] {
  const found: string[] = [];
  for (const line of of.lines) {
    for (let i = 0; i + 1 < line.points.length; ++i) {
      const [a, b] = [line.points[i], line.points[i + 1]];
      for (const box of of.boxes.values()) {
        const bottom = box.y + BOX / 2 + (box.ports.length ? PORT : 0);
        const inside =
          Math.max(a.x, b.x) > box.x - box.w / 2 + 0.5 &&
          Math.min(a.x, b.x) < box.x + box.w / 2 - 0.5 &&
          Math.max(a.y, b.y) > box.y - BOX / 2 + 0.5 &&
          Math.min(a.y, b.y) < bottom - 0.5;
        if (inside && box.name !== line.edge.from && box.name !== line.edge.to)
          found.push(`${line.edge.key} behind ${box.name}`);
      }
    }
  }
  return found;
}

describe('the graph', () => {
  it('puts tokens across in order', () => {
    const xs = layout.columns.map((column) => column.x);
    expect([...xs].sort((a, b) => a - b)).toEqual(xs);
    expect(xs).toHaveLength(6);
  });
  it('puts layers upward and the target on top', () => {
    const y = (name: string) => layout.boxes.get(name)!.y;
    expect(y('emb@1')).toBeGreaterThan(y('MLP0@1'));
    expect(y('MLP0@1')).toBeGreaterThan(y('A2.H3@4'));
    expect(y('A2.H3@4')).toBeGreaterThan(y('MLP2@4'));
    expect(y('A3.H1@4')).toBeGreaterThan(y('target'));
  });
  it('gives heads the ports K, Q and V and says which are used', () => {
    expect(layout.boxes.get('A2.H3@4')!.ports.map((port) => [port.branch, port.used])).toEqual([
      ['K', false],
      ['Q', false],
      ['V', true],
    ]);
    expect(layout.boxes.get('MLP0@1')!.ports).toEqual([]);
  });
  it('shows the branches of gated MLPs and mixtures where there are any', () => {
    const mixed = build(
      [path(['emb@1', 'MLP1@1'], [null, 'R']), path(['emb@1', 'MLP1@1'], [null, 'U'])],
      3,
    );
    expect(mixed.boxes.get('MLP1@1')!.ports.map((port) => port.branch)).toEqual(['R', 'U']);
  });
  it('ends a line at the port of its branch', () => {
    const line = layout.lines.find((each) => each.edge.branch === 'V')!;
    const box = layout.boxes.get('A2.H3@4')!;
    const end = line.points.at(-1)!;
    expect(Math.abs(end.x - (box.x + box.ports[2].x))).toBeLessThan(6);
    expect(end.y).toBe(box.y + BOX / 2 + PORT);
  });
  it('draws no line behind a box', () => {
    expect(crossings(layout)).toEqual([]);
    // Many routes of a made-up model, strong and weak.
    let seed = 7;
    const random = (below: number) => (seed = (seed * 48271) % 2147483647) % below;
    const many: Path[] = [];
    for (let n = 0; n < 300; ++n) {
      const nodes = [`emb@${random(12)}`],
        branches: (string | null)[] = [null];
      for (let layer = 0; layer < 4; ++layer) {
        const here = Number(nodes.at(-1)!.split('@')[1]);
        if (random(2)) {
          const to = Math.min(11, here + random(3));
          nodes.push(`A${layer}.H${random(6)}@${to}`);
          branches.push(to === here ? 'Q' : ['K', 'V'][random(2)]);
        } else if (random(2)) {
          nodes.push(`MLP${layer}@${here}`);
          branches.push(null);
        }
      }
      if (Number(nodes.at(-1)!.split('@')[1]) === 11) many.push(path(nodes, branches, 1 / (n + 1)));
    }
    const large = build(many, 12);
    expect(large.lines.length).toBeGreaterThan(90);
    expect(crossings(large)).toEqual([]);
  });
  it('folds tokens that no route touches, in long prompts', () => {
    const long = build([path(['emb@3', 'A1.H0@29'], [null, 'V'])], 30);
    expect(long.columns.map((column) => column.count)).toEqual([3, 1, 25, 1]);
    expect(
      build([path(['emb@3', 'A1.H0@29'], [null, 'V'])], 30, { unfold: true }).columns,
    ).toHaveLength(30);
  });
  it('leads arrow keys to the nearest box', () => {
    expect(neighbour(layout, 'emb@1', 'ArrowUp')).toBe('MLP0@1');
    expect(neighbour(layout, 'MLP0@1', 'ArrowDown')).toMatch(/^(emb|pos)@1$/);
    expect(neighbour(layout, 'emb@1', 'ArrowLeft')).toBeNull();
  });
  it('rounds the corners of lines', () =>
    expect(
      pathData([
        { x: 0, y: 0 },
        { x: 0, y: 20 },
        { x: 30, y: 20 },
      ]),
    ).toBe('M0 0L0 15Q0 20 5 20L30 20'));
});
