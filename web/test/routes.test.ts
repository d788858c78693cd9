import { describe, expect, it } from 'vitest';
import {
  choose,
  collectEdges,
  edgeText,
  grossShare,
  routesAt,
  sharesMislead,
  sliderAt,
  touched,
} from '../src/routes';
import { carriedBy } from '../src/Circuit';
import type { Path } from '../src/types';

const path = (nodes: string[], credit: number): Path => ({
  nodes,
  branches: nodes.map(() => null),
  credit,
  percent: 0,
  text: nodes.join(' -> '),
});
const paths = [
  path(['emb@1', 'MLP0@1'], 4),
  path(['emb@0', 'MLP0@1'], -3),
  path(['emb@2', 'A0.H0@2'], 2),
  path(['emb@2', 'MLP0@2', 'A1.H0@2'], 0.1),
];
const coverage = { paths: 4, absolute: 9.1, absolute_matching: 9.1, absolute_total: 20 };
const all = { count: 500, threshold: 0, skipFirst: false };

describe('routes', () => {
  it('count from 5 to 500 on a logarithmic slider', () => {
    expect([routesAt(0), routesAt(50), routesAt(100)]).toEqual([5, 50, 500]);
    for (const routes of [5, 12, 60, 500]) expect(routesAt(sliderAt(routes))).toBe(routes);
  });
  it('carry a share of the net, signs included, and of the gross mass', () => {
    const shown = choose(paths, 5, { ...all, count: 2 });
    expect([shown.net, shown.gross, shown.routes.length]).toEqual([1, 7, 2]);
    expect(grossShare(shown.gross, coverage)).toBeCloseTo(0.35);
    expect(sharesMislead(shown, coverage)).toBe(false);
    expect(sharesMislead(choose(paths, -1, all), coverage)).toBe(true);
    expect(sharesMislead(choose(paths, 0.001, all), coverage)).toBe(true);
    expect(sharesMislead({ ...shown, net: -6, total: 5 }, coverage)).toBe(true);
    expect(sharesMislead({ ...shown, net: 11, total: 5 }, coverage)).toBe(true);
  });
  it('under the threshold are hidden, and those of the first token where it is left out', () => {
    expect(choose(paths, 5, { ...all, threshold: 5 }).routes).toHaveLength(3);
    expect(
      choose(paths, 5, { ...all, skipFirst: true }).routes.map((route) => route.credit),
    ).toEqual([4, 2, 0.1]);
  });
  it('add up on shared edges, the heaviest first', () => {
    const edges = collectEdges(paths, false);
    expect(edges[0]).toMatchObject({
      from: 'MLP0@1',
      to: 'target',
      credit: 1,
      mass: 7,
      routes: [0, 1],
    });
    expect(edgeText(edges[0])).toBe('MLP0@1 -> target');
  });
  it('light up by token, node and edge', () => {
    const edges = collectEdges(paths, false);
    expect([...touched({ token: 2 }, paths, edges)!]).toEqual([2, 3]);
    expect([...touched({ node: 'MLP0@1' }, paths, edges)!]).toEqual([0, 1]);
    expect([...touched({ edge: edges[0].key }, paths, edges)!]).toEqual([0, 1]);
    expect(touched(null, paths, edges)).toBeNull();
  });
  it('are a circuit’s where all their components are pinned', () => {
    expect(carriedBy(['MLP0@1'], paths, true)).toBe(1);
    expect(carriedBy(['A1.H0@2'], paths, true)).toBe(0);
    expect(carriedBy(['A1.H0@2'], paths, false)).toBeCloseTo(0.1);
  });
});
