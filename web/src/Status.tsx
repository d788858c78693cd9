import { useEffect, useState } from 'preact/hooks';
import type { Ask } from './ask';
import { plural } from './format';

const STAGES: Record<string, string> = {
  layers: 'preparing the prompt, layer',
  paths: 'looking for routes,',
  suffixes: 'weighing routes, layer',
  tokens: 'explaining token',
  walks: 'walking',
};

// What a question is doing, what went wrong, and what can be done about it.
export function Status({ ask, what }: { ask: Ask<unknown>; what: string }) {
  const [late, setLate] = useState(false);
  useEffect(() => {
    setLate(false);
    if (ask.status !== 'busy') return;
    const timer = setTimeout(() => setLate(true), 350);
    return () => clearTimeout(timer);
  }, [ask.status]);
  if (ask.status === 'failed' && ask.problem) {
    return (
      <div class="problem" role="alert">
        <span>
          {ask.problem.message}
          {ask.stale ? '. What is greyed out is of an earlier question.' : ''}
        </span>
        <button type="button" class="retry" onClick={ask.retry}>
          Try again
        </button>
      </div>
    );
  }
  if (ask.status === 'cancelled') {
    return (
      <div class="problem quiet" role="status">
        <span>{what}: cancelled.</span>
        <button type="button" class="retry" onClick={ask.retry}>
          Ask again
        </button>
      </div>
    );
  }
  if (ask.status !== 'busy' || !late) return null;
  const { place } = ask;
  const known = place?.state === 'running' && place.total > 0;
  return (
    <div class="progress" role="status">
      <span class="track">
        <span
          class={known ? '' : 'unknown'}
          style={known ? { width: `${(100 * (place.done + 1)) / (place.total + 1)}%` } : {}}
        />
      </span>
      <span>
        {place?.state === 'waiting'
          ? `${plural(place.before, 'question')} first (of this or another window)…`
          : known
            ? `${what}: ${STAGES[place.what] ?? place.what} ${Math.round(place.done) + 1} of ` +
              `${Math.round(place.total)}…`
            : `${what}…`}
      </span>
      <button type="button" class="cancel" onClick={ask.cancel}>
        Cancel
      </button>
    </div>
  );
}
