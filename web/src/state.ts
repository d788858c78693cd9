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

export type Tab = 'paths' | 'interactions' | 'compare';

export interface View {
  model: string | null; // null: the server's default
  prompt: string;
  noBos: boolean;
  position: number | null; // null: the last
  target: Choice | null; // null: the model's own top prediction
  versus: Contrast;
  trail: string[]; // roots, the current one last; empty: the target
  filters: Filters;
  mass: number | null; // percent of the mass to show; null: the strongest few
  options: Partial<MethodOptions>; // only what differs from the defaults
  tab: Tab;
  other: string; // the second prompt
}

export const NO_FILTERS: Filters = { branch: null, through: null, from: null, minLayer: null, sign: null };
export const EXAMPLE = 'Mary and John went to the store. John gave a drink to';

export function initialView(): View {
  return {
    model: null, prompt: EXAMPLE, noBos: false, position: null, target: null, versus: null, trail: [], filters: NO_FILTERS, mass: null, options: {}, tab: 'paths', other: '',
  };
}

export const filtered = (filters: Filters): boolean => Object.values(filters).some((value) => value !== null);

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
  out.set('prompt', view.prompt);
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
  put('mass', view.mass);
  for (const [key, value] of Object.entries(view.options)) put(`o.${key}`, Array.isArray(value) ? value.join(',') : value);
  if (view.tab !== 'paths') put('tab', view.tab);
  put('other', view.other);
  return `#${out.toString()}`;
}

const TABS: Tab[] = ['paths', 'interactions', 'compare'];

export function fromHash(hash: string): View {
  const view = initialView();
  const read = new URLSearchParams(hash.replace(/^#/, ''));
  const text = (key: string) => read.get(key);
  const integer = (key: string) => (/^-?\d{1,9}$/.test(read.get(key) ?? '') ? Number(read.get(key)) : null);
  const choice = (key: string): Choice | null => {
    const id = integer(key);
    if (id !== null) return { id };
    const spelled = text(`${key}text`);
    return spelled === null ? null : { text: spelled };
  };
  view.model = text('model');
  view.prompt = text('prompt') ?? view.prompt;
  view.noBos = text('nobos') === '1';
  view.position = integer('at');
  view.target = choice('target');
  view.versus = text('versusraw') === '1' ? 'raw' : choice('versus');
  view.trail = (text('root') ?? '').split(',').filter((node) => /^(A\d+\.H\d+|MLP\d+)@\d+$/.test(node));
  const sign = text('sign');
  view.filters = {
    branch: text('branch'), through: text('through'), from: integer('from'), minLayer: integer('layer'), sign: sign === 'positive' || sign === 'negative' ? sign : null,
  };
  const mass = Number(text('mass'));
  view.mass = mass > 0 && mass <= 100 ? mass : null;
  view.options = readOptions(read);
  view.tab = TABS.find((tab) => tab === text('tab')) ?? 'paths';
  view.other = text('other') ?? '';
  return view;
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
    if (key === 'o.dispatch' || key === 'o.mlp' || key === 'o.scores' || key === 'o.reroot') options[key.slice(2) as 'mlp'] = value;
  }
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

// The parts of a request, under the API's own names.
export function promptBody(view: View): Record<string, unknown> {
  return { ...(view.model ? { model: view.model } : {}), prompt: view.prompt, ...(view.noBos ? { no_bos: true } : {}) };
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
  const body = { branch: filters.branch, through: filters.through, from: filters.from, min_layer: filters.minLayer, sign: filters.sign };
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null));
}

export const rootOf = (view: View): string | null => view.trail[view.trail.length - 1] ?? null;

export function traceBody(view: View): Record<string, unknown> {
  const root = rootOf(view);
  return { ...promptBody(view), ...targetBody(view), ...view.options, ...(root ? { root } : {}) };
}
