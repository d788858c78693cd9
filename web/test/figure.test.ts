import { describe, expect, it } from 'vitest';
import { slug, toCsv } from '../src/exports';
import { mix, toSvg, toTikz, type Figure } from '../src/figure';
import { gridFigure } from '../src/grid_figure';

const figure: Figure = {
  title: 'a < b',
  width: 100,
  height: 50,
  items: [
    { kind: 'rect', x: 1, y: 2, w: 3, h: 4, fill: '#ffffff' },
    {
      kind: 'line',
      points: [
        { x: 0, y: 0 },
        { x: 0, y: 20 },
        { x: 20, y: 20 },
      ],
      stroke: '#0a6ebd',
      width: 2,
      dashed: true,
    },
    { kind: 'text', x: 5, y: 6, text: '50% & <b> _x', size: 12 },
  ],
};

describe('a figure', () => {
  it('is one file on white, with its texts escaped', () => {
    const svg = toSvg(figure);
    expect(svg).toContain('<rect width="100" height="50" fill="#ffffff"/>');
    expect(svg).toContain('50% &amp; &lt;b&gt; _x');
    expect(svg).toContain('stroke-dasharray');
    expect(svg).not.toMatch(/https?:\/\/(?!www\.w3\.org)/);
  });
  it('is LaTeX with its texts escaped', () => {
    const tikz = toTikz(figure);
    expect(tikz).toContain('50\\% \\& $<$b$>$ \\_x');
    expect(tikz).toContain('\\definecolor{c0}{HTML}{FFFFFF}');
    expect(tikz).toContain('rounded corners=2.4pt');
    expect(tikz).not.toContain('standalone');
  });
  it('of a table has a cell for every value', () => {
    const grid = gridFigure({
      title: 't',
      subtitle: 's',
      columns: ['a', 'b'],
      rows: [
        {
          label: 'r',
          cells: [
            { text: '1', share: 1 },
            { text: '-1', share: -1 },
          ],
        },
      ],
      legend: 'l',
    });
    expect(grid.items.filter((item) => item.kind === 'rect')).toHaveLength(2);
  });
  it('mixes colours', () => expect(mix('#000000', '#ffffff', 0.5)).toBe('#808080'));
});

describe('files', () => {
  it('are named after the question', () =>
    expect(slug('Why ·Mary rather than ·John?')).toBe('why-mary-rather-than-john'));
  it('of tables quote what would break them, and what a spreadsheet would run', () =>
    expect(toCsv([['a,b', '=1+1', 2, 'say "x"']])).toBe('\ufeff"a,b",\'=1+1,2,"say ""x"""\r\n'));
});
