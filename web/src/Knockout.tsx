import { useEffect, useState } from 'preact/hooks';
import { api } from './api';
import { number, quoted, signed, tokenText } from './format';
import { parseNode } from './nodes';
import { TARGET, type Edge } from './paths';
import type { Intervention, Token } from './types';

type Body = Record<string, unknown>;

// What can be taken away for real, each with the credit that speaks for it.
export type Suspect = { component: string } | { token: Token } | { edge: Edge; other: string };

interface Props {
  suspect: Suspect;
  body: Body; // of the trace; its root and method options are left out of interventions
}

interface Outcome {
  credit: number | null; // null: known only for the shown paths, which the caller says
  target: string;
  measured: { name: string; answer: Intervention }[];
}

const PROMPT = ['model', 'prompt', 'no_bos', 'target', 'target_ids', 'versus', 'versus_ids', 'raw_logit', 'position'];

export const edgeText = (edge: Edge): string => `${edge.from}${edge.branch ? ` -[${edge.branch}]->` : ' ->'} ${edge.to === TARGET ? 'target' : edge.to}`;

const named = (suspect: Suspect): string =>
  'component' in suspect ? suspect.component : 'token' in suspect ? `token ${quoted(suspect.token.text)}` : edgeText(suspect.edge);

function trials(suspect: Suspect): { name: string; change: Body }[] {
  if ('component' in suspect) {
    return [
      { name: 'no attention head reads it', change: { cut: suspect.component, channel: 'attention' } },
      { name: 'no MLP reads it', change: { cut: suspect.component, channel: 'mlp' } },
    ];
  }
  if ('token' in suspect) return [{ name: 'its embedding is set to zero', change: { zero: [suspect.token.position] } }];
  return [{ name: 'the edge carries what it does in the second prompt', change: { edges: [edgeText(suspect.edge)], patch_prompt: suspect.other } }];
}

// Takes it away and sets the measured change beside the credit that went through it.
export function Knockout({ suspect, body }: Props) {
  const [outcome, setOutcome] = useState<Outcome | null>(null);
  const [state, setState] = useState<'idle' | 'busy' | string>('idle');
  useEffect(() => {
    setOutcome(null);
    setState('idle');
  }, [JSON.stringify([named(suspect), 'edge' in suspect && suspect.other, body])]);

  const run = async () => {
    setState('busy');
    try {
      const question = Object.fromEntries(Object.entries(body).filter(([name]) => PROMPT.includes(name)));
      const { root: _, ...target } = body;
      const tried = trials(suspect);
      const [trace, ...answers] = await Promise.all([api.trace({ ...target, top_paths: 0 }), ...tried.map(({ change }) => api.intervene({ ...question, ...change }))]);
      const credit =
        'component' in suspect ? (trace.node_credit[suspect.component] ?? []).reduce((sum, x) => sum + x, 0) : 'token' in suspect ? trace.token_credit[suspect.token.position] : suspect.edge.credit;
      setOutcome({ credit, target: trace.target.text, measured: tried.map(({ name }, index) => ({ name, answer: answers[index] })) });
      setState('idle');
    } catch (error) {
      setState((error as Error).message);
    }
  };

  const name = named(suspect);
  const needsOther = 'edge' in suspect && !suspect.other;
  return (
    <section class="card knockout" aria-label={`Knock ${name} out`}>
      <div class="row spread">
        <h2 class="title">Does it matter? <span class="muted">take it away and measure</span></h2>
        <button id="knockout" type="button" class="primary" disabled={state === 'busy' || needsOther} onClick={run}>
          {state === 'busy' ? 'Measuring…' : 'edge' in suspect ? 'Patch the edge' : 'Knock it out'}
        </button>
      </div>
      <p class="name">{name}</p>
      {needsOther && <p class="small muted">An edge is replaced by what it carries in another prompt of the same length: give one under Compare.</p>}
      {state !== 'idle' && state !== 'busy' && <p class="problem" role="alert">{state}</p>}
      {outcome && <Result name={name} suspect={suspect} outcome={outcome} />}
    </section>
  );
}

function Result({ name, suspect, outcome }: { name: string; suspect: Suspect; outcome: Outcome }) {
  const rows = [
    {
      name: `credit of ${quoted(outcome.target)} that ${'token' in suspect ? 'came from it' : 'went through it'}`,
      detail: 'edge' in suspect ? 'contribution, over the shown paths' : 'contribution',
      value: outcome.credit ?? 0,
    },
    ...outcome.measured.map(({ name: what, answer }) => ({
      name: `measured change of the target when ${what}`,
      detail: `${number(answer.clean.target)} → ${number(answer.cut.target)}`,
      value: answer.cut.target - answer.clean.target,
    })),
  ];
  const largest = Math.max(1e-30, ...rows.map((row) => Math.abs(row.value)));
  return (
    <>
      <table class="difference">
        <tbody>
          {rows.map((row) => (
            <tr key={row.name}>
              <th scope="row">{row.name}<br /><span class="muted">{row.detail}</span></th>
              <td class="wide">
                <span class={`signed-meter ${row.value < 0 ? 'negative' : 'positive'}`}>
                  <span style={{ width: `${(50 * Math.abs(row.value)) / largest}%`, [row.value < 0 ? 'right' : 'left']: '50%' }} />
                </span>
                <span class="value">{signed(row.value)}</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="small muted">
        Contribution and causal effect need not agree: other parts can make up for what is taken away, and a cut changes the norms and the attention that credit takes as given.
        {'component' in suspect ? ` What ${name} writes straight to the output stays in either way.` : ''}
      </p>
    </>
  );
}

// What the person looks at: a clicked edge first, then the root or the filtered component, then the filtered token.
export function suspectOf(edge: Edge | null, root: string | null, through: string | null, from: number | null, tokens: Token[], other: string): Suspect | null {
  if (edge) return { edge, other };
  if (root) return { component: parseNode(root).name };
  if (through) return { component: through };
  return from !== null && tokens[from] ? { token: { ...tokens[from], text: tokenText(tokens[from].text) } } : null;
}
