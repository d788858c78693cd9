import { useState } from 'preact/hooks';
import { keepToken } from './api';

// A server that was started with --token answers nobody without it.
export function TokenPrompt({ tried, onToken }: { tried: boolean; onToken: () => void }) {
  const [text, setText] = useState('');
  return (
    <form
      class="card token-prompt"
      onSubmit={(event) => {
        event.preventDefault();
        keepToken(text);
        onToken();
      }}
    >
      <label class="field" for="token">
        <span>
          This server asks for a token: the text after <code>unpack serve --token</code>.
        </span>
        <input
          id="token"
          type="password"
          autocomplete="off"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      <div class="row">
        <button type="submit" id="token-send" class="primary" disabled={!text.trim()}>
          Enter
        </button>
        {tried && (
          <span class="problem" role="alert">
            that is not it
          </span>
        )}
      </div>
      <p class="small muted">
        It stays in this tab, and in no link. A link may bring it along: end the address with
        #token=…
      </p>
    </form>
  );
}
