import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { once, type Body } from './api';
import { probability, tokenText } from './format';
import type { Choice } from './state';
import type { Prediction } from './types';

export interface Fixed {
  label: string;
  value: 'none' | 'raw';
}

interface Props {
  id: string;
  label: string;
  shown: string; // what is chosen now, spaces visible
  chosen: boolean;
  body: Body; // of the prompt and position
  fixed: Fixed[];
  onChoose: (choice: Choice | 'none' | 'raw') => void;
}

// A token by its spelling. Both spellings, with a space in front and without, are listed with their
// probabilities: they are different tokens.
export function TokenField({ id, label, shown, chosen, body, fixed, onChoose }: Props) {
  const [typed, setTyped] = useState<string | null>(null); // null: closed
  const [list, setList] = useState<Prediction[]>([]);
  const [problem, setProblem] = useState<string | null>(null);
  const [at, setAt] = useState(0);
  const input = useRef<HTMLInputElement>(null);
  const listId = useId();
  const open = typed !== null;
  const key = JSON.stringify(body);
  useEffect(() => {
    if (!open) return;
    const controller = new AbortController();
    const timer = setTimeout(() => {
      once<{ suggestions: Prediction[] }>(
        'suggest',
        { ...body, text: typed, top: 8 },
        controller.signal,
      ).then(
        (answer) => {
          setList(answer.suggestions);
          setAt(0);
          setProblem(answer.suggestions.length ? null : 'no token begins like this');
        },
        (error: Error) => !controller.signal.aborted && setProblem(error.message),
      );
    }, 60);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [typed, open, key]);
  const options: (Prediction | Fixed)[] = [...list, ...(typed ? [] : fixed)];
  const close = () => {
    setTyped(null);
    setList([]);
    setProblem(null);
  };
  const take = (option: Prediction | Fixed | undefined) => {
    if (!option) return;
    close();
    onChoose('id' in option ? { id: option.id } : option.value);
    input.current?.blur();
  };
  return (
    <span class="token-field">
      <input
        ref={input}
        id={id}
        type="text"
        role="combobox"
        aria-label={label}
        aria-expanded={open}
        aria-controls={listId}
        aria-autocomplete="list"
        aria-activedescendant={open && options[at] ? `${listId}-${at}` : undefined}
        class={chosen ? 'chosen' : ''}
        autocomplete="off"
        spellcheck={false}
        size={Math.max(6, (typed ?? shown).length + 1)}
        placeholder={shown}
        value={typed ?? shown}
        onFocus={() => setTyped('')}
        onInput={(event) => setTyped(event.currentTarget.value.replace(/·/g, ' '))}
        onBlur={close}
        onKeyDown={(event) => {
          if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
            event.preventDefault();
            setAt(
              (old) =>
                (old + (event.key === 'ArrowDown' ? 1 : options.length - 1)) %
                Math.max(1, options.length),
            );
          } else if (event.key === 'Enter') {
            event.preventDefault();
            take(options[at]);
          } else if (event.key === 'Escape') {
            event.stopPropagation();
            input.current?.blur();
          }
        }}
      />
      {open && (
        <ul class="suggestions" id={listId} role="listbox" aria-label={label}>
          {options.map((option, index) => (
            <li
              key={'id' in option ? option.id : option.value}
              id={`${listId}-${index}`}
              role="option"
              aria-selected={index === at}
              // The field would lose the focus, and its list, before a click came.
              onPointerDown={(event) => {
                event.preventDefault();
                take(option);
              }}
            >
              {'id' in option ? (
                <>
                  <span class="word">{tokenText(option.text)}</span>
                  <span class="muted">{probability(option.probability)}</span>
                </>
              ) : (
                <span class="fixed">{option.label}</span>
              )}
            </li>
          ))}
          {problem && (
            <li class="muted" role="option" aria-selected={false}>
              {problem}
            </li>
          )}
        </ul>
      )}
    </span>
  );
}
