// Which routes are shown, what they carry, and what they add up to on every edge.
import { parseNode } from './nodes';
import type { Coverage, Path } from './types';

// Routes asked for with every trace: the slider needs no further question.
export const LISTED = 500;
export const FEWEST = 5;
export const TARGET = 'target';

// A slider from 0 to 100, logarithmic between the fewest and the most.
export const routesAt = (slider: number): number =>
  Math.round(FEWEST * (LISTED / FEWEST) ** (slider / 100));
export const sliderAt = (routes: number): number =>
  (100 * Math.log(routes / FEWEST)) / Math.log(LISTED / FEWEST);

export interface Wanted {
  count: number;
  threshold: number; // percent of the net credit
  skipFirst: boolean;
}

export interface Shown {
  routes: Path[];
  net: number; // their credits added up
  gross: number; // their sizes added up
  total: number; // the net credit of all routes: what reached the tokens
  matching: number; // listed routes that pass
  limited: boolean; // by the list's end, not by the count
}

export const sumOf = (values: number[]): number => values.reduce((sum, x) => sum + x, 0);

// The routes come strongest first.
export function choose(
  paths: Path[],
  total: number,
  { count, threshold, skipFirst }: Wanted,
): Shown {
  const least = (threshold / 100) * Math.abs(total);
  const passing = paths.filter(
    (path) =>
      Math.abs(path.credit) >= least && !(skipFirst && parseNode(path.nodes[0]).position === 0),
  );
  const routes = passing.slice(0, count);
  return {
    routes,
    net: sumOf(routes.map((route) => route.credit)),
    gross: sumOf(routes.map((route) => Math.abs(route.credit))),
    total,
    matching: passing.length,
    limited: passing.length < count && paths.length >= LISTED,
  };
}

// Of a net credit near nothing, against what made it up, or where a part is far from lying between
// nothing and the whole, shares would mislead.
export const sharesMislead = (shown: Shown, coverage: Coverage): boolean =>
  shown.total <= 0 ||
  shown.total < 0.01 * coverage.absolute_total ||
  shown.net < -shown.total ||
  shown.net > 2 * shown.total;

export const grossShare = (gross: number, coverage: Coverage): number =>
  coverage.absolute_total > 0 ? Math.min(1, gross / coverage.absolute_total) : 0;

export interface Edge {
  key: string;
  from: string;
  to: string; // a node, or TARGET
  branch: string | null; // of the reader's hop
  credit: number; // signed sum over the shown routes
  mass: number; // of absolute values
  routes: number[]; // indices of the shown routes
}

const edgeKey = (from: string, to: string, branch: string | null) =>
  `${from}>${to}:${branch ?? ''}`;

export function routeEdges(
  path: Path,
  rooted: boolean,
): { key: string; from: string; to: string; branch: string | null }[] {
  const hops = [];
  for (let i = 0; i + 1 < path.nodes.length; ++i) {
    const branch = path.branches[i + 1] ?? null;
    hops.push({
      key: edgeKey(path.nodes[i], path.nodes[i + 1], branch),
      from: path.nodes[i],
      to: path.nodes[i + 1],
      branch,
    });
  }
  if (!rooted) {
    const last = path.nodes[path.nodes.length - 1];
    hops.push({ key: edgeKey(last, TARGET, null), from: last, to: TARGET, branch: null });
  }
  return hops;
}

// Heaviest first.
export function collectEdges(paths: Path[], rooted: boolean): Edge[] {
  const edges = new Map<string, Edge>();
  paths.forEach((path, index) => {
    for (const hop of routeEdges(path, rooted)) {
      let edge = edges.get(hop.key);
      if (!edge) edges.set(hop.key, (edge = { ...hop, credit: 0, mass: 0, routes: [] }));
      edge.credit += path.credit;
      edge.mass += Math.abs(path.credit);
      edge.routes.push(index);
    }
  });
  return [...edges.values()].sort((a, b) => b.mass - a.mass);
}

export const edgeText = (edge: { from: string; to: string; branch: string | null }): string =>
  edge.from +
  (edge.branch ? ` -[${edge.branch}]->` : ' ->') +
  ' ' +
  (edge.to === TARGET ? 'target' : edge.to);

export type Hover =
  { route: number } | { node: string } | { edge: string } | { token: number } | null;

// The shown routes that something under the pointer belongs to.
export function touched(hover: Hover, routes: Path[], edges: Edge[]): Set<number> | null {
  if (!hover) return null;
  if ('route' in hover) return new Set([hover.route]);
  if ('edge' in hover) return new Set(edges.find((edge) => edge.key === hover.edge)?.routes ?? []);
  const inside = (path: Path) =>
    'node' in hover
      ? hover.node === TARGET || path.nodes.includes(hover.node)
      : parseNode(path.nodes[0]).position === hover.token;
  return new Set(routes.flatMap((path, index) => (inside(path) ? [index] : [])));
}
