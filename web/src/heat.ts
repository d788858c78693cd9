// The interaction table as a grid, and its zoom: all layers, or the block of one reader layer
// against one writer layer.
import { parseComponent } from './nodes';
import type { Interaction } from './types';

export interface Zoom {
  reader: number | null; // layer; null: all
  writer: number | null; // layer, -1 for emb and pos; null: all
}

export interface Grid {
  readers: string[];
  writers: string[];
  scores: Float64Array; // [readers, writers], NaN where the reader cannot see the writer
  largest: number;
}

export function makeGrid(list: Interaction[], zoom: Zoom): Grid {
  const readers: string[] = [],
    writers: string[] = [];
  const rows = new Map<string, number>(),
    columns = new Map<string, number>();
  const kept = list.filter((entry) => {
    if (zoom.reader !== null && parseComponent(entry.reader).layer !== zoom.reader) return false;
    return zoom.writer === null || parseComponent(entry.writer).layer === zoom.writer;
  });
  const order = (name: string) => {
    const component = parseComponent(name);
    return (
      component.layer * 1e4 +
      (component.kind === 'mlp' ? 9999 : component.kind === 'pos' ? 1 : Math.max(0, component.head))
    );
  };
  for (const name of [...new Set(kept.map((entry) => entry.reader))].sort(
    (a, b) => order(a) - order(b),
  ))
    rows.set(name, readers.push(name) - 1);
  for (const name of [...new Set(kept.map((entry) => entry.writer))].sort(
    (a, b) => order(a) - order(b),
  ))
    columns.set(name, writers.push(name) - 1);
  const scores = new Float64Array(readers.length * writers.length).fill(NaN);
  let largest = 0;
  for (const entry of kept) {
    scores[(rows.get(entry.reader) ?? 0) * writers.length + (columns.get(entry.writer) ?? 0)] =
      entry.score;
    largest = Math.max(largest, entry.score);
  }
  return { readers, writers, scores, largest };
}

// Where the layer changes along one side, to draw lines and labels there.
export function layerStarts(names: string[]): { index: number; layer: number }[] {
  const starts: { index: number; layer: number }[] = [];
  names.forEach((name, index) => {
    const { layer } = parseComponent(name);
    if (index === 0 || layer !== parseComponent(names[index - 1]).layer)
      starts.push({ index, layer });
  });
  return starts;
}
