// Two prompts side by side: which token stands against which.
import type { Token } from './types';

export interface Pair {
  left: number | null; // position in the first prompt
  right: number | null;
}

// The longest common subsequence by token id pairs equal tokens; between two such pairs, those left
// over are paired in order.
export function align(left: Token[], right: Token[]): Pair[] {
  const rows = left.length,
    columns = right.length;
  const best = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
  for (let i = rows - 1; i >= 0; --i) {
    for (let j = columns - 1; j >= 0; --j)
      best[i][j] =
        left[i].id === right[j].id
          ? best[i + 1][j + 1] + 1
          : Math.max(best[i + 1][j], best[i][j + 1]);
  }
  const pairs: Pair[] = [];
  let gapLeft: number[] = [],
    gapRight: number[] = [];
  const flush = () => {
    for (let k = 0; k < Math.max(gapLeft.length, gapRight.length); ++k)
      pairs.push({ left: gapLeft[k] ?? null, right: gapRight[k] ?? null });
    gapLeft = [];
    gapRight = [];
  };
  let i = 0,
    j = 0;
  while (i < rows && j < columns) {
    if (left[i].id === right[j].id) {
      flush();
      pairs.push({ left: i++, right: j++ });
    } else if (best[i + 1][j] >= best[i][j + 1]) gapLeft.push(i++);
    else gapRight.push(j++);
  }
  while (i < rows) gapLeft.push(i++);
  while (j < columns) gapRight.push(j++);
  flush();
  return pairs;
}
