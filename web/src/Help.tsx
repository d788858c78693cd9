import { useEffect, useRef, useState } from 'preact/hooks';

// What the words mean, where they are used.
export const TERMS = {
  credit: [
    'Credit',
    'How much of the logit difference (why this token rather than the other) came through a ' +
      'token, a component or a route. Blue raises the target, orange lowers it.',
  ],
  net: [
    'Net credit',
    'All token credit added up with its signs: what reached the tokens. A route’s share of ' +
      'it can be compared with the whole prediction.',
  ],
  mass: [
    'Gross mass',
    'The sizes of all routes added up without their signs. Routes that raise and lower ' +
      'cancel in the net credit but not here, so a few routes hold a smaller share of the mass.',
  ],
  route: [
    'Route',
    'One way from a token up to the prediction: which components passed the information on, ' +
      'and whether each read it as a key (K), a query (Q) or a value (V).',
  ],
  kqv: [
    'K, Q, V',
    'A head reads in three ways: its query (Q) asks, keys (K) decide where it looks, values ' +
      '(V) are what it copies. Gated MLPs read through gate (G) and up (U), mixtures also ' +
      'through the router (R).',
  ],
  contrast: [
    'Contrast',
    'The token that the target is compared with. Without one it is compared with the mean of ' +
      'the vocabulary.',
  ],
  reroot: [
    'Reroot',
    'Ask the same question about a component: credit 1 is put on it and followed down to ' +
      'what it read.',
  ],
  ablation: [
    'Ablate',
    'Replace what a component writes, for real, and run the rest of the model again: by ' +
      'nothing (zero), by its mean over the positions, or by what it writes in the second ' +
      'prompt.',
  ],
  faithfulness: [
    'Faithfulness, necessity',
    'On the scale from no head or MLP at all (0%) to the whole model (100%): where the ' +
      'answer stands with these components alone (faithfulness), and how far it falls when ' +
      'they alone are taken out (necessity). Embeddings stay in both. Values outside 0 to 100% ' +
      'are possible: what was taken out worked against the answer.',
  ],
  hide: [
    'Hide from readers',
    'Later heads (or MLPs) no longer see the component, but what it writes straight to the ' +
      'output stays. A component that matters directly can show next to no change here.',
  ],
  scale: [
    'Scale',
    'How much of the original stays: 0 ablates, 1 changes nothing, 2 doubles, −1 turns it round.',
  ],
  beta: [
    'Complete – stable',
    'Where scores cancel, shares can grow without bound. Further right they are kept small ' +
      '(stable), and more credit is lost on the way; further left all credit arrives ' +
      '(complete), and noise grows. 0.8 is the paper’s.',
  ],
  first: [
    'The first token',
    'Heads that have nothing to do rest on the first token, so it collects credit that says ' +
      'little. Leaving it out hides it from colours and routes; nothing is computed anew.',
  ],
  lens: [
    'Logit lens',
    'The final norm and unembedding on the stream before every layer: what the model would ' +
      'say if it stopped there.',
  ],
  pin: [
    'Pins',
    'Shift-click (or the key P) collects nodes into a circuit that can be named, measured ' +
      'and saved.',
  ],
  fold: [
    'Folded tokens',
    'Tokens that no shown route touches are folded; click the fold to see them.',
  ],
  chat: [
    'Conversation',
    'The turns are written out by the model’s chat template, with its special tokens, up to ' +
      'where the model’s own turn begins. A last turn of the assistant is one that the model ' +
      'goes on with.',
  ],
  turn: [
    'Turns',
    'The credit of all tokens of a turn, added up. What the template writes around the turns ' +
      'belongs to none.',
  ],
  logit: [
    'Logit difference',
    'How much higher the model scores the target than the contrast before scores become ' +
      'probabilities: what all credit explains.',
  ],
  keys: [
    'Mouse and keys',
    'Click selects, double click reroots, Shift-click pins; drag moves, Ctrl and the wheel ' +
      'zoom. On a node: arrow keys walk, Space selects, Enter reroots, P pins, E picks the ' +
      'edges into it one after another, + − 0 zoom, Esc goes back.',
  ],
  reads: [
    'Reads',
    'Credit 1 is put on this node and handed to what it read: for a head by its keys, its ' +
      'query and its values, for an MLP by its input. The strongest of each are listed.',
  ],
  writes: [
    'Writes',
    'The vector that it adds to the stream, through the unembedding: the tokens whose logits ' +
      'it raises and lowers most. Of an MLP, the neurons with most credit, too.',
  ],
  attention: [
    'Attention',
    'How a head spreads its attention: every row is a token that looks, every column one ' +
      'that is looked at; a row adds up to 100%.',
  ],
  feeds: [
    'Feeds',
    'Who reads it further up, and by which branch: credit of the strongest routes through ' +
      'it, added up by the next reader.',
  ],
  experts: [
    'Experts',
    'Which experts of the mixture the router chose here, with its weights, and the credit of ' +
      'their neurons.',
  ],
  test: [
    'Test it',
    'The model runs again with this node replaced, or with an edge carrying what it carries ' +
      'in the second prompt: the target before and after, measured, not attributed.',
  ],
  answer: [
    'Answer',
    'Every token of a continuation is explained by itself: the credit of the prompt’s ' +
      'tokens, and of the answer so far.',
  ],
  compare: [
    'Compare',
    'The same target and contrast are traced in both prompts. Tokens are lined up; what ' +
      'differs most in credit comes first.',
  ],
  interactions: [
    'Interaction scores',
    'How much of what a reader sees was written by each writer, as a mean over the ' +
      'positions: a map of the whole model on this prompt, before any question is asked.',
  ],
  prediction: ['Probability', 'Of this token as the next one, by the model itself.'],
} as const;

export function Term({ of }: { of: keyof typeof TERMS }) {
  const [title, text] = TERMS[of];
  return <Explained title={title} text={text} />;
}

export function Explained({ title, text }: { title: string; text: string }) {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (!open) return;
    const close = (event: Event) => {
      if (
        event instanceof KeyboardEvent
          ? event.key === 'Escape'
          : !(event.target instanceof Node && box.current?.contains(event.target))
      )
        setOpen(false);
    };
    document.addEventListener('pointerdown', close);
    document.addEventListener('keydown', close);
    return () => {
      document.removeEventListener('pointerdown', close);
      document.removeEventListener('keydown', close);
    };
  }, [open]);
  // The explanation stays inside the window, however near its edge the mark stands.
  const [shift, setShift] = useState(0);
  const place = (element: HTMLSpanElement | null) => {
    if (!element || !box.current) return;
    const left = box.current.getBoundingClientRect().left,
      width = element.offsetWidth;
    const wanted = Math.max(
      8 - left,
      Math.min(-8, document.documentElement.clientWidth - 8 - width - left),
    );
    if (Math.abs(wanted - shift) > 1) setShift(wanted);
  };
  return (
    <span class="term" ref={box}>
      <button
        type="button"
        class="mark"
        aria-label={`What is this? ${title}`}
        aria-expanded={open}
        onClick={() => setOpen(!open)}
      >
        ?
      </button>
      {open && (
        <span class="explanation" role="note" ref={place} style={{ left: `${shift}px` }}>
          <b>{title}.</b> {text}
        </span>
      )}
    </span>
  );
}
