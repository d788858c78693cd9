// The wire format, field by field as docs/api.md has it.

export interface Token {
  position: number;
  id: number;
  text: string;
  bytes?: string; // of a token that is no text by itself, as hex
}

export interface TokenizeAnswer {
  tokens: Token[];
  text?: string; // of a conversation: what the template made
  turns?: { name: string; from: number; to: number }[]; // both included
}

export interface Prediction {
  id: number;
  text: string;
  probability: number;
}

export interface ModelInfo {
  name: string;
  family: string;
  layers: number;
  heads: number;
  d_model: number;
  dtype: string;
  gated: boolean;
  mixture: boolean;
  parallel: boolean;
  positions: boolean;
  context: number;
  chat: boolean; // has a chat template
  device: string;
  version: string;
}

export interface MethodOptions {
  beta: number;
  weights: number[];
  mlp_weights: number[];
  expert_weights: number[];
  dispatch: string;
  mlp: string;
  scores: string;
  reroot: string;
  preset?: string;
  direction: string;
  floor: number;
  keys: string;
}

export interface ModelsAnswer {
  models: { name: string; default: boolean; info: ModelInfo | null }[];
  options: MethodOptions;
  presets: MethodOptions[];
  endpoints: string[];
  limits: { max_tokens: number; max_paths: number; max_body: number; time_limit_ms: number };
}

export interface PredictAnswer {
  tokens: Token[];
  predictions: Prediction[];
}

export interface Target {
  position: number;
  ids: number[];
  versus_ids: number[] | null;
  text: string;
  versus_text: string | null;
  logit: number;
  logit_difference: number | null;
  probability: number;
}

export interface Path {
  nodes: string[];
  branches: (string | null)[];
  text: string;
  credit: number;
  percent: number;
}

export interface Coverage {
  paths: number;
  absolute: number;
  absolute_matching: number;
  absolute_total: number;
}

export interface PathsAnswer {
  paths: Path[];
  coverage: Coverage;
  warnings: string[];
}

export interface CompositionEntry {
  component: string;
  mass: number;
  credit: number;
}

export interface Entries {
  neurons: { neuron: number; expert?: number; credit: number }[];
  experts?: { expert: number; weight: number; credit: number }[];
}

export interface Trace extends PathsAnswer {
  model: { name: string; family: string; layers: number; heads: number; d_model: number };
  tokens: Token[];
  target: Target;
  options: MethodOptions;
  root: string;
  predictions: Prediction[];
  importance: Record<string, number>;
  token_credit: number[];
  token_percent: number[];
  node_credit: Record<string, number[]>;
  entries?: number[] | Entries;
  composition?: Record<string, CompositionEntry[]>;
  conservation: { first: number; reached: number };
  pattern?: number[]; // of /api/reroot, where the root is a head
}

export interface Reading {
  nll: number;
  target: number;
  probability: number;
  predictions: Prediction[];
}

export interface Intervention {
  clean: Reading;
  cut: Reading;
}

// Whether components are needed (without) and enough (only); none: no head or MLP at all.
export interface Proof {
  clean: Reading;
  without: Reading;
  only: Reading;
  none: Reading;
  faithfulness: number | null;
  necessity: number | null;
}

export interface TokenEffect {
  id: number;
  text: string;
  logit: number;
}

// Of credit 1 put on a node: the strongest of what each branch of it reads.
export interface ReadsAnswer {
  node: string;
  entries: number[] | Entries;
  incoming: Record<string, { node: string; credit: number }[]>;
  pattern?: number[]; // of a head
}

export interface WritesAnswer {
  node: string;
  promoted: TokenEffect[];
  lowered: TokenEffect[];
  neurons: { neuron: number; value: number; promoted: TokenEffect[] }[];
}

export interface AttentionAnswer {
  heads: { head: string; pattern: number[][] }[]; // row q has q + 1 numbers
}

export interface LensAnswer {
  target: { id: number; text: string };
  layers: (Prediction & { target: number })[][]; // [layers + 1][positions]
}

export interface WordsAnswer {
  sentences: { node: string; credit: number; text: string }[];
}

export interface AttributeAnswer {
  tokens: Token[];
  rows: {
    position: number;
    target_id: number;
    text: string;
    probability: number;
    token_credit: number[];
  }[];
}

export interface CostAnswer {
  tokens: number;
  targets: number;
  gflop: number;
  memory_mib: number; // beside the weights
  seconds: number;
  text: string;
}

export interface SourcesAnswer {
  model: { name: string };
  question: string;
  answer: string;
  documents: { name: string; sentences: { text: string }[] }[];
  sentences: {
    text: string;
    documents: {
      credit: number;
      percent: number;
      sentences: { credit: number; percent: number }[];
    }[];
    other_credit: number;
    answer_credit: number;
  }[];
}

export interface QueueAnswer {
  state: 'waiting' | 'running' | 'unknown';
  before: number;
  what: string;
  done: number;
  total: number;
}

export interface Interaction {
  reader: string;
  query?: number;
  writer: string;
  score: number;
}

export interface InteractionsAnswer {
  attention: Interaction[];
  mlp: Interaction[];
}
