import type { InteractionsAnswer, Intervention, ModelsAnswer, PathsAnswer, PredictAnswer, Token, Trace } from './types';

export type Body = Record<string, unknown>;

async function answer<T>(response: Response): Promise<T> {
  const text = await response.text();
  if (response.ok) return JSON.parse(text) as T;
  let message = `the server answered ${response.status}`;
  try {
    message = (JSON.parse(text) as { error: string }).error;
  } catch {
    // not one of our own answers: the status has to do
  }
  throw new Error(message);
}

const BUSY = 429;
const TRIES = 5;

// A request that is aborted closes its connection, and the server then stops the work. One that comes while the server is busy is sent again.
async function post(path: string, body: Body, signal?: AbortSignal): Promise<Response> {
  const init = { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body), signal };
  try {
    for (let attempt = 1; ; ++attempt) {
      const response = await fetch(path, init);
      if (response.status !== BUSY || attempt === TRIES || signal?.aborted) return response;
      await new Promise((done) => setTimeout(done, 200 * attempt));
    }
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error('the server does not answer; is unpack serve still running?');
  }
}

async function ask<T>(name: string, body: Body, signal?: AbortSignal): Promise<T> {
  return answer<T>(await post(`/api/${name}`, body, signal));
}

export const api = {
  models: async (signal?: AbortSignal): Promise<ModelsAnswer> => answer<ModelsAnswer>(await fetch('/api/models', { signal })),
  tokenize: (body: Body, signal?: AbortSignal) => ask<{ tokens: Token[] }>('tokenize', body, signal),
  predict: (body: Body, signal?: AbortSignal) => ask<PredictAnswer>('predict', body, signal),
  trace: (body: Body, signal?: AbortSignal) => ask<Trace>('trace', body, signal),
  reroot: (body: Body, signal?: AbortSignal) => ask<Trace>('reroot', body, signal),
  paths: (body: Body, signal?: AbortSignal) => ask<PathsAnswer>('paths', body, signal),
  interactions: (body: Body, signal?: AbortSignal) => ask<InteractionsAnswer>('interactions', body, signal),
  intervene: (body: Body, signal?: AbortSignal) => ask<Intervention>('intervene', body, signal),
  html: async (body: Body): Promise<string> => {
    const response = await post('/api/trace', { ...body, format: 'html' });
    return response.ok ? response.text() : answer<string>(response);
  },
};
