import { useEffect, useRef, useState } from 'preact/hooks';
import { once, type Body } from './api';
import { save, slug, type Exports } from './exports';
import { INK, MUTED, signedFill, type Item } from './figure';
import { clipped, number, plural, probability, share, signed, tokenText } from './format';
import { textWidth } from './graph_layout';
import { Term } from './Help';
import { parseNode } from './nodes';
import { sumOf } from './routes';
import { circuitText, parseCircuit, patchBody, pinsOf, type Group, type View } from './state';
import { interventionBody } from './TestIt';
import { tint } from './tint';
import type { Intervention, Path, Proof, Trace } from './types';

interface Props {
  trace: Trace;
  stale: boolean;
  view: View;
  body: Body;
  exports: { current: Exports | null };
  onChange: (change: Partial<View>, step?: boolean) => void;
}

type How = 'zero' | 'mean' | 'resample';

// What routes through the nodes carry, of the listed ones. `only`: routes whose every component is
// among them.
export function carriedBy(nodes: string[], paths: Path[], only: boolean): number {
  const inside = new Set(nodes);
  const component = (node: string) => !node.startsWith('emb') && !node.startsWith('pos');
  return sumOf(
    paths
      .filter((path) => {
        const components = path.nodes.filter(component);
        return only
          ? components.length > 0 && components.every((node) => inside.has(node))
          : path.nodes.some((node) => inside.has(node));
      })
      .map((path) => path.credit),
  );
}

// Pins as named boxes, with what they carry and what happens without them.
export function Circuit({ trace, stale, view, body, exports, onChange }: Props) {
  const { name, groups } = view.circuit;
  const [how, setHow] = useState<How>('zero');
  const [measured, setMeasured] = useState<Record<string, Intervention>>({});
  const [proof, setProof] = useState<Proof | null>(null);
  const [state, setState] = useState<'idle' | 'busy' | string>('idle');
  const file = useRef<HTMLInputElement>(null);
  const total = sumOf(trace.token_credit);
  const rooted = trace.root !== 'target';
  const pins = pinsOf(view);
  useEffect(() => {
    setMeasured({});
    setProof(null);
    setState('idle');
  }, [circuitText(groups), how, JSON.stringify(body)]);
  const set = (next: Group[]) =>
    onChange({ circuit: { name, groups: next.filter((group) => group.nodes.length) } });
  const move = (node: string, to: number) => {
    const next = groups.map((group) => ({
      ...group,
      nodes: group.nodes.filter((other) => other !== node),
    }));
    if (to === groups.length) next.push({ name: `Group ${groups.length + 1}`, nodes: [node] });
    else next[to].nodes.push(node);
    set(next);
  };
  const measure = async () => {
    setState('busy');
    try {
      const question = interventionBody(body, trace.target);
      const change = (nodes: string[]) => ({
        ...question,
        components: nodes,
        ablate: how,
        ...(how === 'resample' ? patchBody(body, view.other) : {}),
      });
      const proven = await once<Proof>('prove', change(pins));
      const out: Record<string, Intervention> = {
        all: { clean: proven.clean, cut: proven.without },
      };
      for (const [index, group] of groups.entries())
        out[index] =
          groups.length > 1 ? await once<Intervention>('intervene', change(group.nodes)) : out.all;
      setMeasured(out);
      setProof(proven);
      setState('idle');
    } catch (error) {
      setState((error as Error).message);
    }
  };
  const load = async (chosen: File | undefined) => {
    if (!chosen) return;
    try {
      const read = JSON.parse(await chosen.text()) as { name?: unknown; groups?: unknown };
      if (!Array.isArray(read.groups)) throw new Error('it has no groups');
      // Through the address's own reader: whatever is not a node is dropped.
      const next = parseCircuit(
        circuitText(
          (read.groups as Group[])
            .filter((group) => Array.isArray(group?.nodes))
            .map((group) => ({ name: String(group.name ?? ''), nodes: group.nodes.map(String) })),
        ),
      );
      if (!next.length) throw new Error('it names no nodes');
      onChange({ circuit: { name: String(read.name ?? '').slice(0, 80), groups: next } }, true);
      setState('idle');
    } catch (error) {
      setState(`${chosen.name} is no circuit: ${(error as Error).message}`);
    }
  };
  const circuitData = () => ({
    kind: 'unpack circuit',
    name,
    model: trace.model.name,
    prompt: view.prompt,
    target: trace.target.text,
    versus: trace.target.versus_text,
    groups,
    net_share: total ? carriedBy(pins, trace.paths, true) / total : null,
    proof: proof && {
      ablate: how,
      clean: proof.clean.target,
      without: proof.without.target,
      only: proof.only.target,
      none: proof.none.target,
      faithfulness: proof.faithfulness,
      necessity: proof.necessity,
    },
    measured: Object.fromEntries(
      Object.entries(measured).map(([key, answer]) => [
        key === 'all' ? 'all' : groups[Number(key)]?.name,
        { ablate: how, before: answer.clean.target, after: answer.cut.target },
      ]),
    ),
  });
  exports.current = pins.length
    ? {
        name: 'circuit',
        figure: () => circuitFigure(trace, view, measured, proof, how),
        rows: () => [
          ['group', 'node', 'token', 'credit'],
          ...groups.flatMap((group) =>
            group.nodes.map((node) => [
              group.name,
              node,
              trace.tokens[parseNode(node).position]?.text ?? '',
              creditOf(trace, node),
            ]),
          ),
        ],
        data: circuitData,
      }
    : null;
  const effect = (answer: Intervention | undefined) =>
    answer && (
      <p class="effect">
        without {answer === measured.all && groups.length > 1 ? 'all of it' : 'it'}: logit
        difference {number(answer.clean.target)} → {number(answer.cut.target)} (
        <b>{signed(answer.cut.target - answer.clean.target)}</b>), probability{' '}
        {probability(answer.clean.probability)} → {probability(answer.cut.probability)}
      </p>
    );
  return (
    <section class={`card ${stale ? 'stale' : ''}`} aria-label="Circuit">
      <div class="row spread">
        <h2 class="title">
          Circuit <span class="muted">pins as named boxes</span> <Term of="pin" />
        </h2>
        <span class="row">
          <button type="button" id="circuit-load" onClick={() => file.current?.click()}>
            Open…
          </button>
          <input
            ref={file}
            id="circuit-file"
            type="file"
            accept=".json,application/json"
            hidden
            aria-label="Circuit file"
            onChange={(event) => {
              void load(event.currentTarget.files?.[0]);
              event.currentTarget.value = '';
            }}
          />
          <button
            type="button"
            id="circuit-save"
            disabled={!pins.length}
            onClick={() =>
              save(
                `${slug(name || 'circuit')}.json`,
                new Blob([JSON.stringify(circuitData(), null, 1)], { type: 'application/json' }),
              )
            }
          >
            Save
          </button>
        </span>
      </div>
      {pins.length === 0 ? (
        <p class="muted">
          Nothing is pinned yet. In the{' '}
          <button type="button" class="link" onClick={() => onChange({ tab: 'why' }, true)}>
            Why
          </button>{' '}
          graph, Shift-click nodes (or press P on one): they are collected here, can be named and
          grouped, and taken out together to measure what they do.
        </p>
      ) : (
        <>
          <div class="row">
            <label class="field inline">
              <span>Name</span>
              <input
                id="circuit-name"
                type="text"
                maxLength={80}
                value={name}
                placeholder="name of the circuit"
                onChange={(event) =>
                  onChange({ circuit: { name: event.currentTarget.value, groups } })
                }
              />
            </label>
            <label class="field inline">
              <span>Measure by</span>
              <select
                id="circuit-ablate"
                value={how}
                onChange={(event) => setHow(event.currentTarget.value as How)}
              >
                <option value="zero">zero</option>
                <option value="mean">mean</option>
                <option value="resample" disabled={!view.other}>
                  second prompt{view.other ? '' : ' (none given under Compare)'}
                </option>
              </select>
            </label>
            <Term of="ablation" />
            <button
              type="button"
              id="circuit-measure"
              class="primary"
              disabled={state === 'busy'}
              onClick={measure}
            >
              {state === 'busy' ? 'Measuring…' : 'Prove it by ablation'}
            </button>
          </div>
          {state !== 'idle' && state !== 'busy' && (
            <p class="problem" role="alert">
              {state}
            </p>
          )}
          <p id="circuit-share">
            {plural(pins.length, 'node')}
            {!rooted && total > 0 && (
              <>
                : routes through these alone carry{' '}
                <b>{share(carriedBy(pins, trace.paths, true), total)}</b> of the net credit, routes
                that touch one of them {share(carriedBy(pins, trace.paths, false), total)}{' '}
                <Term of="net" />{' '}
                <span class="muted">(of the {trace.paths.length} strongest routes)</span>
              </>
            )}
          </p>
          {effect(measured.all)}
          {proof && (
            <p class="effect" id="circuit-alone">
              with it alone, every other head and MLP{' '}
              {how === 'zero'
                ? 'silent'
                : how === 'mean'
                  ? 'at its mean'
                  : 'as in the second prompt'}
              : logit difference <b>{number(proof.only.target)}</b> of{' '}
              {number(proof.clean.target)}{' '}
              ({number(proof.none.target)} with none at all)
              {proof.faithfulness !== null && (
                <>
                  ; faithfulness <b>{percent(proof.faithfulness)}</b> <Term of="faithfulness" />,
                  necessity <b>{percent(proof.necessity ?? 0)}</b>
                </>
              )}
            </p>
          )}
          <div class="groups">
            {groups.map((group, index) => (
              <div key={index} class="group">
                <input
                  type="text"
                  class="group-name"
                  aria-label={`Name of group ${index + 1}`}
                  maxLength={80}
                  value={group.name}
                  onChange={(event) => {
                    const text = event.currentTarget.value;
                    set(groups.map((other, i) => (i === index ? { ...other, name: text } : other)));
                  }}
                />
                <ul>
                  {group.nodes.map((node) => (
                    <li
                      key={node}
                      style={{
                        background: tint(
                          creditOf(trace, node) /
                            Math.max(1e-30, ...pins.map((pin) => Math.abs(creditOf(trace, pin)))),
                        ),
                      }}
                    >
                      <button
                        type="button"
                        class="link name"
                        onClick={() => onChange({ selected: node, tab: 'why' }, true)}
                      >
                        {node}
                      </button>
                      <span class="word muted">
                        {tokenText(trace.tokens[parseNode(node).position]?.text ?? '')}
                      </span>
                      <span class="value">{signed(creditOf(trace, node))}</span>
                      <select
                        aria-label={`Group of ${node}`}
                        value={String(index)}
                        onChange={(event) =>
                          event.currentTarget.value === 'out'
                            ? set(
                                groups.map((other) => ({
                                  ...other,
                                  nodes: other.nodes.filter((each) => each !== node),
                                })),
                              )
                            : move(node, Number(event.currentTarget.value))
                        }
                      >
                        {groups.map((other, i) => (
                          <option key={i} value={i}>
                            {other.name || `Group ${i + 1}`}
                          </option>
                        ))}
                        <option value={groups.length}>new group</option>
                        <option value="out">unpin</option>
                      </select>
                    </li>
                  ))}
                </ul>
                {!rooted && total > 0 && (
                  <p class="small muted">
                    routes through it: {share(carriedBy(group.nodes, trace.paths, false), total)} of
                    the net credit
                  </p>
                )}
                {groups.length > 1 && effect(measured[index])}
              </div>
            ))}
          </div>
        </>
      )}
      {pins.length === 0 && state !== 'idle' && (
        <p class="problem" role="alert">
          {state}
        </p>
      )}
    </section>
  );
}

const percent = (x: number): string => `${Math.round(100 * x)}%`;

const creditOf = (trace: Trace, node: string): number => {
  const { name, position } = parseNode(node);
  return trace.node_credit[name]?.[position] ?? 0;
};

function circuitFigure(
  trace: Trace,
  view: View,
  measured: Record<string, Intervention>,
  proof: Proof | null,
  how: How,
) {
  const items: Item[] = [];
  const edge = 24,
    box = 220,
    gap = 20,
    top = 76,
    row = 26;
  const { groups } = view.circuit;
  const pins = pinsOf(view),
    total = sumOf(trace.token_credit);
  const shares = trace.root === 'target' && total > 0;
  const small = (x: number, y: number, text: string, size = 12) =>
    items.push({ kind: 'text', x, y, text, size, fill: MUTED });
  items.push({
    kind: 'text',
    x: edge,
    y: 34,
    text: view.circuit.name || 'Circuit',
    size: 18,
    bold: true,
  });
  const subtitle =
    `${trace.model.name}; ${tokenText(trace.target.text)}` +
    (trace.target.versus_text ? ` against ${tokenText(trace.target.versus_text)}` : '') +
    `; ${clipped(view.prompt.replace(/\s+/g, ' '), 90)}`;
  small(edge, 54, subtitle);
  const largest = Math.max(1e-30, ...pins.map((node) => Math.abs(creditOf(trace, node))));
  // Where the lines below the nodes begin.
  const foot = top + 40 + row * Math.max(...groups.map((group) => group.nodes.length));
  groups.forEach((group, i) => {
    const x = edge + i * (box + gap);
    const lines = [
      ...(shares
        ? [
            `routes through it: ${share(carriedBy(group.nodes, trace.paths, false), total)} ` +
              'of the net credit',
          ]
        : []),
      ...(measured[i]
        ? [`without it (${how}): ${signed(measured[i].cut.target - measured[i].clean.target)}`]
        : []),
    ];
    items.push({
      kind: 'rect',
      x,
      y: top,
      w: box,
      h: foot - top + 6 + 16 * ((shares ? 1 : 0) + (measured[0] ? 1 : 0)),
      r: 8,
      stroke: INK,
      width: 1.2,
    });
    items.push({
      kind: 'text',
      x: x + 12,
      y: top + 22,
      text: clipped(group.name, 28),
      size: 13,
      bold: true,
    });
    group.nodes.forEach((node, n) => {
      const y = top + 32 + row * n;
      items.push({
        kind: 'rect',
        x: x + 10,
        y,
        w: box - 20,
        h: 22,
        r: 4,
        fill: signedFill(creditOf(trace, node) / largest),
      });
      items.push({
        kind: 'text',
        x: x + 16,
        y: y + 15,
        text:
          `${node} ` + clipped(tokenText(trace.tokens[parseNode(node).position]?.text ?? ''), 12),
        size: 11,
      });
      items.push({
        kind: 'text',
        x: x + box - 16,
        y: y + 15,
        text: signed(creditOf(trace, node)),
        size: 11,
        anchor: 'end',
      });
    });
    lines.forEach((line, n) => small(x + 12, foot + 8 + 16 * n, line, 10.5));
  });
  const said = [
    ...(shares
      ? [
          `${plural(pins.length, 'node')}: routes through these alone carry ` +
            `${share(carriedBy(pins, trace.paths, true), total)} of the net credit`,
        ]
      : []),
    ...(measured.all
      ? [
          `All of it taken out (${how}): logit difference ` +
            `${number(measured.all.clean.target)} to ${number(measured.all.cut.target)}`,
        ]
      : []),
    ...(proof
      ? [
          `It alone (${how} elsewhere): ${number(proof.only.target)}; none at all: ` +
            `${number(proof.none.target)}` +
            (proof.faithfulness === null ? '' : `; faithfulness ${percent(proof.faithfulness)}`),
        ]
      : []),
    'numbers: credit of each node; blue raises the target, orange lowers it',
  ];
  const y = foot + 62;
  said.forEach((line, n) => small(edge, y + 18 * n, line));
  const width = Math.max(
    2 * edge + groups.length * (box + gap) - gap,
    ...[subtitle, ...said].map((line) => 2 * edge + textWidth(line, 12)),
  );
  return {
    title: view.circuit.name || 'Circuit',
    width: Math.ceil(width),
    height: y + 18 * said.length + 8,
    items,
  };
}
