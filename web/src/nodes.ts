// Names of writers and nodes: "emb", "pos", "A8.H6", "MLP3"; a node adds "@13".

export type Kind = 'emb' | 'pos' | 'head' | 'mlp';

export interface Component {
  name: string;
  kind: Kind;
  layer: number; // -1 for emb and pos
  head: number; // -1 except for heads
}

export interface Node extends Component {
  position: number;
}

export function parseComponent(name: string): Component {
  const head = /^A(\d+)\.H(\d+)$/.exec(name);
  if (head) return { name, kind: 'head', layer: Number(head[1]), head: Number(head[2]) };
  const mlp = /^MLP(\d+)$/.exec(name);
  if (mlp) return { name, kind: 'mlp', layer: Number(mlp[1]), head: -1 };
  if (name === 'emb' || name === 'pos') return { name, kind: name, layer: -1, head: -1 };
  throw new Error(`not a component: ${name}`);
}

export function parseNode(text: string): Node {
  const at = text.lastIndexOf('@');
  if (at < 0) throw new Error(`not a node: ${text}`);
  return { ...parseComponent(text.slice(0, at)), position: Number(text.slice(at + 1)) };
}

export const canReroot = (node: Component): boolean => node.kind === 'head' || node.kind === 'mlp';

export function componentNames(layers: number, heads: number, positions: boolean): string[] {
  const names = positions ? ['emb', 'pos'] : ['emb'];
  for (let layer = 0; layer < layers; ++layer) {
    for (let head = 0; head < heads; ++head) names.push(`A${layer}.H${head}`);
    names.push(`MLP${layer}`);
  }
  return names;
}
