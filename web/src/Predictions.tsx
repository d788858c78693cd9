import { useState } from 'preact/hooks';
import { probability, quoted, tokenText } from './format';
import type { Choice, Contrast } from './state';
import type { Prediction, Target } from './types';

interface Props {
  predictions: Prediction[];
  target: Choice | null;
  versus: Contrast;
  resolved: Target | null;
  onTarget: (target: Choice | null) => void;
  onVersus: (versus: Contrast) => void;
}

const chosenId = (choice: Contrast) => (choice && choice !== 'raw' && 'id' in choice ? choice.id : null);

export function Predictions({ predictions, target, versus, resolved, onTarget, onVersus }: Props) {
  const top = predictions[0]?.probability ?? 1;
  const targetId = chosenId(target) ?? (target === null ? (predictions[0]?.id ?? null) : null);
  const versusId = chosenId(versus);
  // The first click makes a target, a click on another one the contrast, a click on a chosen one takes it back.
  const pick = (id: number) => {
    if (id === chosenId(target)) onTarget(null);
    else if (id === versusId) onVersus(null);
    else if (target === null) onTarget({ id });
    else onVersus({ id });
  };
  return (
    <section class="card predictions" aria-label="Next token">
      <div class="row spread">
        <h2 class="title">Next token</h2>
        <span class="muted small">{target === null ? 'click one: target' : 'click another: contrast'}</span>
      </div>
      <ol class="bars">
        {predictions.map((prediction) => {
          const role = prediction.id === targetId ? 'target' : prediction.id === versusId ? 'contrast' : '';
          return (
            <li key={prediction.id}>
              <button type="button" class={`bar ${role}`} aria-pressed={role !== ''} data-id={prediction.id} onClick={() => pick(prediction.id)}>
                <span class="fill" style={{ width: `${(100 * prediction.probability) / top}%` }} />
                <span class="text">{tokenText(prediction.text)}</span>
                <span class="tag">{role === 'target' && target === null ? 'target (top)' : role}</span>
                <span class="value">{probability(prediction.probability)}</span>
              </button>
            </li>
          );
        })}
      </ol>
      <div class="row choices">
        <TokenField label="Target" value={target} shown={resolved?.text ?? null} empty="top prediction" onChange={onTarget} />
        <TokenField label="Contrast" value={versus === 'raw' ? null : versus} shown={resolved?.versus_text ?? null} empty={versus === 'raw' ? 'none (raw logit)' : 'vocabulary mean'} onChange={onVersus} />
      </div>
    </section>
  );
}

interface FieldProps {
  label: string;
  value: Choice | null;
  shown: string | null;
  empty: string;
  onChange: (value: Choice | null) => void;
}

// Any token can be typed, not just the ten that are listed; a leading space counts.
function TokenField({ label, value, shown, empty, onChange }: FieldProps) {
  const [typed, setTyped] = useState<string | null>(null);
  const text = typed ?? (value === null ? '' : 'text' in value ? value.text : (shown ?? `#${value.id}`));
  const submit = () => {
    if (typed !== null) onChange(typed === '' ? null : { text: typed });
    setTyped(null);
  };
  return (
    <label class="field">
      <span>{label}</span>
      <input
        type="text"
        value={text}
        placeholder={empty}
        title={value === null ? `${label}: ${empty}. Type a token, with its leading space` : `${label}: ${quoted(text)}`}
        onInput={(event) => setTyped(event.currentTarget.value)}
        onBlur={submit}
        onKeyDown={(event) => event.key === 'Enter' && submit()}
      />
    </label>
  );
}
