import { describe, expect, it } from 'vitest';
import { collectEdges, holding, pathEdges, shares, touched } from '../src/paths';
import type { Coverage, Path } from '../src/types';

const path = (nodes: string[], branches: (string | null)[], credit: number): Path => ({ nodes, branches, credit, percent: 0, text: nodes.join(' ') });
const paths = [
  path(['emb@1', 'MLP0@1', 'A2.H3@4'], [null, null, 'V'], 4),
  path(['emb@1', 'A2.H3@4'], [null, 'V'], -3),
  path(['pos@2', 'A2.H3@4'], [null, 'K'], 2),
  path(['emb@4'], [null], 1),
];
const coverage: Coverage = { paths: 4, absolute: 10, absolute_matching: 16, absolute_total: 20 };

describe('the slider', () => {
  it('shows the fewest paths that hold the asked share of what matches', () => {
    expect(holding(paths, coverage, 25).paths).toHaveLength(1); // 4 of 16
    expect(holding(paths, coverage, 26).paths).toHaveLength(2);
    expect(holding(paths, coverage, 43.75).absolute).toBe(7);
  });
  it('says when even the whole list does not hold that much', () => {
    expect(holding(paths, coverage, 62).reached).toBe(true); // 9.92 of the 10 that are listed
    expect(holding(paths, coverage, 63).reached).toBe(false);
  });
  it('shows a few of the strongest when nothing was asked for', () => {
    const many = Array.from({ length: 50 }, (_, i) => path([`emb@${i}`], [null], 1));
    expect(holding(many, coverage, null).paths).toHaveLength(30);
  });
});

describe('the shares of the mass', () => {
  it('add up to everything: shown, unlisted, filtered out', () => {
    expect(shares(7, coverage)).toEqual({ shown: 35, unlisted: 45, filteredOut: 20 });
  });
  it('are zero where there is no mass', () => {
    expect(shares(0, { ...coverage, absolute_total: 0 })).toEqual({ shown: 0, unlisted: 0, filteredOut: 0 });
  });
});

describe('edges', () => {
  it('carry the branch of the reader and end at the target', () => {
    expect(pathEdges(paths[0], false).map((edge) => [edge.from, edge.to, edge.branch])).toEqual([
      ['emb@1', 'MLP0@1', null], ['MLP0@1', 'A2.H3@4', 'V'], ['A2.H3@4', 'target', null],
    ]);
  });
  it('end at the root itself when rerooted', () => {
    expect(pathEdges(paths[1], true)).toHaveLength(1);
  });
  it('add signed credit and mass over the paths they share, the heaviest last', () => {
    const edges = collectEdges(paths, false);
    const last = edges[edges.length - 1];
    expect([last.from, last.to, last.credit, last.mass, last.paths]).toEqual(['A2.H3@4', 'target', 3, 9, [0, 1, 2]]);
  });
  it('of two branches between the same nodes stay apart', () => {
    const two = [path(['emb@1', 'A2.H3@4'], [null, 'V'], 1), path(['emb@1', 'A2.H3@4'], [null, 'K'], 1)];
    expect(collectEdges(two, true)).toHaveLength(2);
  });
});

describe('hovering', () => {
  const edges = collectEdges(paths, false);
  it('a token touches the paths that start there', () => expect(touched({ token: 1 }, paths, edges)).toEqual(new Set([0, 1])));
  it('a node touches the paths through it', () => expect(touched({ node: 'MLP0@1' }, paths, edges)).toEqual(new Set([0])));
  it('an edge touches its paths', () => expect(touched({ edge: 'pos@2>A2.H3@4:K' }, paths, edges)).toEqual(new Set([2])));
  it('nothing touches nothing in particular', () => expect(touched(null, paths, edges)).toBeNull());
});
