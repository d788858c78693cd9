import type { Body } from './api';
import { number, probability, signed, tokenText } from './format';
import { Term } from './Help';
import { promptBody, type Choice, type View } from './state';
import { TokenField } from './TokenField';
import type { Trace } from './types';

interface Props {
  trace: Trace | null;
  stale: boolean;
  view: View;
  onChange: (change: Partial<View>, step?: boolean) => void;
}

// The question as a sentence to fill in.
export function Sentence({ trace, stale, view, onChange }: Props) {
  const body: Body = {
    ...promptBody(view),
    ...(view.position !== null ? { position: view.position } : {}),
  };
  const asTyped = (choice: Choice | null) =>
    choice && 'text' in choice ? tokenText(choice.text) : null;
  const target =
    asTyped(view.target) ??
    (trace && !stale
      ? tokenText(trace.target.text)
      : view.target && trace
        ? tokenText(trace.target.text)
        : '…');
  const versus =
    view.versus === 'raw'
      ? 'nothing (the raw logit)'
      : view.versus === null
        ? 'any other'
        : (asTyped(view.versus) ??
          (trace?.target.versus_text ? tokenText(trace.target.versus_text) : '…'));
  const ask = (change: Partial<View>) => onChange({ ...change, trail: [], selected: null }, true);
  return (
    <div class="question">
      <p class="sentence-line">
        Why{' '}
        <TokenField
          id="target"
          label="Target: the token to explain"
          shown={target}
          chosen={view.target !== null}
          body={body}
          fixed={view.target ? [{ label: 'the likeliest token', value: 'none' }] : []}
          onChoose={(choice) => ask({ target: typeof choice === 'string' ? null : choice })}
        />{' '}
        rather than{' '}
        <TokenField
          id="versus"
          label="Contrast: the token it is compared with"
          shown={versus}
          chosen={view.versus !== null}
          body={body}
          fixed={[
            { label: 'any other (mean of the vocabulary)', value: 'none' },
            { label: 'nothing (the raw logit)', value: 'raw' },
          ]}
          onChoose={(choice) =>
            ask({ versus: choice === 'none' ? null : choice === 'raw' ? 'raw' : choice })
          }
        />
        <span class="together">
          ? <Term of="contrast" />
        </span>
      </p>
      {trace && !stale && (
        <p class="facts small muted" id="facts">
          {tokenText(trace.target.text)} has {probability(trace.target.probability)}{' '}
          <Term of="prediction" />
          {trace.target.logit_difference !== null ? (
            <>
              ; logit difference {signed(trace.target.logit_difference)} <Term of="logit" />
            </>
          ) : (
            <>; logit {number(trace.target.logit)}</>
          )}
        </p>
      )}
    </div>
  );
}
