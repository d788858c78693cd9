import { documentsOf } from '../src/Sources';
import { describe, expect, it } from 'vitest';
import { align } from '../src/align';
import { number, percent, signed, tokenText } from '../src/format';
import { layerStarts, makeGrid } from '../src/heat';
import { componentNames, parseComponent, parseNode } from '../src/nodes';
import type { Token } from '../src/types';

const tokens = (ids: number[]): Token[] =>
  ids.map((id, position) => ({ id, position, text: `t${id}` }));

describe('two prompts', () => {
  it('pair equal tokens around one that was put in', () => {
    expect(align(tokens([1, 2, 3]), tokens([1, 9, 2, 3]))).toEqual([
      { left: 0, right: 0 },
      { left: null, right: 1 },
      { left: 1, right: 2 },
      { left: 2, right: 3 },
    ]);
  });
  it('set replaced tokens against each other', () =>
    expect(align(tokens([1, 2, 3]), tokens([1, 8, 3]))[1]).toEqual({ left: 1, right: 1 }));
  it('keep every token exactly once', () => {
    const pairs = align(tokens([5, 1, 5, 2, 7]), tokens([1, 5, 5, 7, 2, 4]));
    expect(pairs.flatMap((pair) => (pair.left === null ? [] : [pair.left]))).toEqual([
      0, 1, 2, 3, 4,
    ]);
    expect(pairs.flatMap((pair) => (pair.right === null ? [] : [pair.right]))).toEqual([
      0, 1, 2, 3, 4, 5,
    ]);
  });
});

describe('names', () => {
  it('are read as the engine writes them', () => {
    expect(parseNode('A11.H7@130')).toEqual({
      name: 'A11.H7',
      kind: 'head',
      layer: 11,
      head: 7,
      position: 130,
    });
    expect(parseComponent('MLP3').kind).toBe('mlp');
    expect(() => parseNode('A1.H2')).toThrow();
    expect(() => parseComponent('target')).toThrow();
  });
  it('stand in canonical order', () => {
    expect(componentNames(2, 2, true)).toEqual([
      'emb',
      'pos',
      'A0.H0',
      'A0.H1',
      'MLP0',
      'A1.H0',
      'A1.H1',
      'MLP1',
    ]);
    expect(componentNames(1, 1, false)[0]).toBe('emb');
    expect(componentNames(1, 1, false)).not.toContain('pos');
  });
});

describe('numbers', () => {
  it('are short and keep their sign', () => {
    expect([
      number(0),
      number(1.5),
      number(-0.04251),
      number(1234.5),
      number(0.00001234),
      number(100),
    ]).toEqual(['0', '1.5', '−0.0425', '1235', '1.23e-5', '100']);
    expect([signed(2), signed(-2), signed(0)]).toEqual(['+2', '−2', '0']);
  });
  it('as percent never pretend to be nothing', () =>
    expect([percent(0), percent(0.001), percent(-0.05), percent(12.34), percent(100)]).toEqual([
      '0%',
      '≈0%',
      '−0.05%',
      '12.3%',
      '100%',
    ]));
});

describe('tokens', () => {
  it('show what would be invisible', () =>
    expect([tokenText('\n'), tokenText(''), tokenText(' a'), tokenText('\u0007')]).toEqual([
      '⏎',
      '∅',
      '·a',
      '\\u0007',
    ]));
});

describe('the heatmap', () => {
  const list = [
    { reader: 'A1.H0', writer: 'emb', score: 1 },
    { reader: 'A1.H0', writer: 'A0.H1', score: 4 },
    { reader: 'A1.H0', writer: 'MLP0', score: 2 },
    { reader: 'A0.H1', writer: 'emb', score: 3 },
    { reader: 'A0.H1', writer: 'pos', score: 0.5 },
    { reader: 'A1.H0', writer: 'A0.H0', score: 0.1 },
  ];
  it('orders both sides canonically and leaves holes where nothing is read', () => {
    const grid = makeGrid(list, { reader: null, writer: null });
    expect(grid.readers).toEqual(['A0.H1', 'A1.H0']);
    expect(grid.writers).toEqual(['emb', 'pos', 'A0.H0', 'A0.H1', 'MLP0']);
    expect(grid.scores[0]).toBe(3);
    expect(grid.scores[3]).toBeNaN();
    expect(grid.largest).toBe(4);
  });
  it('zooms to a layer on both sides', () => {
    const grid = makeGrid(list, { reader: 1, writer: 0 });
    expect([grid.readers, grid.writers]).toEqual([['A1.H0'], ['A0.H0', 'A0.H1', 'MLP0']]);
  });
  it('knows where layers start', () =>
    expect(layerStarts(['emb', 'pos', 'A0.H0', 'MLP0', 'A1.H0'])).toEqual([
      { index: 0, layer: -1 },
      { index: 2, layer: 0 },
      { index: 4, layer: 1 },
    ]));
});

describe('documents', () => {
  it('are parted by empty lines and named by their first', () =>
    expect(documentsOf('# a\nOne.\nTwo.\n\n\n Three. \n\n#\n')).toEqual([
      { name: 'a', text: 'One.\nTwo.' },
      { name: 'document 2', text: 'Three.' },
      { name: 'document 3', text: '#' },
    ]));
});
