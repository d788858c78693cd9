// Tables of coloured cells as figures: the lens, an answer's tokens, differences.
import { MUTED, POSITIVE, WHITE, mix, signedFill, type Figure, type Item } from './figure';
import { clipped } from './format';
import { textWidth } from './graph_layout';

export interface Cell {
  text: string;
  share: number; // of the fill, -1 to 1
  plain?: boolean; // unsigned: one colour
}

export interface Grid {
  title: string;
  subtitle: string;
  columns: string[];
  rows: { label: string; cells: Cell[]; apart?: boolean }[]; // apart: from the row above
  legend: string;
}

const EDGE = 24,
  ROW = 20,
  LABEL = 64;

export function gridFigure({ title, subtitle, columns, rows, legend }: Grid): Figure {
  const items: Item[] = [];
  const cell = 76;
  const labels = rows.map((row) => clipped(row.label, LABEL));
  const left = EDGE + Math.max(...labels.map((label) => textWidth(label, 11)), 10) + 10;
  const width = Math.max(
    left + cell * columns.length + EDGE,
    textWidth(title, 18) + 2 * EDGE,
    textWidth(subtitle, 12) + 2 * EDGE,
    textWidth(legend, 11) + 2 * EDGE,
  );
  items.push({ kind: 'text', x: EDGE, y: 34, text: title, size: 18, bold: true });
  items.push({ kind: 'text', x: EDGE, y: 54, text: subtitle, size: 12, fill: MUTED });
  let y = 84;
  columns.forEach((column, i) =>
    items.push({
      kind: 'text',
      x: left + cell * (i + 0.5),
      y,
      text: clipped(column, Math.floor(cell / 5.8)),
      size: 10,
      anchor: 'middle',
    }),
  );
  y += 8;
  rows.forEach((row, r) => {
    if (row.apart) y += 10;
    items.push({ kind: 'text', x: left - 8, y: y + 14, text: labels[r], size: 11, anchor: 'end' });
    row.cells.forEach((each, i) => {
      const strength = Math.min(1, Math.abs(each.share));
      items.push({
        kind: 'rect',
        x: left + cell * i + 0.5,
        y: y + 0.5,
        w: cell - 1,
        h: ROW - 1,
        fill: each.plain ? mix(POSITIVE, WHITE, 0.72 * strength) : signedFill(each.share),
      });
      if (each.text)
        items.push({
          kind: 'text',
          x: left + cell * (i + 0.5),
          y: y + 14,
          text: clipped(each.text, Math.floor(cell / 5.8)),
          size: 10,
          anchor: 'middle',
        });
    });
    y += ROW;
  });
  items.push({ kind: 'text', x: EDGE, y: y + 24, text: legend, size: 11, fill: MUTED });
  return { title, width, height: y + 44, items };
}
