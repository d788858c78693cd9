import { useEffect, useMemo, useState } from 'preact/hooks';
import type { Body } from './api';
import { AFTERWARDS, useAsk } from './ask';
import { Effects, LabelledPattern, Meter, Pattern, sign } from './charts';
import { number, percent, plural, signed, tokenText, withMinus } from './format';
import { Term } from './Help';
import { canReroot, parseNode } from './nodes';
import { TARGET, routeEdges, type Edge } from './routes';
import { Status } from './Status';
import { TestIt, type Suspect } from './TestIt';
import type {
  AttentionAnswer,
  Entries,
  PathsAnswer,
  ReadsAnswer,
  Token,
  Trace,
  WordsAnswer,
  WritesAnswer,
} from './types';

interface Props {
  node: string;
  edge: Edge | null; // picked instead
  pins: string[];
  trace: Trace; // what the graph shows
  body: Body; // of that trace
  promptBody: Body;
  other: string;
  dark: boolean;
  onSelect: (node: string) => void;
  onReroot: (node: string) => void;
  onPin: (node: string) => void;
  onOther: () => void;
}

type Part = 'reads' | 'writes' | 'attention' | 'feeds' | 'experts' | 'test';
const LABELS: Record<Part, string> = {
  reads: 'Reads',
  writes: 'Writes',
  attention: 'Attention',
  feeds: 'Feeds',
  experts: 'Experts',
  test: 'Test it',
};

export function Inspector(props: Props) {
  const {
    node,
    edge,
    pins,
    trace,
    body,
    promptBody,
    other,
    dark,
    onSelect,
    onReroot,
    onPin,
    onOther,
  } = props;
  const [part, setPart] = useState<Part>('reads');
  const parsed = parseNode(node);
  const component = canReroot(parsed);
  const { top_paths: _, ...question } = body;
  const rooted = useAsk<ReadsAnswer>(
    component ? 'reads' : null,
    { ...question, root: node, top: MOST },
    0,
    true,
  );
  const entries = rooted.data && !rooted.stale ? rooted.data.entries : undefined;
  const experts = entries && !Array.isArray(entries) ? (entries as Entries).experts : undefined;
  const parts: Part[] = !component
    ? ['feeds', 'writes', 'test']
    : [
        'reads',
        'writes',
        ...(parsed.kind === 'head' ? (['attention'] as Part[]) : []),
        'feeds',
        ...(experts ? (['experts'] as Part[]) : []),
        'test',
      ];
  const current = parts.includes(part) ? part : parts[0];
  const credit = trace.node_credit[parsed.name]?.[parsed.position] ?? 0;
  const total = (trace.node_credit[parsed.name] ?? []).reduce((sum, x) => sum + x, 0);
  const token = trace.tokens[parsed.position];
  const pinned = pins.includes(node);
  return (
    <section class="card inspector" aria-label={`Inspector: ${node}`}>
      <div class="row spread">
        <h2 class="title">
          {node} <span class="muted">at {tokenText(token?.text ?? '', token?.bytes)}</span>
        </h2>
        <span class="row">
          <button
            type="button"
            id="pin"
            aria-pressed={pinned}
            title="Shift-click on the node, or P"
            onClick={() => onPin(node)}
          >
            {pinned ? 'Unpin' : 'Pin'}
          </button>
          {component && trace.root !== node && (
            <button
              type="button"
              id="reroot"
              title="double click on the node, or Enter"
              onClick={() => onReroot(node)}
            >
              Reroot
            </button>
          )}
        </span>
      </div>
      <p class="small muted">
        credit {signed(credit)} here, {signed(total)} over all positions; direct{' '}
        {signed(trace.importance[parsed.name] ?? 0)} <Term of="credit" />
      </p>
      <div class="row part-row">
        <div class="segmented" role="tablist" aria-label="About this node">
          {parts.map((each) => (
            <button
              key={each}
              type="button"
              role="tab"
              id={`part-${each}`}
              aria-selected={current === each}
              onClick={() => setPart(each)}
            >
              {LABELS[each]}
            </button>
          ))}
        </div>
        <Term key={current} of={current} />
      </div>
      {current !== 'test' && current !== 'writes' && current !== 'feeds' && (
        <Status ask={rooted} what={`Reading ${node}`} />
      )}
      {current === 'reads' && rooted.data && (
        <div class={`part ${rooted.stale ? 'stale' : ''}`}>
          <Reads reads={rooted.data} tokens={trace.tokens} body={question} onSelect={onSelect} />
        </div>
      )}
      {current === 'writes' && (
        <Writes
          node={node}
          promptBody={promptBody}
          neurons={entries && !Array.isArray(entries) ? (entries as Entries).neurons : []}
        />
      )}
      {current === 'attention' && (
        <Attention
          node={node}
          trace={trace}
          promptBody={promptBody}
          dark={dark}
          onSelect={onSelect}
        />
      )}
      {current === 'feeds' && (
        <Feeds node={node} body={question} trace={trace} onSelect={onSelect} />
      )}
      {current === 'experts' && experts && <Experts experts={experts} />}
      {current === 'test' && (
        <Tests {...{ node, edge, pins, trace, body: question, other, onOther }} credit={credit} />
      )}
    </section>
  );
}

function Tests({
  node,
  edge,
  pins,
  trace,
  body,
  other,
  credit,
  onOther,
}: Pick<Props, 'node' | 'edge' | 'pins' | 'trace' | 'body' | 'other' | 'onOther'> & {
  credit: number;
}) {
  const all = pins.length > 1 ? pins : null;
  const [what, setWhat] = useState<'node' | 'pins' | 'edge'>(edge ? 'edge' : 'node');
  useEffect(() => setWhat(edge ? 'edge' : 'node'), [edge?.key, node]);
  const rooted = trace.root !== 'target';
  const parsed = parseNode(node);
  const suspect: Suspect =
    what === 'edge' && edge
      ? { edge }
      : what === 'pins' && all
        ? { nodes: all, name: `all ${plural(all.length, 'pin')}` }
        : parsed.kind === 'emb'
          ? { token: parsed.position, text: trace.tokens[parsed.position]?.text ?? '' }
          : { nodes: [node], name: node };
  return (
    <>
      {(all || edge) && (
        <div class="segmented" role="group" aria-label="What is tested">
          <button type="button" aria-pressed={what === 'node'} onClick={() => setWhat('node')}>
            {node}
          </button>
          {all && (
            <button
              type="button"
              id="test-pins"
              aria-pressed={what === 'pins'}
              onClick={() => setWhat('pins')}
            >
              all {all.length} pins
            </button>
          )}
          {edge && (
            <button
              type="button"
              id="test-edge"
              aria-pressed={what === 'edge'}
              onClick={() => setWhat('edge')}
            >
              the picked edge
            </button>
          )}
        </div>
      )}
      <TestIt
        suspect={suspect}
        body={body}
        target={trace.target}
        credit={
          rooted || what === 'pins'
            ? null
            : 'edge' in suspect
              ? suspect.edge.credit
              : 'token' in suspect
                ? (trace.token_credit[suspect.token] ?? 0)
                : credit
        }
        other={other}
        onOther={onOther}
      />
    </>
  );
}

const MOST = 6;

const BRANCHES: Record<string, string> = {
  K: 'keys: why it looks there',
  Q: 'query: what it asks for',
  V: 'values: what it takes',
  G: 'gate',
  U: 'up',
  R: 'router: why this expert',
  MLP: 'input',
};

function Reads({
  reads,
  tokens,
  body,
  onSelect,
}: {
  reads: ReadsAnswer;
  tokens: Token[];
  body: Body;
  onSelect: (node: string) => void;
}) {
  const rows = reads.incoming;
  const largest = Math.max(
    1e-30,
    ...Object.values(rows).flatMap((list) => list.map((row) => Math.abs(row.credit))),
  );
  const words = useAsk<WordsAnswer>('words', { ...body, node: reads.node }, AFTERWARDS, true);
  return (
    <>
      {words.data && !words.stale && words.data.sentences[0] && (
        <p class="sentence">{withMinus(words.data.sentences[0].text)}</p>
      )}
      {Array.isArray(reads.entries) && (
        <Sources entries={reads.entries} pattern={reads.pattern ?? []} tokens={tokens} />
      )}
      <div class="branches lines">
        {Object.keys(rows).map((branch) => (
          <div key={branch}>
            <h4>
              {branch === 'MLP' ? '' : `${branch} · `}
              {BRANCHES[branch] ?? ''}
            </h4>
            <ol class="ranked">
              {rows[branch].map((row) => (
                <li key={row.node}>
                  <button
                    type="button"
                    class="link name"
                    title={`select ${row.node}`}
                    onClick={() => onSelect(row.node)}
                  >
                    {row.node}{' '}
                    <span class="muted">
                      {tokenText(tokens[parseNode(row.node).position]?.text ?? '')}
                    </span>
                  </button>
                  <Meter
                    size={Math.abs(row.credit) / largest}
                    kind={sign(row.credit)}
                    text={number(row.credit)}
                  />
                </li>
              ))}
            </ol>
          </div>
        ))}
      </div>
      <p class="small muted">Of credit 1 put on {reads.node}: what each part of its input gets.</p>
    </>
  );
}

function Sources({
  entries,
  pattern,
  tokens,
}: {
  entries: number[];
  pattern: number[];
  tokens: Token[];
}) {
  const largest = Math.max(1e-30, ...entries.map(Math.abs));
  const order = [...entries.keys()]
    .sort(
      (a, b) =>
        Math.max(pattern[b] ?? 0, Math.abs(entries[b]) / largest) -
        Math.max(pattern[a] ?? 0, Math.abs(entries[a]) / largest),
    )
    .slice(0, MOST);
  return (
    <table class="sources">
      <thead>
        <tr>
          <th scope="col">looks at</th>
          <th scope="col">attention</th>
          <th scope="col">credit</th>
        </tr>
      </thead>
      <tbody>
        {order.map((position) => (
          <tr key={position}>
            <th scope="row">
              {tokenText(tokens[position]?.text ?? '')}
              <span class="muted"> {position}</span>
            </th>
            <td>
              <Meter
                size={pattern[position] ?? 0}
                kind="plain"
                text={percent(100 * (pattern[position] ?? 0))}
              />
            </td>
            <td>
              <Meter
                size={Math.abs(entries[position]) / largest}
                kind={sign(entries[position])}
                text={number(entries[position], 2)}
              />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Writes({
  node,
  promptBody,
  neurons,
}: {
  node: string;
  promptBody: Body;
  neurons: { neuron: number; credit: number }[];
}) {
  const listed = neurons.slice(0, 5);
  const isMlp = node.startsWith('MLP');
  // An MLP waits for the names of its strongest neurons.
  const ask = useAsk<WritesAnswer>(isMlp && !neurons.length ? null : 'writes', {
    ...promptBody,
    node,
    top: 8,
    ...(listed.length && listed.every((entry) => !('expert' in entry))
      ? { neurons: listed.map((entry) => entry.neuron) }
      : {}),
  });
  return (
    <>
      <Status ask={ask} what="Reading what it writes" />
      {ask.data && (
        <div class={`part ${ask.stale ? 'stale' : ''}`}>
          <div class="branches two">
            <Effects title="promotes" list={ask.data.promoted} />
            <Effects title="lowers" list={ask.data.lowered} />
          </div>
          {ask.data.neurons.length > 0 && (
            <>
              <h4>its strongest neurons here</h4>
              <table class="neurons">
                <thead>
                  <tr>
                    <th scope="col">neuron</th>
                    <th scope="col">share</th>
                    <th scope="col">active</th>
                    <th scope="col">promotes</th>
                  </tr>
                </thead>
                <tbody>
                  {ask.data.neurons.map((neuron) => (
                    <tr key={neuron.neuron}>
                      <th scope="row">{neuron.neuron}</th>
                      <td>
                        {percent(
                          100 *
                            (listed.find((entry) => entry.neuron === neuron.neuron)?.credit ?? 0),
                        )}
                      </td>
                      <td>{number(neuron.value, 2)}</td>
                      <td class="word">
                        {neuron.promoted
                          .slice(0, 4)
                          .map((effect) => tokenText(effect.text))
                          .join(' ')}
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </>
          )}
          <p class="small muted">
            Its vector through the unembedding: change of each token’s logit against the mean of the
            vocabulary.
          </p>
        </div>
      )}
    </>
  );
}

function Attention({
  node,
  trace,
  promptBody,
  dark,
  onSelect,
}: {
  node: string;
  trace: Trace;
  promptBody: Body;
  dark: boolean;
  onSelect: (node: string) => void;
}) {
  const parsed = parseNode(node);
  const heads = Array.from({ length: trace.model.heads }, (_, head) => `A${parsed.layer}.H${head}`);
  // All heads of a layer at once, where that is not too much.
  const many = trace.tokens.length <= 120;
  const ask = useAsk<AttentionAnswer>('attention', {
    ...promptBody,
    heads: many ? heads : [parsed.name],
  });
  const [point, setPoint] = useState<string | null>(null);
  const mine = ask.data?.heads.find((entry) => entry.head === parsed.name);
  return (
    <>
      <Status ask={ask} what="Reading attention" />
      {ask.data && mine && (
        <div class={`part ${ask.stale ? 'stale' : ''}`}>
          <LabelledPattern
            pattern={mine.pattern}
            tokens={trace.tokens}
            side={250}
            row={parsed.position}
            dark={dark}
            label={`Attention pattern of ${parsed.name}`}
            onPoint={setPoint}
          />
          <p class="small muted" aria-live="polite">
            {point ?? 'rows look, columns are looked at; point at a cell'}
          </p>
          {many && (
            <>
              <h4>all heads of layer {parsed.layer}</h4>
              <div class="patterns small-patterns">
                {ask.data.heads.map((entry) => (
                  <button
                    key={entry.head}
                    type="button"
                    aria-pressed={entry.head === parsed.name}
                    title={`select ${entry.head}`}
                    onClick={() => onSelect(`${entry.head}@${parsed.position}`)}
                  >
                    <Pattern
                      pattern={entry.pattern}
                      tokens={trace.tokens}
                      side={62}
                      dark={dark}
                      label={`Attention pattern of ${entry.head}`}
                    />
                    <span>{entry.head}</span>
                  </button>
                ))}
              </div>
            </>
          )}
        </div>
      )}
    </>
  );
}

// Who reads it: the next hop of the strongest routes through it.
function Feeds({
  node,
  body,
  trace,
  onSelect,
}: {
  node: string;
  body: Body;
  trace: Trace;
  onSelect: (node: string) => void;
}) {
  const parsed = parseNode(node);
  const rooted = trace.root !== 'target';
  const ask = useAsk<PathsAnswer>('paths', { ...body, through: parsed.name, top_paths: 300 });
  const rows = useMemo(() => {
    const sums = new Map<
      string,
      { to: string; branch: string | null; credit: number; routes: number }
    >();
    for (const path of ask.data?.paths ?? []) {
      for (const hop of routeEdges(path, rooted)) {
        if (hop.from !== node) continue;
        const key = `${hop.to}/${hop.branch ?? ''}`;
        const row = sums.get(key) ?? { to: hop.to, branch: hop.branch, credit: 0, routes: 0 };
        row.credit += path.credit;
        row.routes += 1;
        sums.set(key, row);
      }
    }
    return [...sums.values()].sort((a, b) => Math.abs(b.credit) - Math.abs(a.credit)).slice(0, 10);
  }, [ask.data, node]);
  const largest = Math.max(1e-30, ...rows.map((row) => Math.abs(row.credit)));
  return (
    <>
      <Status ask={ask} what="Looking who reads it" />
      {ask.data && (
        <div class={`part ${ask.stale ? 'stale' : ''}`}>
          {rows.length === 0 && (
            <p class="muted">None of the 300 strongest routes through {parsed.name} passes here.</p>
          )}
          <ol class="ranked lines">
            {rows.map((row) => (
              <li key={`${row.to}${row.branch}`}>
                {row.to === TARGET ? (
                  <span class="name">the target, directly</span>
                ) : (
                  <button type="button" class="link name" onClick={() => onSelect(row.to)}>
                    {row.to}
                    {row.branch ? ` through ${row.branch}` : ''}
                  </button>
                )}
                <Meter
                  size={Math.abs(row.credit) / largest}
                  kind={sign(row.credit)}
                  text={signed(row.credit)}
                />
              </li>
            ))}
          </ol>
          <p class="small muted">Added up over the 300 strongest routes through {parsed.name}.</p>
        </div>
      )}
    </>
  );
}

function Experts({ experts }: { experts: NonNullable<Entries['experts']> }) {
  const largest = Math.max(1e-30, ...experts.map((entry) => Math.abs(entry.credit)));
  return (
    <table class="sources">
      <thead>
        <tr>
          <th scope="col">expert</th>
          <th scope="col">weight</th>
          <th scope="col">credit</th>
        </tr>
      </thead>
      <tbody>
        {experts.map((entry) => (
          <tr key={entry.expert}>
            <th scope="row">{entry.expert}</th>
            <td>
              <Meter size={entry.weight} kind="plain" text={percent(100 * entry.weight)} />
            </td>
            <td>
              <Meter
                size={Math.abs(entry.credit) / largest}
                kind={sign(entry.credit)}
                text={number(entry.credit)}
              />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
