// Questions on their way, apart from the views that wait for them: what was answered is kept, what
// failed can be tried again, what takes long says how far it is and can be cancelled.
import { useLayoutEffect, useReducer, useRef } from 'preact/hooks';
import { Problem, newTicket, request, type Body } from './api';
import type { QueueAnswer } from './types';

const KEPT = 40;
const POLL = 300; // ms between looks at the queue
const PATIENCE = 350; // ms before a waiting question is worth a word
// Ms before sentences are asked for: the graph comes first, and the second click of a double click.
export const AFTERWARDS = 250;
const AGAIN = 2000; // ms before a temporary failure is tried again

export type Status = 'idle' | 'busy' | 'done' | 'failed' | 'cancelled';

export interface Ask<T> {
  status: Status;
  data: T | null; // the latest answer there was
  stale: boolean; // it answers an earlier question
  problem: Problem | null;
  place: QueueAnswer | null;
  key: string | null; // of the answer
  retry: () => void;
  cancel: () => void;
}

const answers = new Map<string, unknown>();

// A question that was sent before the view that shows its answer: useAsk takes it over.
interface Flight {
  stop: AbortController;
  ticket: string;
  answer: Promise<string>;
}
const flying = new Map<string, Flight>();

// Asks that can wait: they step aside for a question that was just put, and go on after it if
// anybody still wants them.
interface Aside {
  stop: () => void;
  start: () => void;
}
const asides = new Set<Aside>();
let hurried = 0; // questions that the others make way for
const AFTER = 100; // ms in which the view that shows the answer has taken over

const keyOf = (name: string, body: Body | null): string => `${name} ${JSON.stringify(body)}`;

function send(name: string, body: Body | null): Flight {
  const stop = new AbortController();
  const ticket = newTicket();
  return { stop, ticket, answer: request(`/api/${name}`, body, stop.signal, ticket) };
}

// Asks ahead of the view and waits for the answer, though not for long: a quick answer is drawn
// once, without a frame that only says that the old one is old.
export async function askAhead(name: string, body: Body | null, patience: number): Promise<void> {
  const key = keyOf(name, body);
  if (answers.has(key)) return;
  hurried += 1;
  asides.forEach((aside) => aside.stop());
  const flight = send(name, body);
  flying.set(key, flight);
  void flight.answer
    .catch(() => undefined)
    .then(() =>
      setTimeout(() => (hurried -= 1) === 0 && asides.forEach((aside) => aside.start()), AFTER),
    );
  // UseAsk says what is wrong.
  const arrival = flight.answer.then((text) => keep(key, JSON.parse(text))).catch(() => undefined);
  await Promise.race([arrival, new Promise((done) => setTimeout(done, patience))]);
  // Whoever shows it takes it over in this very turn; a question that nobody asks any more is taken
  // back.
  setTimeout(() => flying.get(key) === flight && (flying.delete(key), flight.stop.abort()), 50);
}

function keep(key: string, value: unknown): void {
  answers.delete(key);
  answers.set(key, value);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value as string);
}

interface Inner<T> {
  status: Status;
  data: T | null;
  key: string | null; // of the answer
  problem: Problem | null;
  place: QueueAnswer | null;
}

// `name` null: nothing is asked. The latest question only; another one takes the old one back.
// `delay`: for text that is still being typed. `aside`: it can wait.
export function useAsk<T>(
  name: string | null,
  body: Body | null,
  delay = 0,
  aside = false,
): Ask<T> {
  const key = name === null ? null : keyOf(name, body);
  const [, draw] = useReducer<number, null>((n) => n + 1, 0);
  const state = useRef<Inner<T>>({
    status: 'idle',
    data: null,
    key: null,
    problem: null,
    place: null,
  });
  const controller = useRef<AbortController | null>(null);
  const run = useRef<(automatic: boolean) => void>(() => undefined);

  const set = (change: Partial<Inner<T>>) => {
    state.current = { ...state.current, ...change };
    draw(null);
  };

  // An answer that is known shows at once, without a frame of the old one.
  if (key !== null && state.current.key !== key && answers.has(key))
    state.current = {
      status: 'done',
      data: answers.get(key) as T,
      key,
      problem: null,
      place: null,
    };

  // Sent with the frame that asks, not after it.
  useLayoutEffect(() => {
    if (key === null || name === null) {
      if (state.current.status !== 'idle')
        set({ status: 'idle', data: null, key: null, problem: null, place: null });
      return;
    }
    if (answers.has(key)) {
      keep(key, answers.get(key));
      flying.delete(key);
      if (state.current.key !== key || state.current.status !== 'done')
        set({ status: 'done', data: answers.get(key) as T, key, problem: null, place: null });
      return;
    }
    const timers: number[] = [];
    const later = (time: number, act: () => void) => timers.push(window.setTimeout(act, time));
    let waiting = false;
    const start = (automatic: boolean) => {
      waiting = aside && hurried > 0;
      if (waiting) return;
      controller.current?.abort();
      const flight = flying.get(key) ?? send(name, body);
      flying.delete(key);
      const { stop: mine, ticket } = flight;
      controller.current = mine;
      // A try of our own after a failure keeps saying what is wrong until it worked.
      set(automatic ? { place: null } : { status: 'busy', problem: null, place: null });
      const look = async () => {
        if (mine.signal.aborted) return;
        try {
          const place = JSON.parse(
            await request(`/api/queue?ticket=${ticket}`, null, mine.signal),
          ) as QueueAnswer;
          if (
            !mine.signal.aborted &&
            controller.current === mine &&
            state.current.status === 'busy'
          )
            set({ place });
        } catch {
          // the question itself will say what is wrong
        }
        if (!mine.signal.aborted && controller.current === mine && state.current.status === 'busy')
          later(POLL, look);
      };
      later(PATIENCE, look);
      flight.answer.then(
        (text) => {
          if (mine.signal.aborted) return;
          const data = JSON.parse(text) as T;
          keep(key, data);
          controller.current = null;
          set({ status: 'done', data, key, problem: null, place: null });
        },
        (error: Problem) => {
          if (mine.signal.aborted) return;
          controller.current = null;
          set({ status: 'failed', problem: error, place: null });
          if (error.temporary && error.status !== 504)
            later(
              AGAIN,
              () => controller.current === null && state.current.status === 'failed' && start(true),
            );
        },
      );
    };
    run.current = start;
    const way: Aside = {
      stop: () => {
        if (controller.current === null) return;
        controller.current.abort();
        controller.current = null;
        waiting = true;
      },
      start: () => waiting && start(true),
    };
    if (aside) asides.add(way);
    if (delay > 0) {
      set({ status: 'busy', problem: null, place: null });
      later(delay, () => start(false));
    } else {
      start(false);
    }
    return () => {
      asides.delete(way);
      timers.forEach(clearTimeout);
      controller.current?.abort();
      controller.current = null;
    };
  }, [key]);

  const inner = state.current;
  return {
    status:
      key === null
        ? 'idle'
        : inner.key === key
          ? 'done'
          : inner.status === 'done'
            ? 'busy'
            : inner.status,
    data: key === null ? null : inner.data,
    stale: inner.data !== null && inner.key !== key,
    problem: inner.problem,
    place: inner.place,
    key: inner.key,
    retry: () => run.current(false),
    cancel: () => {
      controller.current?.abort();
      controller.current = null;
      set({ status: 'cancelled', place: null });
    },
  };
}
