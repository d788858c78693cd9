import { describe, expect, it } from 'vitest';
import {
  filterBody,
  fromHash,
  initialView,
  patchBody,
  pinsOf,
  toHash,
  togglePin,
  traceBody,
  type View,
} from '../src/state';

const full: View = {
  model: 'pocket-llama',
  prompt: 'a & b = c #1 + “ü”\n',
  talk: null,
  noBos: true,
  position: 3,
  target: { id: 17 },
  versus: { text: ' the' },
  trail: ['A5.H3@12', 'MLP0@4'],
  filters: { branch: 'G', through: 'A1.H2', from: 0, minLayer: 2, sign: 'negative' },
  routes: 60,
  threshold: 0.5,
  skipFirst: true,
  options: { beta: 0, weights: [1, 0, 0.5], mlp: 'l2' },
  tab: 'compare',
  selected: 'A1.H1@2',
  circuit: {
    name: 'movers & co',
    groups: [
      { name: 'a:b;c', nodes: ['A1.H1@2', 'emb@0'] },
      { name: '', nodes: ['MLP0@3'] },
    ],
  },
  other: 'x y',
  continuation: ' z',
  answerLength: 5,
  answerRow: 2,
  sources: { question: 'Who?', documents: 'One.\n\nTwo.', answer: '' },
};

describe('the address', () => {
  it('brings back all of a view', () => expect(fromHash(toHash(full))).toEqual(full));
  it('brings back the start', () => expect(fromHash(toHash(initialView()))).toEqual(initialView()));
  it('starts empty', () => expect(toHash(initialView())).toBe('#'));
  it('brings back a conversation, and drops one without a user', () => {
    const talk = {
      system: 'Be & kind.',
      turns: [
        { role: 'user' as const, content: 'Hi "there"' },
        { role: 'assistant' as const, content: 'Hello' },
      ],
      template: '{{ x }}',
    };
    expect(fromHash(toHash({ ...initialView(), talk, prompt: 'Hi "there"' }))).toEqual({
      ...initialView(),
      talk,
      prompt: 'Hi "there"',
    });
    for (const bad of ['x', '{}', '[1]', '[["assistant","a"]]', '[["robot","a"]]', '[["user",7]]'])
      expect(fromHash(`#talk=${encodeURIComponent(bad)}`)).toEqual(initialView());
  });
  it('keeps the raw logit', () =>
    expect(fromHash(toHash({ ...initialView(), versus: 'raw' })).versus).toBe('raw'));
  it('drops what makes no sense', () => {
    const view = fromHash(
      '#at=x&target=1e9&root=<b>,A1.H2@3&routes=x&threshold=900&node=nothing' +
        '&pins=g:<i>;h:MLP0@1&tab=nowhere&sign=up&o.weights=1,2&o.beta=much&from=-',
    );
    expect(view).toEqual({
      ...initialView(),
      trail: ['A1.H2@3'],
      circuit: { name: '', groups: [{ name: 'h', nodes: ['MLP0@1'] }] },
    });
  });
});

describe('a request', () => {
  it('uses the names of the API and the last root', () => {
    expect(traceBody(full)).toEqual({
      model: 'pocket-llama',
      prompt: full.prompt,
      no_bos: true,
      target_ids: [17],
      versus: ' the',
      position: 3,
      beta: 0,
      weights: [1, 0, 0.5],
      mlp: 'l2',
      root: 'MLP0@4',
    });
  });
  it('sends a conversation in place of a prompt, and the second one with another last turn', () => {
    const talk = {
      system: 'Be kind.',
      turns: [
        { role: 'user' as const, content: 'One' },
        { role: 'assistant' as const, content: 'Two' },
        { role: 'user' as const, content: 'Three' },
      ],
      template: '',
    };
    const body = traceBody({ ...initialView(), talk, prompt: 'Three', noBos: true });
    expect(body).toEqual({ messages: [{ role: 'system', content: 'Be kind.' }, ...talk.turns] });
    expect(patchBody(body, 'Four')).toEqual({
      patch_messages: [
        { role: 'system', content: 'Be kind.' },
        ...talk.turns.slice(0, 2),
        { role: 'user', content: 'Four' },
      ],
    });
    expect(patchBody({ prompt: 'x' }, 'y')).toEqual({ patch_prompt: 'y' });
  });
  it('leaves out what was not chosen', () =>
    expect(traceBody({ ...initialView(), prompt: 'x' })).toEqual({ prompt: 'x' }));
  it('filters by position 0 too', () =>
    expect(filterBody(full.filters)).toEqual({
      branch: 'G',
      through: 'A1.H2',
      from: 0,
      min_layer: 2,
      sign: 'negative',
    }));
});

describe('pins', () => {
  it('go into the last group, and out again', () => {
    const first = { ...initialView(), ...togglePin(initialView(), 'A1.H1@2') };
    expect(first.circuit.groups).toEqual([{ name: 'Group 1', nodes: ['A1.H1@2'] }]);
    const second = { ...first, ...togglePin(first, 'MLP0@1') };
    expect(pinsOf(second)).toEqual(['A1.H1@2', 'MLP0@1']);
    expect(pinsOf({ ...second, ...togglePin(second, 'A1.H1@2') })).toEqual(['MLP0@1']);
  });
});
