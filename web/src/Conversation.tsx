import { useEffect, useRef } from 'preact/hooks';
import { Term } from './Help';
import { lastUser, type Talk } from './state';

// What a model without a template of its own is given.
export const PLAIN = `{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}`;

export const newTalk = (text: string, ownTemplate: boolean): Talk => ({
  system: '',
  turns: [{ role: 'user', content: text }],
  template: ownTemplate ? '' : PLAIN,
});

interface Props {
  talk: Talk;
  model: string | null;
  ownTemplate: boolean | null; // null: not known before the model is loaded
  asked: boolean; // there is a question to go back to
  onDraft: (talk: Talk) => void;
  onAsk: (talk: Talk) => void;
  onText: () => void;
  onLeave: () => void;
}

// A conversation to be written: what the system says, and the turns. The model's own is the next
// one.
export function Conversation({
  talk,
  model,
  ownTemplate,
  asked,
  onDraft,
  onAsk,
  onText,
  onLeave,
}: Props) {
  const last = useRef<HTMLTextAreaElement>(null);
  useEffect(() => last.current?.focus(), [talk.turns.length]);
  const set = (index: number, change: Partial<Talk['turns'][number]>) =>
    onDraft({
      ...talk,
      turns: talk.turns.map((turn, i) => (i === index ? { ...turn, ...change } : turn)),
    });
  const ready = lastUser(talk) !== '';
  const rows = (text: string) =>
    Math.min(6, Math.max(1, text.split('\n').length, Math.ceil(text.length / 90)));
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (ready) onAsk(talk);
    } else if (event.key === 'Escape' && asked) {
      event.stopPropagation();
      onLeave();
    }
  };
  const next = talk.turns.at(-1)?.role === 'user' ? 'assistant' : 'user';
  return (
    <section class="conversation" aria-label="Conversation">
      <label class="turn-field">
        <span class="muted small">system</span>
        <textarea
          id="chat-system"
          rows={rows(talk.system)}
          spellcheck={false}
          placeholder="what the model is told beforehand (may stay empty)"
          value={talk.system}
          onInput={(event) => onDraft({ ...talk, system: event.currentTarget.value })}
          onKeyDown={onKeyDown}
        />
      </label>
      {talk.turns.map((turn, index) => (
        <div key={index} class="turn-field">
          <select
            aria-label={`Who speaks in turn ${index + 1}`}
            value={turn.role}
            onChange={(event) =>
              set(index, { role: event.currentTarget.value as 'user' | 'assistant' })
            }
          >
            <option value="user">user</option>
            <option value="assistant">assistant</option>
          </select>
          <textarea
            ref={index === talk.turns.length - 1 ? last : undefined}
            class="turn-text"
            rows={rows(turn.content)}
            spellcheck={false}
            aria-label={`Turn ${index + 1}`}
            value={turn.content}
            onInput={(event) => set(index, { content: event.currentTarget.value })}
            onKeyDown={onKeyDown}
          />
          {talk.turns.length > 1 && (
            <button
              type="button"
              aria-label={`Remove turn ${index + 1}`}
              title="remove this turn"
              onClick={() => onDraft({ ...talk, turns: talk.turns.filter((_, i) => i !== index) })}
            >
              ×
            </button>
          )}
        </div>
      ))}
      <details class="template" open={ownTemplate === false && talk.template === ''}>
        <summary>
          Template: {talk.template ? 'the one below' : `the one of ${model ?? 'the model'}`}
        </summary>
        {ownTemplate === false && (
          <p class="small muted">
            {model} has no chat template: it was not trained on conversations, and this one only
            writes them down.
          </p>
        )}
        <textarea
          id="chat-template"
          rows={3}
          spellcheck={false}
          aria-label="Chat template (Jinja)"
          placeholder="empty: the model’s own"
          value={talk.template}
          onInput={(event) => onDraft({ ...talk, template: event.currentTarget.value })}
        />
      </details>
      <div class="row">
        <button
          id="ask-talk"
          type="button"
          class="primary"
          disabled={!ready}
          onClick={() => onAsk(talk)}
        >
          Ask
        </button>
        <button
          id="add-turn"
          type="button"
          onClick={() => onDraft({ ...talk, turns: [...talk.turns, { role: next, content: '' }] })}
        >
          Add a turn
        </button>
        <button id="as-text" type="button" class="link" onClick={onText}>
          as plain text
        </button>
        {asked && (
          <button type="button" onClick={onLeave}>
            Keep the old one
          </button>
        )}
        <Term of="chat" />
      </div>
    </section>
  );
}
