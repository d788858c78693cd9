import { useState } from 'preact/hooks';
import { useAsk } from './ask';
import type { Exports } from './exports';
import { clipped, number, probability, signed, tokenText } from './format';
import { Term } from './Help';
import { gridFigure } from './grid_figure';
import { specialTokens } from './PromptTokens';
import { Sources } from './Sources';
import { promptBody, type View } from './state';
import { Status } from './Status';
import { tint } from './tint';
import type { AttributeAnswer } from './types';

interface Props {
  model: string;
  view: View;
  exports: { current: Exports | null };
  onChange: (change: Partial<View>, step?: boolean) => void;
}

// An answer by its tokens, or by the documents that it was given.
export function AnswerTab({ documents, ...props }: Props & { documents: boolean }) {
  const { view, onChange } = props;
  const byDocument = documents && view.sources !== null;
  return (
    <section class="card" aria-label="Answer">
      <h2 class="title">
        Answer{' '}
        <span class="muted">
          {byDocument
            ? 'from documents: click a sentence of it'
            : 'let the model go on, then click any token of its answer'}
        </span>{' '}
        <Term of="answer" />
      </h2>
      {documents && (
        <div class="segmented" role="group" aria-label="Explained by">
          <button
            type="button"
            id="by-tokens"
            aria-pressed={!byDocument}
            onClick={() => onChange({ sources: null, answerRow: null }, true)}
          >
            tokens
          </button>
          <button
            type="button"
            id="by-documents"
            aria-pressed={byDocument}
            onClick={() =>
              !byDocument &&
              onChange(
                { sources: { question: '', documents: '', answer: '' }, answerRow: null },
                true,
              )
            }
          >
            documents
          </button>
        </div>
      )}
      {byDocument ? <Sources {...props} /> : <AnswerTokens {...props} />}
    </section>
  );
}

// The model goes on; any token of its answer can be asked where it came from.
function AnswerTokens({ model, view, exports, onChange }: Props) {
  const [given, setGiven] = useState(view.continuation);
  const ask = useAsk<AttributeAnswer>(view.prompt ? 'attribute' : null, {
    ...promptBody(view),
    ...view.options,
    ...(view.continuation ? { continuation: view.continuation } : { generate: view.answerLength }),
  });
  const answer = ask.data;
  const index = answer ? Math.min(view.answerRow ?? 0, answer.rows.length - 1) : 0;
  const row = answer?.rows[index];
  const first = answer?.rows[0]?.position ?? 0;
  const largest = Math.max(
    1e-30,
    ...(row?.token_credit ?? []).map((x, i) => (view.skipFirst && i === 0 ? 0 : Math.abs(x))),
  );
  const why = () => {
    if (!answer || !row) return;
    // What a template made, special tokens and all, is plain text from here on.
    const front = view.talk ? 0 : specialTokens(answer.tokens, view.prompt);
    const text = answer.tokens
      .slice(front, row.position + 1)
      .map((token) => token.text)
      .join('');
    onChange(
      {
        prompt: text,
        talk: null,
        noBos: view.noBos || view.talk !== null,
        position: null,
        target: { id: row.target_id },
        versus: null,
        trail: [],
        selected: null,
        circuit: { name: '', groups: [] },
        tab: 'why',
      },
      true,
    );
  };
  const sources =
    answer?.tokens.slice(0, Math.min(60, answer.rows.at(-1)?.token_credit.length ?? 0)) ?? [];
  exports.current = answer && {
    name: 'answer',
    figure: () =>
      gridFigure({
        title: 'Where every token of the answer came from',
        subtitle: `${model}; ${clipped(view.prompt.replace(/\s+/g, ' '), 120)}`,
        columns: sources.map((token) => tokenText(token.text)),
        rows: answer.rows.slice(0, 60).map((each) => {
          const most = Math.max(1e-30, ...each.token_credit.map(Math.abs));
          return {
            label: `${tokenText(each.text)}  ${probability(each.probability)}`,
            cells: sources.map((_, position) => ({
              text:
                position < each.token_credit.length ? number(each.token_credit[position], 2) : '',
              share: (each.token_credit[position] ?? 0) / most,
            })),
          };
        }),
        legend:
          'token credit, a row for every token of the answer; blue raises it, orange lowers ' +
          'it; colours are relative within a row',
      }),
    rows: () => [
      ['token', 'position', 'probability', ...answer.tokens.map((token) => token.text)],
      ...answer.rows.map((each) => [
        each.text,
        each.position + 1,
        each.probability,
        ...answer.tokens.map((_, position) => each.token_credit[position] ?? ''),
      ]),
    ],
    data: () => answer,
  };
  return (
    <>
      <div class="row">
        <label class="field inline">
          <span>Generate</span>
          <input
            id="answer-length"
            type="number"
            min={1}
            max={100}
            value={view.answerLength}
            onChange={(event) => {
              const next = event.currentTarget.valueAsNumber;
              if (next >= 1 && next <= 100)
                onChange({ answerLength: Math.round(next), continuation: '', answerRow: null });
            }}
          />
          <span>tokens</span>
        </label>
        <label class="field inline grow own-line">
          <span class="nowrap">or explain this text</span>
          <input
            id="continuation"
            type="text"
            value={given}
            placeholder=" a text that follows the prompt"
            onInput={(event) => setGiven(event.currentTarget.value)}
            onKeyDown={(event) =>
              event.key === 'Enter' && onChange({ continuation: given, answerRow: null }, true)
            }
          />
        </label>
        {view.continuation && (
          <button
            type="button"
            class="link"
            onClick={() => {
              setGiven('');
              onChange({ continuation: '', answerRow: null }, true);
            }}
          >
            the model’s own again
          </button>
        )}
      </div>
      <Status ask={ask} what="Writing and explaining" />
      {answer && row && (
        <div class={`part ${ask.stale ? 'stale' : ''}`}>
          <div class="chips output" role="group" aria-label="The answer; click a token">
            {answer.rows.map((each, i) => (
              <button
                key={each.position}
                type="button"
                class="chip"
                aria-pressed={i === index}
                title={`${probability(each.probability)}; click: where it came from`}
                onClick={() => onChange({ answerRow: i })}
              >
                {tokenText(each.text)}
              </button>
            ))}
          </div>
          <p>
            <b class="word">{tokenText(row.text)}</b> had {probability(row.probability)}. Where it
            came from <span class="muted">(prompt, then the answer so far)</span>:{' '}
            <button id="answer-why" type="button" class="link" onClick={why}>
              see its routes in the graph
            </button>
          </p>
          <div class="strip" role="group" aria-label="Token credit">
            {answer.tokens.slice(0, row.position + 1).map((token) => {
              const value = row.token_credit[token.position] ?? 0;
              const hidden = view.skipFirst && token.position === 0;
              return (
                <span
                  key={token.position}
                  class={`token ${token.position > first ? 'generated' : ''}`}
                  style={hidden ? {} : { background: tint(value / largest) }}
                  title={`position ${token.position}: ${signed(value)}`}
                >
                  <span class="word">{tokenText(token.text)}</span>
                  <span class="credit">{hidden ? 'left out' : signed(value, 2)}</span>
                </span>
              );
            })}
          </div>
        </div>
      )}
    </>
  );
}
