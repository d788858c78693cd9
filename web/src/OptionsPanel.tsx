import type { View } from './state';
import type { MethodOptions } from './types';

interface Props {
  view: View;
  defaults: MethodOptions;
  gated: boolean;
  onChange: (change: Partial<View>) => void;
}

const CHOICES: { key: 'dispatch' | 'mlp' | 'scores' | 'reroot'; label: string; help: string; values: string[] }[] = [
  { key: 'dispatch', label: 'Dispatch', help: 'how indirect credit chooses among the entries of a component', values: ['aligned', 'gate'] },
  { key: 'mlp', label: 'MLP rule', help: 'a denominator per neuron, one per position, or by the norm of the scores', values: ['per-neuron', 'linearized', 'l2'] },
  { key: 'scores', label: 'Scores', help: 'as they are, or with their mean over the sources taken off', values: ['raw', 'centered'] },
  { key: 'reroot', label: 'Reroot direction', help: 'what the root itself writes, or the target', values: ['output', 'target'] },
];

// Only what differs from the paper's defaults is kept, sent and written into the address.
export function OptionsPanel({ view, defaults, gated, onChange }: Props) {
  const value = <K extends keyof MethodOptions>(key: K): MethodOptions[K] => view.options[key] ?? defaults[key];
  const set = <K extends keyof MethodOptions>(key: K, next: MethodOptions[K]) => {
    const options = { ...view.options, [key]: next };
    if (JSON.stringify(next) === JSON.stringify(defaults[key])) delete options[key];
    onChange({ options });
  };
  const weights = (key: 'weights' | 'mlp_weights', names: string[]) => (
    <fieldset class="field">
      <legend>{key === 'weights' ? 'Branch weights' : 'Gated MLP weights'}</legend>
      <div class="row">
        {names.map((name, index) => (
          <label key={name} class="field inline">
            <span>{name}</span>
            <NumberField
              value={value(key)[index]}
              min={0}
              onChange={(next) => set(key, value(key).map((old, i) => (i === index ? next : old)))}
            />
          </label>
        ))}
      </div>
    </fieldset>
  );
  return (
    <div class="options">
      <label class="field">
        <span>β, floor of the denominators</span>
        <NumberField value={value('beta')} min={0} onChange={(next) => set('beta', next)} />
      </label>
      {CHOICES.map(({ key, label, help, values }) => (
        <label key={key} class="field" title={help}>
          <span>{label}</span>
          <select value={value(key)} onChange={(event) => set(key, event.currentTarget.value)}>
            {values.map((name) => <option key={name} value={name}>{name === defaults[key] ? `${name} (default)` : name}</option>)}
          </select>
        </label>
      ))}
      {weights('weights', ['K', 'Q', 'V'])}
      {gated && weights('mlp_weights', ['G', 'U'])}
      <label class="check">
        <input type="checkbox" checked={view.noBos} onChange={(event) => onChange({ noBos: event.currentTarget.checked, position: null, trail: [] })} />
        leave the special tokens in front out
      </label>
      <label class="check">
        <input type="checkbox" checked={view.versus === 'raw'} onChange={(event) => onChange({ versus: event.currentTarget.checked ? 'raw' : null })} />
        raw logit: no contrast at all
      </label>
      <button type="button" class="link" onClick={() => onChange({ options: {}, noBos: false, versus: view.versus === 'raw' ? null : view.versus })}>Back to the paper's defaults</button>
    </div>
  );
}

function NumberField({ value, min, onChange }: { value: number; min: number; onChange: (value: number) => void }) {
  const shown = Math.round(value * 1e4) / 1e4;
  return (
    <input
      type="number"
      min={min}
      step="any"
      value={shown}
      onChange={(event) => {
        const next = event.currentTarget.valueAsNumber;
        if (Number.isFinite(next) && next >= min && next !== shown) onChange(next);
      }}
    />
  );
}
