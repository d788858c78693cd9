import { tokenText } from './format';
import type { Token } from './types';

interface Props {
  draft: string;
  tokens: Token[];
  busy: boolean;
  stale: boolean; // the draft is not what the trace below is of
  position: number | null;
  error: string | null;
  onDraft: (text: string) => void;
  onTrace: () => void;
  onPosition: (position: number | null) => void;
}

export function PromptCard({ draft, tokens, busy, stale, position, error, onDraft, onTrace, onPosition }: Props) {
  const last = tokens.length - 1;
  const chosen = position === null ? last : position < 0 ? tokens.length + position : position;
  return (
    <section class="card prompt" aria-label="Prompt">
      <div class="row spread">
        <label class="title" for="prompt">Prompt</label>
        <span class="muted small">{tokens.length} tokens</span>
      </div>
      <textarea
        id="prompt"
        rows={3}
        value={draft}
        spellcheck={false}
        onInput={(event) => onDraft(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            onTrace();
          }
        }}
      />
      <div class="chips" role="group" aria-label="Tokens; choose the one after which to predict">
        {tokens.map((token) => (
          <button
            key={token.position}
            type="button"
            class="chip"
            aria-pressed={token.position === chosen}
            title={`position ${token.position}, id ${token.id}: predict what comes after this token`}
            onClick={() => onPosition(token.position === last ? null : token.position)}
          >
            {tokenText(token.text)}
          </button>
        ))}
      </div>
      {error && <p class="problem" role="alert">{error}</p>}
      <div class="row">
        <button id="trace" type="button" class={`primary ${stale ? 'stale' : ''}`} onClick={onTrace}>
          {busy ? 'Tracing…' : 'Trace'}
        </button>
        <span class="muted small wide-only">Ctrl + Enter{stale ? ' · the prompt has changed' : ''}</span>
      </div>
    </section>
  );
}
