// The Why tab's graph as a figure: the same layout that the screen shows, with title, target,
// contrast, model and legend, on white.
import {
  BAND,
  INK,
  LINE,
  MUTED,
  NEGATIVE,
  POSITIVE,
  WHITE,
  signedFill,
  type Figure,
  type Item,
} from './figure';
import { clipped, signed, tokenText } from './format';
import { BOX, PORT, textWidth, type Layout } from './graph_layout';
import type { Trace } from './types';

const EDGE = 24,
  HEAD = 66,
  LEFT = 34;

export function whyFigure(
  trace: Trace,
  layout: Layout,
  title: string,
  subtitle: string,
  root: string | null,
  pins: string[],
  skipFirst: boolean,
): Figure {
  const items: Item[] = [];
  const legendWidth = 640;
  const width = Math.max(
    layout.width + LEFT + 2 * EDGE,
    legendWidth + 2 * EDGE,
    textWidth(title, 18) + 2 * EDGE,
    textWidth(subtitle, 12) + 2 * EDGE,
  );
  const x0 = EDGE + LEFT + Math.max(0, (width - 2 * EDGE - LEFT - layout.width) / 2),
    y0 = HEAD + 8;
  items.push({ kind: 'text', x: EDGE, y: 34, text: title, size: 18, bold: true });
  items.push({ kind: 'text', x: EDGE, y: 54, text: subtitle, size: 12, fill: MUTED });
  for (const band of layout.bands) {
    items.push({
      kind: 'rect',
      x: x0 - LEFT,
      y: y0 + band.top,
      w: layout.width + LEFT,
      h: band.bottom - band.top,
      r: 5,
      fill: BAND,
    });
    items.push({
      kind: 'text',
      x: x0 - LEFT + 8,
      y: y0 + (band.top + band.bottom) / 2 + 4,
      text: `L${band.layer}`,
      size: 11,
      fill: MUTED,
    });
  }
  for (const line of [...layout.lines].reverse()) {
    items.push({
      kind: 'line',
      points: line.points.map((p) => ({ x: x0 + p.x, y: y0 + p.y })),
      stroke: line.edge.credit < 0 ? NEGATIVE : POSITIVE,
      width: line.width,
      dashed: line.crosses,
      opacity: line.thin ? 0.3 : 0.75,
    });
  }
  const credits = new Map(
    [...layout.boxes.values()].map((box) => [
      box.name,
      box.node ? (trace.node_credit[box.node.name]?.[box.node.position] ?? 0) : 0,
    ]),
  );
  const largest = Math.max(1e-30, ...[...credits.values()].map(Math.abs));
  for (const box of layout.boxes.values()) {
    const x = x0 + box.x,
      y = y0 + box.y;
    for (const port of box.ports) {
      items.push({
        kind: 'rect',
        x: x + port.x - PORT / 2 - 1,
        y: y + BOX / 2 - 1,
        w: PORT + 2,
        h: PORT,
        r: 2,
        fill: port.used ? INK : WHITE,
        stroke: port.used ? INK : LINE,
      });
      items.push({
        kind: 'text',
        x: x + port.x,
        y: y + BOX / 2 + PORT - 3,
        text: port.branch,
        size: 8,
        anchor: 'middle',
        bold: port.used,
        fill: port.used ? WHITE : MUTED,
      });
    }
    const share = (credits.get(box.name) ?? 0) / largest;
    const dark = !box.node || box.name === root;
    items.push({
      kind: 'rect',
      x: x - box.w / 2,
      y: y - BOX / 2,
      w: box.w,
      h: BOX,
      r: 5,
      fill: dark ? INK : signedFill(share),
      stroke: dark || pins.includes(box.name) ? INK : share < 0 ? NEGATIVE : POSITIVE,
      width: pins.includes(box.name) ? 2.5 : 1,
    });
    items.push({
      kind: 'text',
      x,
      y: y + 4,
      text: box.label,
      size: 11,
      anchor: 'middle',
      bold: dark,
      fill: dark ? WHITE : INK,
    });
  }
  const largestToken = Math.max(
    1e-30,
    ...trace.token_credit.map((x, i) => (skipFirst && i === 0 ? 0 : Math.abs(x))),
  );
  for (const column of layout.columns) {
    const x = x0 + column.x,
      y = y0 + layout.tokensY;
    if (column.count > 1) {
      items.push({
        kind: 'text',
        x,
        y,
        text: `… ${column.count} …`,
        size: 10,
        anchor: 'middle',
        fill: MUTED,
      });
      continue;
    }
    const hidden = skipFirst && column.position === 0;
    const share = hidden ? 0 : (trace.token_credit[column.position] ?? 0) / largestToken;
    const token = trace.tokens[column.position];
    const w = Math.min(column.w - 6, textWidth(tokenText(token.text, token.bytes), 13) + 10);
    items.push({ kind: 'rect', x: x - w / 2, y: y - 14, w, h: 19, r: 4, fill: signedFill(share) });
    items.push({
      kind: 'text',
      x,
      y,
      text: clipped(tokenText(token.text, token.bytes), Math.max(2, Math.floor(column.w / 6.6))),
      size: 12.5,
      anchor: 'middle',
    });
    items.push({
      kind: 'text',
      x,
      y: y + 17,
      text: hidden ? 'left out' : signed(trace.token_credit[column.position] ?? 0, 2),
      size: 9,
      anchor: 'middle',
      fill: MUTED,
    });
  }
  const y = y0 + layout.height + 12;
  const key = (x: number, colour: string, dashed: boolean, text: string) => {
    items.push({
      kind: 'line',
      points: [
        { x, y: y - 4 },
        { x: x + 26, y: y - 4 },
      ],
      stroke: colour,
      width: 3,
      dashed,
    });
    items.push({ kind: 'text', x: x + 32, y, text, size: 11, fill: MUTED });
  };
  key(EDGE, POSITIVE, false, root ? 'positive' : 'raises the target');
  key(EDGE + 140, NEGATIVE, false, root ? 'negative' : 'lowers the target');
  key(EDGE + 280, MUTED, true, 'from another position');
  items.push({
    kind: 'text',
    x: EDGE + 440,
    y,
    text: 'width: credit of the routes; fill: credit; K, Q, V: read as key, query, value',
    size: 11,
    fill: MUTED,
  });
  return { title, width: Math.max(width, EDGE + 440 + 400), height: y + 20, items };
}
