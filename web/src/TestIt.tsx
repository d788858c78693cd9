import { useEffect, useState } from 'preact/hooks';
import { once, type Body } from './api';
import { SignedMeter } from './charts';
import { number, probability, quoted, signed, tokenText } from './format';
import { Term } from './Help';
import { patchBody } from './state';
import { parseNode } from './nodes';
import { edgeText, type Edge } from './routes';
import type { Intervention, Target } from './types';

export type Suspect =
  { nodes: string[]; name: string } | { token: number; text: string } | { edge: Edge };

interface Props {
  suspect: Suspect;
  body: Body; // of the trace; its root and method options are left out
  target: Target;
  credit: number | null; // that speaks for it
  other: string;
  onOther: () => void; // where the second prompt is given
}

const PROMPT = [
  'model',
  'prompt',
  'no_bos',
  'target',
  'target_ids',
  'versus',
  'versus_ids',
  'raw_logit',
  'position',
];
export const interventionBody = (body: Body, target: Target): Body => {
  const question = Object.fromEntries(
    Object.entries(body).filter(([name]) => PROMPT.includes(name)),
  );
  // By id: what the trace was of, whatever the spelling.
  if (!('target' in question) && !('target_ids' in question)) question.target_ids = target.ids;
  return question;
};

type How = 'zero' | 'mean' | 'resample' | 'hide';
const HOW: { how: How; label: string }[] = [
  { how: 'zero', label: 'nothing (zero)' },
  { how: 'mean', label: 'its mean over the positions' },
  { how: 'resample', label: 'what it writes in the second prompt' },
  { how: 'hide', label: 'hide it from its readers (its direct write stays)' },
];

interface Outcome {
  name: string;
  answer: Intervention;
}

export function TestIt({ suspect, body, target, credit, other, onOther }: Props) {
  const [how, setHow] = useState<How>('zero');
  const [everywhere, setEverywhere] = useState(false);
  const [scale, setScale] = useState(0);
  const [outcome, setOutcome] = useState<Outcome[] | null>(null);
  const [state, setState] = useState<'idle' | 'busy' | string>('idle');
  useEffect(() => {
    setOutcome(null);
    setState('idle');
  }, [JSON.stringify([suspect, body, other])]);
  const nodes = 'nodes' in suspect ? suspect.nodes : [];
  const name =
    'nodes' in suspect
      ? suspect.name
      : 'token' in suspect
        ? `the token ${tokenText(suspect.text)}`
        : edgeText(suspect.edge);
  const needsOther = ('edge' in suspect || ('nodes' in suspect && how === 'resample')) && !other;

  const trials = (): { name: string; change: Body }[] => {
    if ('token' in suspect)
      return [{ name: 'its embedding is set to zero', change: { zero: [suspect.token] } }];
    if ('edge' in suspect)
      return [
        {
          name: 'the edge carries what it does in the second prompt',
          change: { edges: [edgeText(suspect.edge)], ...patchBody(body, other) },
        },
      ];
    const components = everywhere ? [...new Set(nodes.map((node) => parseNode(node).name))] : nodes;
    if (how === 'hide')
      return components.length === 1
        ? (['attention', 'mlp'] as const).map((channel) => ({
            name: channel === 'attention' ? 'no later head reads it' : 'no later MLP reads it',
            change: { cut: parseNode(nodes[0]).name, channel },
          }))
        : [];
    const label = how === 'zero' ? 'nothing' : how === 'mean' ? 'the mean' : 'the second prompt’s';
    return [
      {
        name:
          scale === 0
            ? 'it writes ' +
              (how === 'zero'
                ? 'nothing'
                : how === 'mean'
                  ? 'its mean'
                  : 'what it does in the second prompt')
            : `${number(scale)} times its distance from ${label} is written`,
        change: {
          components,
          ablate: how,
          ...(scale !== 0 ? { scale } : {}),
          ...(how === 'resample' ? patchBody(body, other) : {}),
        },
      },
    ];
  };
  const run = async () => {
    setState('busy');
    try {
      const question = interventionBody(body, target);
      const out: Outcome[] = [];
      for (const trial of trials())
        out.push({
          name: trial.name,
          answer: await once<Intervention>('intervene', { ...question, ...trial.change }),
        });
      setOutcome(out);
      setState('idle');
    } catch (error) {
      setState((error as Error).message);
    }
  };
  return (
    <div class="test">
      <p class="small">
        <span class="name">{name}</span>
      </p>
      {'nodes' in suspect && (
        <>
          <label class="field">
            <span>
              Replace what {nodes.length > 1 ? 'they write' : 'it writes'} by{' '}
              <Term of={how === 'hide' ? 'hide' : 'ablation'} />
            </span>
            <select
              id="ablate"
              value={how}
              onChange={(event) => setHow(event.currentTarget.value as How)}
            >
              {HOW.filter((each) => each.how !== 'hide' || nodes.length === 1).map((each) => (
                <option key={each.how} value={each.how}>
                  {each.label}
                </option>
              ))}
            </select>
          </label>
          {how !== 'hide' && (
            <>
              <label class="check">
                <input
                  id="everywhere"
                  type="checkbox"
                  checked={everywhere}
                  onChange={(event) => setEverywhere(event.currentTarget.checked)}
                />
                at every position, not just {nodes.length > 1 ? 'theirs' : 'here'}
              </label>
              <label class="field inline">
                <span>
                  Scale <Term of="scale" />
                </span>
                <input
                  id="scale"
                  type="range"
                  min={-2}
                  max={3}
                  step={0.25}
                  value={scale}
                  onInput={(event) => setScale(Number(event.currentTarget.value))}
                />
                <output>{number(scale)}</output>
              </label>
            </>
          )}
        </>
      )}
      {needsOther && (
        <p class="small muted">
          This needs a second prompt with as many tokens.{' '}
          <button type="button" class="link" onClick={onOther}>
            Give one under Compare
          </button>
        </p>
      )}
      <button
        id="run-test"
        type="button"
        class="primary"
        disabled={state === 'busy' || needsOther}
        onClick={run}
      >
        {state === 'busy' ? 'Measuring…' : 'Run it'}
      </button>
      {state !== 'idle' && state !== 'busy' && (
        <p class="problem" role="alert">
          {state}
        </p>
      )}
      {outcome && (
        <Outcomes
          outcome={outcome}
          credit={credit}
          target={target}
          hidden={how === 'hide' && 'nodes' in suspect}
        />
      )}
    </div>
  );
}

function Outcomes({
  outcome,
  credit,
  target,
  hidden,
}: {
  outcome: Outcome[];
  credit: number | null;
  target: Target;
  hidden: boolean;
}) {
  const changes = outcome.map(({ answer }) => answer.cut.target - answer.clean.target);
  const largest = Math.max(1e-30, Math.abs(credit ?? 0), ...changes.map(Math.abs));
  const versus = target.versus_text ? ` against ${quoted(target.versus_text)}` : '';
  return (
    <>
      <table class="difference measured">
        <tbody>
          {credit !== null && (
            <tr>
              <th scope="row">
                credit that went through it
                <br />
                <span class="muted">a contribution</span>
              </th>
              <td class="wide">
                <SignedMeter value={credit} largest={largest} />
                <span class="value">{signed(credit)}</span>
              </td>
            </tr>
          )}
          {outcome.map(({ name, answer }, i) => (
            <tr key={name}>
              <th scope="row">
                measured change of {quoted(target.text)}
                {versus} when {name}
                <br />
                <span class="muted">
                  logit difference {number(answer.clean.target)} → {number(answer.cut.target)}
                </span>
              </th>
              <td class="wide">
                <SignedMeter value={changes[i]} largest={largest} />
                <span class="value">{signed(changes[i])}</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {outcome.map(({ name, answer }) => (
        <BeforeAfter
          key={name}
          title={outcome.length > 1 ? name : ''}
          answer={answer}
          target={target}
        />
      ))}
      <p class="small muted">
        {hidden
          ? 'Only its readers lost it: what it writes straight to the output stays. '
          : 'A contribution and a measured effect need not agree: other parts can make up for ' +
            'what is taken away, and norms and attention change with it. '}
      </p>
    </>
  );
}

function BeforeAfter({
  title,
  answer,
  target,
}: {
  title: string;
  answer: Intervention;
  target: Target;
}) {
  const after = new Map(
    answer.cut.predictions.map((prediction) => [prediction.id, prediction.probability]),
  );
  const before = new Map(
    answer.clean.predictions.map((prediction) => [prediction.id, prediction.probability]),
  );
  const texts = new Map(
    [...answer.clean.predictions, ...answer.cut.predictions].map((prediction) => [
      prediction.id,
      prediction.text,
    ]),
  );
  const ids = [...texts.keys()].filter(
    (id) =>
      answer.clean.predictions.slice(0, 4).some((p) => p.id === id) ||
      answer.cut.predictions.slice(0, 4).some((p) => p.id === id) ||
      target.ids.includes(id),
  );
  const row = (p: number | undefined) => (p === undefined ? 'not among ten' : probability(p));
  return (
    <table class="before-after">
      <thead>
        <tr>
          <th scope="col">{title || 'next token'}</th>
          <th scope="col" class="number">
            before
          </th>
          <th scope="col" class="number">
            after
          </th>
        </tr>
      </thead>
      <tbody>
        <tr class="chosen">
          <th scope="row" class="word">
            {tokenText(target.text)}
          </th>
          <td class="number">{probability(answer.clean.probability)}</td>
          <td class="number">{probability(answer.cut.probability)}</td>
        </tr>
        {ids
          .filter((id) => !target.ids.includes(id))
          .map((id) => (
            <tr key={id}>
              <th scope="row" class="word">
                {tokenText(texts.get(id) ?? '')}
              </th>
              <td class="number">{row(before.get(id))}</td>
              <td class="number">{row(after.get(id))}</td>
            </tr>
          ))}
      </tbody>
    </table>
  );
}
