import { describe, expect, it } from 'vitest';
import { curve, layOut, neighbour, placeLabels } from '../src/layout';
import { collectEdges } from '../src/paths';
import type { Path } from '../src/types';

const path = (nodes: string[], branches: (string | null)[], credit = 1): Path => ({ nodes, branches, credit, percent: 0, text: '' });
const paths = [
  path(['emb@1', 'MLP0@1', 'A2.H3@4'], [null, null, 'V']),
  path(['pos@1', 'A2.H5@4'], [null, 'K']),
  path(['emb@1', 'A0.H0@4', 'MLP2@4'], [null, 'Q', null]),
];
const wanted = { edges: collectEdges(paths, false), root: null, length: 6, layers: 3, targetPosition: 5, available: 900 };
const layout = layOut(wanted);
const at = (name: string) => layout.nodes.get(name)!;

describe('the graph', () => {
  it('puts tokens across in order', () => {
    const xs = layout.columns.map((column) => column.x);
    expect([...xs].sort((a, b) => a - b)).toEqual(xs);
    expect(xs).toHaveLength(6);
  });
  it('puts layers upward, the MLP of a layer above its heads', () => {
    expect(at('emb@1').y).toBeGreaterThan(at('A0.H0@4').y);
    expect(at('A0.H0@4').y).toBeGreaterThan(at('MLP0@1').y);
    expect(at('MLP0@1').y).toBeGreaterThan(at('A2.H3@4').y);
    expect(at('A2.H3@4').y).toBeGreaterThan(at('MLP2@4').y);
    expect(at('MLP2@4').y).toBeGreaterThan(layout.target!.y);
  });
  it('lets no two nodes of one cell overlap', () => expect(at('A2.H5@4').x - at('A2.H3@4').x).toBeGreaterThanOrEqual(30));
  it('fills the room there is and scrolls where there is too little', () => {
    expect(layout.width).toBeCloseTo(900, 0);
    expect(layOut({ ...wanted, available: 50 }).width).toBeGreaterThan(200);
  });
  it('has no layer above a root and no target', () => {
    const rooted = layOut({ ...wanted, edges: [], root: 'A1.H0@2' });
    expect(rooted.layers.map((band) => band.layer)).toEqual([0, 1]);
    expect(rooted.target).toBeNull();
    expect(rooted.nodes.has('A1.H0@2')).toBe(true);
  });
});

describe('edges', () => {
  it('come in at the side of their branch', () => {
    const [from, to] = [{ x: 0, y: 100 }, { x: 50, y: 0 }];
    expect(curve(from, to, 'K').at(1).x).toBeLessThan(curve(from, to, 'Q').at(1).x);
    expect(curve(from, to, 'Q').at(1).x).toBeLessThan(curve(from, to, 'V').at(1).x);
    expect(curve(from, to, 'V').at(0).x).toBe(0);
  });
  it('carry letters that do not lie on each other', () => {
    const crowd = Array.from({ length: 40 }, (_, i) => path([`emb@${i % 6}`, 'A2.H3@5'], [null, 'KQV'[i % 3]], 1 + i));
    const edges = collectEdges(crowd, false);
    const crowded = layOut({ ...wanted, edges });
    const labels = placeLabels(crowded, edges);
    expect(labels.length).toBeGreaterThan(5);
    labels.forEach((a, i) => labels.slice(i + 1).forEach((b) => expect(Math.hypot(a.x - b.x, a.y - b.y)).toBeGreaterThanOrEqual(10)));
  });
});

describe('arrow keys', () => {
  it('lead to the nearest node in their direction', () => {
    expect(neighbour(layout, 'A2.H3@4', 'ArrowRight')).toBe('A2.H5@4');
    expect(neighbour(layout, 'emb@1', 'ArrowUp')).toBe('MLP0@1');
  });
  it('lead nowhere at the border', () => expect(neighbour(layout, 'emb@1', 'ArrowDown')).toBeNull());
});
