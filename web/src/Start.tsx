import type { Choice } from './state';

export interface Example {
  prompt: string;
  target: Choice;
  versus: Choice | null;
  asks: string;
}

// Every pocket model solves these.
export const EXAMPLES: Example[] = [
  {
    prompt: 'Mary and John went to the store. John gave a drink to',
    target: { text: ' Mary' },
    versus: { text: ' John' },
    asks: 'Who gets the drink?',
  },
  {
    prompt: 'Tom went to the park with Anna. Then Anna gave the ball to',
    target: { text: ' Tom' },
    versus: { text: ' Anna' },
    asks: 'Who gets the ball?',
  },
  {
    prompt: 'The war lasted from the year 1732 to the year 17',
    target: { text: '37' },
    versus: { text: '21' },
    asks: 'A year after 32',
  },
  {
    prompt: 'Mr. Pemberton knocked at the door. "Come in, Mr. P',
    target: { text: 'em' },
    versus: null,
    asks: 'A name that was seen before',
  },
  {
    prompt: 'They were all men, and each of',
    target: { text: ' them' },
    versus: null,
    asks: 'A turn of phrase',
  },
];

export function Start({ onExample }: { onExample: (example: Example) => void }) {
  return (
    <section class="start" aria-label="Start">
      <h2>Why did the model say that?</h2>
      <ol class="steps">
        <li>
          <b>Ask.</b> Type a prompt that ends where the model should go on, or take an example.
        </li>
        <li>
          <b>Follow.</b> The graph shows the routes from tokens to the prediction: what each head
          looked at, and why. Click a node to look closer.
        </li>
        <li>
          <b>Test.</b> Take a node out for real and see whether the prediction changes. Pin what
          matters to a circuit.
        </li>
      </ol>
      <div class="examples" role="group" aria-label="Examples">
        {EXAMPLES.map((example) => (
          <button
            key={example.prompt}
            type="button"
            class="example"
            onClick={() => onExample(example)}
          >
            <b>{example.asks}</b>
            <span>
              {example.prompt}
              <span class="gap">…</span>
            </span>
          </button>
        ))}
      </div>
      <p class="muted small">Everything is computed on this machine; nothing is sent anywhere.</p>
    </section>
  );
}
