import { useState } from 'preact/hooks';
import { useAsk } from './ask';
import type { Exports } from './exports';
import { clipped, number, percent, signed } from './format';
import { gridFigure } from './grid_figure';
import type { View } from './state';
import { Status } from './Status';
import { tint } from './tint';
import type { CostAnswer, SourcesAnswer } from './types';

interface Props {
  view: View;
  exports: { current: Exports | null };
  onChange: (change: Partial<View>, step?: boolean) => void;
}

// Documents are parted by empty lines; a first line "# name" names one.
export function documentsOf(text: string): { name: string; text: string }[] {
  return text
    .split(/\n\s*\n/)
    .map((part) => part.trim())
    .filter(Boolean)
    .map((part, index) => {
      const named = /^#\s*(\S.*)\n([\s\S]+)$/.exec(part);
      return named
        ? { name: named[1].trim(), text: named[2].trim() }
        : { name: `document ${index + 1}`, text: part };
    });
}

const TYPING = 800; // ms without a key before a question is worth an estimate

const bodyOf = (view: View, asked: NonNullable<View['sources']>) => ({
  ...(view.model ? { model: view.model } : {}),
  question: asked.question,
  documents: documentsOf(asked.documents),
  ...(asked.answer ? { answer: asked.answer } : { generate: 30 }),
  ...view.options,
});

// An answer from documents: click one of its sentences, and what it came from lights up.
export function Sources({ view, exports, onChange }: Props) {
  const asked = view.sources;
  const [draft, setDraft] = useState({
    question: asked?.question ?? '',
    documents: asked?.documents ?? '',
    answer: asked?.answer ?? '',
  });
  const body = asked && bodyOf(view, asked);
  const ask = useAsk<SourcesAnswer>(body?.documents.length ? 'sources' : null, body);
  const found = ask.data;
  const index = found ? Math.min(view.answerRow ?? 0, found.sentences.length - 1) : 0;
  const sentence = found?.sentences[index];
  const credits = (each: SourcesAnswer['sentences'][number]) =>
    each.documents.flatMap((document) => document.sentences.map((part) => part.credit));
  const largest = Math.max(1e-30, ...(sentence ? credits(sentence).map(Math.abs) : []));
  const lines = found
    ? found.documents.flatMap((document) =>
        document.sentences.map((part) => ({ document: document.name, text: part.text.trim() })),
      )
    : [];
  exports.current = found && {
    name: 'sources',
    figure: () =>
      gridFigure({
        title: clipped(found.question, 100),
        subtitle: `${found.model.name}; ${clipped(found.answer.replace(/\s+/g, ' ').trim(), 120)}`,
        columns: found.sentences.map((each) => clipped(each.text.trim(), 14)),
        rows: lines.map((line, i) => ({
          label: `${line.document}: ${clipped(line.text, 30)}`,
          cells: found.sentences.map((each) => ({
            text: number(credits(each)[i], 2),
            share: credits(each)[i] / Math.max(1e-30, ...credits(each).map(Math.abs)),
          })),
        })),
        legend:
          'credit of every sentence of the documents for every sentence of the answer; blue ' +
          'raises it, orange lowers it; colours are relative within a column',
      }),
    rows: () => [
      ['document', 'sentence', ...found.sentences.map((each) => each.text.trim())],
      ...lines.map((line, i) => [
        line.document,
        line.text,
        ...found.sentences.map((each) => credits(each)[i]),
      ]),
    ],
    data: () => found,
  };
  const field =
    (key: keyof typeof draft) =>
    (event: { currentTarget: HTMLInputElement | HTMLTextAreaElement }) => {
      const { value } = event.currentTarget;
      setDraft((old) => ({ ...old, [key]: value }));
    };
  const ready = draft.question.trim() !== '' && documentsOf(draft.documents).length > 0;
  // What it will take is said before it is asked.
  const planned = bodyOf(view, draft);
  const cost = useAsk<CostAnswer>(
    ready && JSON.stringify(planned) !== JSON.stringify(body) ? 'cost' : null,
    planned,
    TYPING,
    true,
  );
  return (
    <>
      <form
        class="source-fields"
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) onChange({ sources: draft, answerRow: null }, true);
        }}
      >
        <label class="field">
          <span>
            <b>Documents</b>{' '}
            <span class="muted">an empty line between two; a first line “# name” names one</span>
          </span>
          <textarea id="documents" rows={5} value={draft.documents} onInput={field('documents')} />
        </label>
        <label class="field">
          <span>
            <b>Question</b>
          </span>
          <input
            id="source-question"
            type="text"
            value={draft.question}
            onInput={field('question')}
          />
        </label>
        <label class="field">
          <span>
            <b>Answer</b> <span class="muted">left empty, the model writes one</span>
          </span>
          <input id="source-answer" type="text" value={draft.answer} onInput={field('answer')} />
        </label>
        <div class="row">
          <button type="submit" id="find-sources" class="primary" disabled={!ready}>
            Find the sources
          </button>
          {!ready && <span class="muted small">Give documents and a question.</span>}
          {cost.data && !cost.stale && (
            <span id="sources-cost" class="muted small">
              {cost.data.text}
            </span>
          )}
          {cost.status === 'failed' && cost.problem && (
            <span id="sources-cost" class="muted small">
              {cost.problem.message}
            </span>
          )}
        </div>
      </form>
      <Status ask={ask} what="Reading the documents" />
      {found && sentence && (
        <div class={ask.stale ? 'stale' : ''}>
          <div class="answer-text" role="group" aria-label="The answer; click a sentence">
            {found.sentences.map((each, i) => (
              <button
                key={i}
                type="button"
                class="answer-sentence"
                aria-pressed={i === index}
                onClick={() => onChange({ answerRow: i })}
              >
                {each.text.trim()}
              </button>
            ))}
          </div>
          <p class="small muted">
            Of its credit {signed(sentence.other_credit)} came from the question and what stands
            around the documents, {signed(sentence.answer_credit)} from the answer’s own words
            before it.
          </p>
          {found.documents.map((document, d) => (
            <article key={document.name} class="document">
              <h3>
                {document.name}{' '}
                <span class="muted">
                  {signed(sentence.documents[d].credit)} ({percent(sentence.documents[d].percent)})
                </span>
              </h3>
              <p>
                {document.sentences.map((part, i) => {
                  const { credit, percent: of } = sentence.documents[d].sentences[i];
                  return (
                    <span
                      key={i}
                      class="source"
                      data-credit={credit}
                      style={{ background: tint(credit / largest) }}
                      title={`${signed(credit)} (${percent(of)})`}
                    >
                      {part.text}
                    </span>
                  );
                })}
              </p>
            </article>
          ))}
        </div>
      )}
    </>
  );
}
