import { Fragment } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Ask } from './ask';
import { number, percent, plural, signed, tokenText } from './format';
import { Term } from './Help';
import { sumOf } from './routes';
import { tint } from './tint';
import type { Token, TokenizeAnswer } from './types';

interface Props {
  prompt: string;
  draft: string | null; // null: not being edited
  tokens: Ask<TokenizeAnswer>; // of the draft while there is one
  talking: boolean; // the tokens are those of a conversation, which is written elsewhere
  credit: { values: number[]; percents: number[] } | null; // null: none, or of another question
  position: number; // after which the model predicts
  from: number | null; // a token that the routes are filtered by
  skipFirst: boolean;
  onDraft: (text: string | null) => void;
  onEdit: () => void;
  onTalk: () => void;
  onPrompt: (text: string) => void;
  onPosition: (position: number) => void;
  onHover: (position: number | null) => void;
}

export function PromptTokens({
  prompt,
  draft,
  tokens,
  talking,
  credit,
  position,
  from,
  skipFirst,
  onDraft,
  onEdit,
  onTalk,
  onPrompt,
  onPosition,
  onHover,
}: Props) {
  const [edited, setEdited] = useState<number | null>(null); // a single token
  const area = useRef<HTMLTextAreaElement>(null);
  const list =
    tokens.status === 'failed' || tokens.stale
      ? draft === null
        ? (tokens.data?.tokens ?? [])
        : []
      : (tokens.data?.tokens ?? []);
  const front = specialTokens(list, draft ?? prompt);
  const turns = talking && !tokens.stale ? (tokens.data?.turns ?? []) : [];
  const between = (at: number) =>
    // What the template writes around the turns.
    turns.length > 0 && !turns.some((turn) => turn.from <= at && at <= turn.to);
  const wholeText =
    !talking &&
    list
      .slice(front)
      .map((token) => token.text)
      .join('') === (draft ?? prompt) &&
    list.every((token) => !token.bytes);
  useEffect(() => {
    if (draft !== null) area.current?.focus();
  }, [draft !== null]);
  // Of many tokens the one that the question is about is in view; the page itself stays where it
  // is.
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const chip = box.current?.querySelector('[aria-pressed="true"]')?.getBoundingClientRect(),
      seen = box.current?.getBoundingClientRect();
    if (!box.current || !chip || !seen) return;
    if (chip.bottom > seen.bottom) box.current.scrollTop += chip.bottom - seen.bottom + 1;
    else if (chip.top < seen.top) box.current.scrollTop -= seen.top - chip.top + 1;
  }, [position, list]);
  const replace = (index: number, text: string) => {
    setEdited(null);
    const pieces = list.slice(front).map((token) => token.text);
    pieces[index - front] = text;
    if (pieces.join('') !== prompt) onPrompt(pieces.join(''));
  };
  const largest = Math.max(
    1e-30,
    ...(credit?.values ?? []).map((x, i) => (skipFirst && i === 0 ? 0 : Math.abs(x))),
  );
  return (
    <section class="prompt" aria-label="Prompt">
      {draft !== null && (
        <div class="editing">
          <textarea
            id="prompt"
            ref={area}
            rows={Math.min(8, Math.max(2, Math.ceil(draft.length / 90)))}
            aria-label="Prompt"
            placeholder="Type a prompt that ends where the model should go on…"
            value={draft}
            spellcheck={false}
            onInput={(event) => onDraft(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
                event.preventDefault();
                if (draft) onPrompt(draft);
              } else if (event.key === 'Escape' && prompt) {
                event.stopPropagation();
                onDraft(null);
              }
            }}
          />
          <div class="row">
            <button
              id="trace"
              type="button"
              class="primary"
              disabled={!draft}
              onClick={() => onPrompt(draft)}
            >
              Ask
            </button>
            {prompt && (
              <button type="button" onClick={() => onDraft(null)}>
                Keep the old one
              </button>
            )}
            <button id="as-talk" type="button" class="link" onClick={onTalk}>
              as a conversation
            </button>
            <span class="muted small wide-only">
              Enter asks, Shift + Enter starts a new line{prompt ? ', Esc goes back' : ''}
            </span>
          </div>
        </div>
      )}
      <div
        ref={box}
        class="chips"
        role="group"
        aria-label="Tokens: click one to predict after it, double-click (or F2) to change it"
      >
        {list.map((token) => {
          const value = credit?.values[token.position] ?? 0;
          const hidden = skipFirst && token.position === 0;
          if (edited === token.position)
            return (
              <TokenInput
                key={token.position}
                text={token.text}
                onDone={(text) => replace(token.position, text)}
                onLeave={() => setEdited(null)}
              />
            );
          const text = tokenText(token.text, token.bytes);
          const turn = turns.find((each) => each.from === token.position);
          const chip = (
            <button
              key={token.position}
              type="button"
              class={
                'chip ' +
                (between(token.position) ? 'between' : '') +
                ' ' +
                (token.position > position ? 'after' : '') +
                ` ${from === token.position ? 'from' : ''}`
              }
              aria-pressed={token.position === position}
              style={credit && !hidden ? { background: tint(value / largest) } : {}}
              title={
                `position ${token.position}, id ${token.id}` +
                (credit
                  ? `, credit ${number(value)} ` +
                    `(${percent(credit.percents[token.position] ?? 0)} of the positive)`
                  : '') +
                '\nclick: predict what comes after it; double-click or F2: change it'
              }
              onMouseEnter={() => onHover(token.position)}
              onMouseLeave={() => onHover(null)}
              onClick={() => draft === null && onPosition(token.position)}
              onDblClick={() =>
                draft === null &&
                token.position >= front &&
                (wholeText ? setEdited(token.position) : onEdit())
              }
              onKeyDown={(event) =>
                event.key === 'F2' &&
                draft === null &&
                token.position >= front &&
                (wholeText ? setEdited(token.position) : onEdit())
              }
            >
              {text}
              {token.position === position && (
                <span class="caret" aria-label="the model predicts here">
                  ▸?
                </span>
              )}
            </button>
          );
          if (!turn) return chip;
          const values = credit?.values.slice(turn.from, turn.to + 1);
          return (
            <Fragment key={token.position}>
              <span class="turn-break" />
              <span class="turn small" data-turn={turn.name}>
                {turn.name}
                {values && <b title="credit of the whole turn">{signed(sumOf(values))}</b>}
                {turn === turns[0] && <Term of="turn" />}
              </span>
              {chip}
            </Fragment>
          );
        })}
        {draft === null && prompt && (
          <button id="edit" type="button" class="chip plain" onClick={onEdit}>
            ✎ edit
          </button>
        )}
        {list.length > 0 && <span class="muted small count">{plural(list.length, 'token')}</span>}
      </div>
    </section>
  );
}

// Tokens in front that are not in the text.
export function specialTokens(tokens: Token[], text: string): number {
  let front = 0;
  while (
    front < tokens.length &&
    /^<.*>$/.test(tokens[front].text) &&
    !text.startsWith(tokens[front].text)
  )
    ++front;
  return front;
}

function TokenInput({
  text,
  onDone,
  onLeave,
}: {
  text: string;
  onDone: (text: string) => void;
  onLeave: () => void;
}) {
  const [value, setValue] = useState(text);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.select(), []);
  return (
    <input
      ref={input}
      class="chip-input"
      aria-label="Token; a leading space counts"
      value={value}
      size={Math.max(3, value.length)}
      onInput={(event) => setValue(event.currentTarget.value)}
      onBlur={onLeave}
      onKeyDown={(event) => {
        if (event.key === 'Enter') onDone(value);
        if (event.key === 'Escape') {
          event.stopPropagation();
          onLeave();
        }
      }}
    />
  );
}
