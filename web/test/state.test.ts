import { describe, expect, it } from 'vitest';
import { filterBody, fromHash, initialView, toHash, traceBody, type View } from '../src/state';

const full: View = {
  model: 'pocket-llama', prompt: 'a & b = c #1 + “ü”\n', noBos: true, position: 3, target: { id: 17 }, versus: { text: ' the' }, trail: ['A5.H3@12', 'MLP0@4'],
  filters: { branch: 'G', through: 'A1.H2', from: 0, minLayer: 2, sign: 'negative' }, mass: 55, options: { beta: 0, weights: [1, 0, 0.5], mlp: 'l2' }, tab: 'compare', other: 'x y',
};

describe('the address', () => {
  it('brings back all of a view', () => expect(fromHash(toHash(full))).toEqual(full));
  it('brings back the start', () => expect(fromHash(toHash(initialView()))).toEqual(initialView()));
  it('keeps an empty prompt apart from none', () => expect(fromHash(toHash({ ...initialView(), prompt: '' })).prompt).toBe(''));
  it('keeps the raw logit', () => expect(fromHash(toHash({ ...initialView(), versus: 'raw' })).versus).toBe('raw'));
  it('drops what makes no sense', () => {
    const view = fromHash('#at=x&target=1e9&root=<b>,A1.H2@3&mass=900&tab=nowhere&sign=up&o.weights=1,2&o.beta=much&from=-');
    expect(view).toEqual({ ...initialView(), trail: ['A1.H2@3'] });
  });
});

describe('a request', () => {
  it('uses the names of the API and the last root', () => {
    expect(traceBody(full)).toEqual({
      model: 'pocket-llama', prompt: full.prompt, no_bos: true, target_ids: [17], versus: ' the', position: 3, beta: 0, weights: [1, 0, 0.5], mlp: 'l2', root: 'MLP0@4',
    });
  });
  it('leaves out what was not chosen', () => expect(traceBody({ ...initialView(), prompt: 'x' })).toEqual({ prompt: 'x' }));
  it('filters by position 0 too', () => expect(filterBody(full.filters)).toEqual({ branch: 'G', through: 'A1.H2', from: 0, min_layer: 2, sign: 'negative' }));
});
