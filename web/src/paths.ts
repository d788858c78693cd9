// Which paths are shown, and what they add up to on every edge.
import { parseNode } from './nodes';
import type { Coverage, Path } from './types';

export const FIRST_PATHS = 300; // asked for with every trace
export const FEW = 30; // shown when no share of the mass is asked for
export const TARGET = 'target';

export interface Shown {
  paths: Path[];
  absolute: number;
  reached: boolean; // false: even the whole list holds less than was asked for
}

// The paths come strongest first: the fewest that hold `mass` percent of what matches the filters.
export function holding(paths: Path[], coverage: Coverage, mass: number | null): Shown {
  let absolute = 0;
  if (mass === null) {
    const few = paths.slice(0, FEW);
    for (const path of few) absolute += Math.abs(path.credit);
    return { paths: few, absolute, reached: true };
  }
  const wanted = (mass / 100) * coverage.absolute_matching;
  let count = 0;
  while (count < paths.length && absolute < wanted * (1 - 1e-9)) absolute += Math.abs(paths[count++].credit);
  return { paths: paths.slice(0, count), absolute, reached: absolute >= wanted * (1 - 1e-9) };
}

export interface Shares {
  shown: number; // percent of the mass of all paths
  unlisted: number; // matches the filters, not shown
  filteredOut: number;
}

export function shares(shown: number, coverage: Coverage): Shares {
  const total = coverage.absolute_total;
  if (!(total > 0)) return { shown: 0, unlisted: 0, filteredOut: 0 };
  const clip = (x: number) => Math.min(100, Math.max(0, x));
  const matching = Math.min(coverage.absolute_matching, total);
  return { shown: clip((100 * shown) / total), unlisted: clip((100 * (matching - shown)) / total), filteredOut: clip((100 * (total - matching)) / total) };
}

export interface Edge {
  key: string;
  from: string;
  to: string; // a node, or TARGET
  branch: string | null; // of the reader's hop
  credit: number; // signed sum over the shown paths
  mass: number; // of absolute values
  paths: number[]; // indices of the shown paths
}

const edgeKey = (from: string, to: string, branch: string | null) => `${from}>${to}:${branch ?? ''}`;

export function pathEdges(path: Path, rooted: boolean): { key: string; from: string; to: string; branch: string | null }[] {
  const hops = [];
  for (let i = 0; i + 1 < path.nodes.length; ++i) {
    const branch = path.branches[i + 1] ?? null;
    hops.push({ key: edgeKey(path.nodes[i], path.nodes[i + 1], branch), from: path.nodes[i], to: path.nodes[i + 1], branch });
  }
  if (!rooted) {
    const last = path.nodes[path.nodes.length - 1];
    hops.push({ key: edgeKey(last, TARGET, null), from: last, to: TARGET, branch: null });
  }
  return hops;
}

// Heaviest last, so that they are drawn on top.
export function collectEdges(paths: Path[], rooted: boolean): Edge[] {
  const edges = new Map<string, Edge>();
  paths.forEach((path, index) => {
    for (const hop of pathEdges(path, rooted)) {
      let edge = edges.get(hop.key);
      if (!edge) edges.set(hop.key, (edge = { ...hop, credit: 0, mass: 0, paths: [] }));
      edge.credit += path.credit;
      edge.mass += Math.abs(path.credit);
      edge.paths.push(index);
    }
  });
  return [...edges.values()].sort((a, b) => a.mass - b.mass);
}

export type Hover = { path: number } | { node: string } | { edge: string } | { token: number } | null;

// The shown paths that something under the pointer belongs to.
export function touched(hover: Hover, paths: Path[], edges: Edge[]): Set<number> | null {
  if (!hover) return null;
  if ('path' in hover) return new Set([hover.path]);
  if ('edge' in hover) return new Set(edges.find((edge) => edge.key === hover.edge)?.paths ?? []);
  const inside = (path: Path) => ('node' in hover ? hover.node === TARGET || path.nodes.includes(hover.node) : parseNode(path.nodes[0]).position === hover.token);
  return new Set(paths.flatMap((path, index) => (inside(path) ? [index] : [])));
}
