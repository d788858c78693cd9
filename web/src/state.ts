// What is being looked at, and how it is written into the address so that a link shows the same.
import type { MethodOptions } from './types';

export type Choice = { id: number } | { text: string };
export type Contrast = Choice | 'raw' | null; // null: the vocabulary mean

export interface Filters {
  branch: string | null;
  through: string | null;
  from: number | null;
  minLayer: number | null;
  sign: 'positive' | 'negative' | null;
}

export const TABS = ['why', 'layers', 'heads', 'answer', 'compare', 'circuit'] as const;
export type Tab = (typeof TABS)[number];

export interface Group {
  name: string;
  nodes: string[];
}

// A conversation in place of a prompt: through the model's chat template, or another.
export interface Talk {
  system: string; // empty: none
  turns: { role: 'user' | 'assistant'; content: string }[];
  template: string; // empty: the model's own
}

export const lastUser = (talk: Talk): string =>
  talk.turns.filter((turn) => turn.role === 'user').at(-1)?.content ?? '';
export const messagesOf = (talk: Talk): { role: string; content: string }[] => [
  ...(talk.system ? [{ role: 'system', content: talk.system }] : []),
  ...talk.turns,
];

export interface View {
  model: string | null; // null: the server's default
  prompt: string; // empty: nothing asked yet; of a conversation the user's last turn
  talk: Talk | null; // null: the prompt is plain text
  noBos: boolean;
  position: number | null; // null: the last
  target: Choice | null; // null: the model's own top prediction
  versus: Contrast;
  trail: string[]; // roots, the current one last; empty: the target
  filters: Filters;
  routes: number;
  threshold: number; // routes under this percent of the net credit are hidden
  skipFirst: boolean; // leave the first token out of colours and routes
  options: Partial<MethodOptions>; // only what differs from the defaults
  tab: Tab;
  selected: string | null; // a node
  circuit: { name: string; groups: Group[] }; // pins, in named groups
  other: string; // the second prompt
  continuation: string; // of the Answer tab; empty: the model's own
  answerLength: number;
  answerRow: number | null;
  // Null: the Answer tab explains tokens.
  sources: { question: string; documents: string; answer: string } | null;
}

export const DEFAULT_ROUTES = 12;
export const NO_FILTERS: Filters = {
  branch: null,
  through: null,
  from: null,
  minLayer: null,
  sign: null,
};

export function initialView(): View {
  return {
    model: null,
    prompt: '',
    talk: null,
    noBos: false,
    position: null,
    target: null,
    versus: null,
    trail: [],
    filters: NO_FILTERS,
    routes: DEFAULT_ROUTES,
    threshold: 0,
    skipFirst: false,
    options: {},
    tab: 'why',
    selected: null,
    circuit: { name: '', groups: [] },
    other: '',
    continuation: '',
    answerLength: 12,
    answerRow: null,
    sources: null,
  };
}

// Another prompt has other tokens and positions: what was chosen of the old one is dropped.
export const OF_A_PROMPT: Partial<View> = {
  position: null,
  target: null,
  versus: null,
  trail: [],
  filters: NO_FILTERS,
  selected: null,
  circuit: { name: '', groups: [] },
  answerRow: null,
};

export const filtered = (filters: Filters): boolean =>
  Object.values(filters).some((value) => value !== null);

const NODE = /^(emb|pos|A\d+\.H\d+|MLP\d+)@\d+$/;
const ROOT = /^(A\d+\.H\d+|MLP\d+)@\d+$/;

export const circuitText = (groups: Group[]): string =>
  groups.map((group) => `${encodeURIComponent(group.name)}:${group.nodes.join(',')}`).join(';');

export function parseCircuit(text: string): Group[] {
  return text.split(';').flatMap((part) => {
    const at = part.indexOf(':');
    if (at < 0) return [];
    let name = part.slice(0, at);
    try {
      name = decodeURIComponent(name);
    } catch {
      // as it is, then
    }
    const nodes = part
      .slice(at + 1)
      .split(',')
      .filter((node) => NODE.test(node));
    return nodes.length ? [{ name: name.slice(0, 80), nodes: [...new Set(nodes)] }] : [];
  });
}

export function toHash(view: View): string {
  const out = new URLSearchParams();
  const put = (key: string, value: string | number | null | undefined) => {
    if (value !== null && value !== undefined && value !== '') out.set(key, String(value));
  };
  const choice = (key: string, value: Contrast) => {
    if (value === 'raw') put(`${key}raw`, 1);
    else if (value && 'id' in value) put(key, value.id);
    else if (value) put(`${key}text`, value.text);
  };
  put('model', view.model);
  if (view.talk) {
    put('talk', JSON.stringify(view.talk.turns.map((turn) => [turn.role, turn.content])));
    put('system', view.talk.system);
    put('chattemplate', view.talk.template);
  } else {
    put('prompt', view.prompt);
  }
  if (view.noBos) put('nobos', 1);
  put('at', view.position);
  choice('target', view.target);
  choice('versus', view.versus);
  put('root', view.trail.join(','));
  put('branch', view.filters.branch);
  put('through', view.filters.through);
  put('from', view.filters.from);
  put('layer', view.filters.minLayer);
  put('sign', view.filters.sign);
  if (view.routes !== DEFAULT_ROUTES) put('routes', view.routes);
  if (view.threshold > 0) put('threshold', view.threshold);
  if (view.skipFirst) put('skipfirst', 1);
  for (const [key, value] of Object.entries(view.options))
    put(`o.${key}`, Array.isArray(value) ? value.join(',') : value);
  if (view.tab !== 'why') put('tab', view.tab);
  put('node', view.selected);
  put('circuit', view.circuit.name);
  put('pins', circuitText(view.circuit.groups));
  put('other', view.other);
  put('continuation', view.continuation);
  if (view.answerLength !== 12) put('length', view.answerLength);
  put('row', view.answerRow);
  if (view.sources) {
    out.set('question', view.sources.question);
    put('documents', view.sources.documents);
    put('answer', view.sources.answer);
  }
  const text = out.toString();
  return text ? `#${text}` : '#';
}

export function fromHash(hash: string): View {
  const view = initialView();
  const read = new URLSearchParams(hash.replace(/^#/, ''));
  const text = (key: string) => read.get(key);
  const integer = (key: string) =>
    /^-?\d{1,9}$/.test(read.get(key) ?? '') ? Number(read.get(key)) : null;
  const choice = (key: string): Choice | null => {
    const id = integer(key);
    if (id !== null) return { id };
    const spelled = text(`${key}text`);
    return spelled === null ? null : { text: spelled };
  };
  view.model = text('model');
  view.talk = readTalk(read);
  view.prompt = view.talk ? lastUser(view.talk) : (text('prompt') ?? '');
  view.noBos = text('nobos') === '1';
  view.position = integer('at');
  view.target = choice('target');
  view.versus = text('versusraw') === '1' ? 'raw' : choice('versus');
  view.trail = (text('root') ?? '').split(',').filter((node) => ROOT.test(node));
  const sign = text('sign');
  view.filters = {
    branch: text('branch'),
    through: text('through'),
    from: integer('from'),
    minLayer: integer('layer'),
    sign: sign === 'positive' || sign === 'negative' ? sign : null,
  };
  view.routes = Math.min(500, Math.max(5, integer('routes') ?? DEFAULT_ROUTES));
  const threshold = Number(text('threshold'));
  view.threshold = threshold > 0 && threshold <= 100 ? threshold : 0;
  view.skipFirst = text('skipfirst') === '1';
  view.options = readOptions(read);
  view.tab = TABS.find((tab) => tab === text('tab')) ?? 'why';
  const selected = text('node');
  view.selected = selected && NODE.test(selected) ? selected : null;
  view.circuit = {
    name: (text('circuit') ?? '').slice(0, 80),
    groups: parseCircuit(text('pins') ?? ''),
  };
  view.other = text('other') ?? '';
  view.continuation = text('continuation') ?? '';
  view.answerLength = Math.min(100, Math.max(1, integer('length') ?? 12));
  view.answerRow = integer('row');
  const question = text('question');
  if (question !== null)
    view.sources = { question, documents: text('documents') ?? '', answer: text('answer') ?? '' };
  return view;
}

function readTalk(read: URLSearchParams): Talk | null {
  try {
    const turns = (JSON.parse(read.get('talk') ?? '[]') as unknown[]).flatMap((turn) => {
      const [role, content] = turn as [unknown, unknown];
      return (role === 'user' || role === 'assistant') && typeof content === 'string'
        ? [{ role: role as 'user' | 'assistant', content }]
        : [];
    });
    const talk: Talk = {
      system: read.get('system') ?? '',
      turns,
      template: read.get('chattemplate') ?? '',
    };
    return lastUser(talk) ? talk : null;
  } catch {
    return null; // no list of turns
  }
}

function readOptions(read: URLSearchParams): Partial<MethodOptions> {
  const options: Partial<MethodOptions> = {};
  const numbers = (text: string, count: number) => {
    const list = text.split(',').map(Number);
    return list.length === count && list.every(Number.isFinite) ? list : undefined;
  };
  for (const [key, value] of read) {
    if (key === 'o.beta' && Number.isFinite(Number(value))) options.beta = Number(value);
    if (key === 'o.weights') options.weights = numbers(value, 3);
    if (key === 'o.mlp_weights') options.mlp_weights = numbers(value, 2);
    if (key === 'o.expert_weights') options.expert_weights = numbers(value, 3);
    if (key === 'o.floor' && Number.isFinite(Number(value))) options.floor = Number(value);
    if (
      ['o.dispatch', 'o.mlp', 'o.scores', 'o.reroot', 'o.direction', 'o.keys', 'o.preset'].includes(
        key,
      )
    )
      options[key.slice(2) as 'mlp'] = value;
  }
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

// The parts of a request, under the API's own names.
export function promptBody(view: View): Record<string, unknown> {
  const model = view.model ? { model: view.model } : {};
  // The template writes all special tokens.
  if (view.talk)
    return {
      ...model,
      messages: messagesOf(view.talk),
      ...(view.talk.template ? { chat_template: view.talk.template } : {}),
    };
  return { ...model, prompt: view.prompt, ...(view.noBos ? { no_bos: true } : {}) };
}

// The second prompt of a question: in a conversation it stands in place of the user's last turn.
export function secondPrompt(
  body: Record<string, unknown>,
  other: string,
): { prompt: string } | { messages: unknown[] } {
  if (!Array.isArray(body.messages)) return { prompt: other };
  const messages = body.messages as { role: string }[];
  const last = messages.map((message) => message.role).lastIndexOf('user');
  return {
    messages: messages.map((message, index) =>
      index === last ? { ...message, content: other } : message,
    ),
  };
}

export function patchBody(body: Record<string, unknown>, other: string): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(secondPrompt(body, other)).map(([name, value]) => [`patch_${name}`, value]),
  );
}

export function targetBody(view: View): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  const choose = (name: string, value: Choice) => {
    if ('id' in value) body[`${name}_ids`] = [value.id];
    else body[name] = value.text;
  };
  if (view.target) choose('target', view.target);
  if (view.versus === 'raw') body.raw_logit = true;
  else if (view.versus) choose('versus', view.versus);
  if (view.position !== null) body.position = view.position;
  return body;
}

export function filterBody(filters: Filters): Record<string, unknown> {
  const body = {
    branch: filters.branch,
    through: filters.through,
    from: filters.from,
    min_layer: filters.minLayer,
    sign: filters.sign,
  };
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null));
}

export const rootOf = (view: View): string | null => view.trail[view.trail.length - 1] ?? null;
export const pinsOf = (view: View): string[] => view.circuit.groups.flatMap((group) => group.nodes);

// Pins a node, in the last group, or takes it out.
export function togglePin(view: View, node: string): Partial<View> {
  const { name, groups } = view.circuit;
  const without = groups
    .map((group) => ({ ...group, nodes: group.nodes.filter((other) => other !== node) }))
    .filter((group) => group.nodes.length);
  if (pinsOf(view).includes(node)) return { circuit: { name, groups: without } };
  const last = groups.at(-1);
  return {
    circuit: {
      name,
      groups: last
        ? [...groups.slice(0, -1), { ...last, nodes: [...last.nodes, node] }]
        : [{ name: 'Group 1', nodes: [node] }],
    },
  };
}

// What the graph shows of a root: the ranking costs a pass over all edges, a number for every node
// that it reads half of the answer.
export const rootBody = (body: Record<string, unknown>): Record<string, unknown> => ({
  ...body,
  composition: false,
  incoming: false,
});

export function traceBody(view: View): Record<string, unknown> {
  const root = rootOf(view);
  return { ...promptBody(view), ...targetBody(view), ...view.options, ...(root ? { root } : {}) };
}
