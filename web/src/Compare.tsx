import { useEffect, useMemo, useState } from 'preact/hooks';
import { align } from './align';
import { api } from './api';
import { number, percent, quoted, signed, tokenText } from './format';
import { useLatest } from './hooks';
import { TokenStrip } from './TokenStrip';
import type { Trace } from './types';

interface Props {
  trace: Trace;
  body: Record<string, unknown>; // of the first prompt's trace
  other: string;
  raw: boolean;
  onOther: (prompt: string) => void;
}

// The same target and contrast for both, or the difference would say nothing.
export function Compare({ trace, body, other, raw, onOther }: Props) {
  const [draft, setDraft] = useState(other || String(body.prompt ?? ''));
  useEffect(() => {
    if (other) setDraft(other);
  }, [other]);
  const { root, ...unrooted } = body;
  const { target: _, versus: __, target_ids: ___, versus_ids: ____, position: _____, ...rest } = unrooted;
  // A root is a node of the first prompt alone: both are compared from the target.
  const fromTarget = { ...unrooted, top_paths: 0 };
  const first = useLatest(root && other ? JSON.stringify(fromTarget) : null, (signal) => api.trace(fromTarget, signal));
  const left = root ? first.data : trace;
  const request = {
    ...rest, prompt: other, target_ids: trace.target.ids, ...(trace.target.versus_ids ? { versus_ids: trace.target.versus_ids } : {}), top_paths: 0,
  };
  const second = useLatest(other ? JSON.stringify(request) : null, (signal) => api.trace(request, signal));
  return (
    <section class="card" aria-label="Two prompts">
      <h2 class="title">Two prompts <span class="muted">the same target {quoted(trace.target.text)}, traced on both</span></h2>
      <div class="compare-row">
        <textarea
          id="other"
          rows={2}
          aria-label="Second prompt"
          value={draft}
          spellcheck={false}
          onInput={(event) => setDraft(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) onOther(draft);
          }}
        />
        <button id="compare" type="button" class="primary" onClick={() => onOther(draft)}>Compare</button>
      </div>
      {(first.error ?? second.error) && <p class="problem" role="alert">{first.error ?? second.error}</p>}
      {left && second.data && <Difference left={left} right={second.data} raw={raw} />}
    </section>
  );
}

function Difference({ left, right, raw }: { left: Trace; right: Trace; raw: boolean }) {
  const pairs = useMemo(() => align(left.tokens, right.tokens), [left, right]);
  const at = (list: number[], position: number | null) => (position === null ? 0 : (list[position] ?? 0));
  const rows = pairs.map((pair) => ({ ...pair, change: at(right.token_credit, pair.right) - at(left.token_credit, pair.left) }));
  const largest = Math.max(1e-30, ...rows.map((row) => Math.abs(row.change)));
  const word = (trace: Trace, position: number | null) => (position === null ? '–' : tokenText(trace.tokens[position]?.text ?? ''));
  const measure = (trace: Trace) => number(trace.target.logit_difference ?? trace.target.logit);
  return (
    <>
      <div class="sides">
        {[left, right].map((trace, index) => (
          <div key={index} class="side">
            <p class="small"><b>{index === 0 ? 'First' : 'Second'}</b>: target {quoted(trace.target.text)} at {percent(100 * trace.target.probability)}, {trace.target.logit_difference === null ? 'logit' : 'logit difference'} {measure(trace)}</p>
            <TokenStrip tokens={trace.tokens} credit={trace.token_credit} percents={trace.token_percent} raw={raw} from={null} lit={null} label={index === 0 ? 'Token credit, first prompt' : 'Token credit, second prompt'} />
          </div>
        ))}
      </div>
      <h3>Difference of token credit, second minus first</h3>
      <table class="difference">
        <thead><tr><th scope="col">first</th><th scope="col">second</th><th scope="col" class="number">credit</th><th scope="col" class="wide">difference</th></tr></thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index} class={row.left !== null && row.right !== null && left.tokens[row.left].id === right.tokens[row.right].id ? '' : 'changed'}>
              <td class="word">{word(left, row.left)}</td>
              <td class="word">{word(right, row.right)}</td>
              <td class="value">{number(at(left.token_credit, row.left))} → {number(at(right.token_credit, row.right))}</td>
              <td class="wide">
                <span class={`signed-meter ${row.change < 0 ? 'negative' : 'positive'}`}>
                  <span style={{ width: `${(50 * Math.abs(row.change)) / largest}%`, [row.change < 0 ? 'right' : 'left']: '50%' }} />
                </span>
                <span class="value">{signed(row.change)}</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}
