import { percent } from './format';
import { Explained, Term } from './Help';
import type { View } from './state';
import type { MethodOptions } from './types';

interface Props {
  view: View;
  defaults: MethodOptions;
  gated: boolean;
  mixture: boolean;
  presets: MethodOptions[];
  conservation: { first: number; reached: number } | null;
  onChange: (change: Partial<View>, step?: boolean) => void;
}

const PRESETS: Record<string, string> = {
  paper: 'the paper’s settings',
  released: 'what the authors’ program does',
  best: 'passes the most tests with known answers; slower on long prompts',
};

const CHOICES: {
  key: 'dispatch' | 'mlp' | 'scores' | 'reroot' | 'direction' | 'keys';
  label: string;
  help: string;
  values: string[];
}[] = [
  {
    key: 'dispatch',
    label: 'Dispatch',
    help: 'how indirect credit chooses among the entries of a component',
    values: ['aligned', 'gate'],
  },
  {
    key: 'mlp',
    label: 'MLP rule',
    help: 'a denominator per neuron, one per position, or by the norm of the scores',
    values: ['per-neuron', 'linearized', 'l2'],
  },
  {
    key: 'scores',
    label: 'Scores',
    help: 'as they are, or with their mean over the sources taken off',
    values: ['raw', 'centered'],
  },
  {
    key: 'reroot',
    label: 'Reroot direction',
    help: 'what the root itself writes, or the target',
    values: ['output', 'target'],
  },
  {
    key: 'direction',
    label: 'Direction',
    help: 'credit follows what a component writes, or what its readers read of it',
    values: ['output', 'read'],
  },
  {
    key: 'keys',
    label: 'Key credit',
    help: 'direction read with centered scores: it stays at the source, or is spread over all',
    values: ['source', 'spread'],
  },
];

// Only what differs from the preset, and the preset where it is not the paper's, is kept, sent and
// written into the address.
export function OptionsPanel({
  view,
  defaults: paper,
  gated,
  mixture,
  presets,
  conservation,
  onChange,
}: Props) {
  const preset = view.options.preset ?? paper.preset;
  const defaults = presets.find((each) => each.preset === preset) ?? paper;
  const value = <K extends keyof MethodOptions>(key: K): NonNullable<MethodOptions[K]> =>
    (view.options[key] ?? defaults[key]) as NonNullable<MethodOptions[K]>;
  const set = <K extends keyof MethodOptions>(key: K, next: MethodOptions[K]) => {
    const options = { ...view.options, [key]: next };
    if (JSON.stringify(next) === JSON.stringify(defaults[key])) delete options[key];
    onChange({ options });
  };
  const weights = (
    key: 'weights' | 'mlp_weights' | 'expert_weights',
    title: string,
    names: string[],
  ) => (
    <fieldset class="field">
      <legend>
        {title}{' '}
        <Explained
          title={title}
          text="How much of a component’s credit goes through each way in which it reads."
        />
      </legend>
      <div class="row">
        {names.map((name, index) => (
          <label key={name} class="field inline">
            <span>{name}</span>
            <NumberField
              value={value(key)[index]}
              min={0}
              onChange={(next) =>
                set(
                  key,
                  value(key).map((old, i) => (i === index ? next : old)),
                )
              }
            />
          </label>
        ))}
      </div>
    </fieldset>
  );
  const beta = value('beta');
  return (
    <div class="options">
      {presets.length > 0 && (
        <label class="field" for="preset">
          <span>
            Preset{' '}
            <Explained
              title="Preset"
              text={
                'Settings of the method that go together: ours, the paper’s, and those of its ' +
                'released code. Whatever is changed below overrides them.'
              }
            />
          </span>
          <select
            id="preset"
            value={preset}
            onChange={(event) =>
              onChange(
                {
                  options:
                    event.currentTarget.value === paper.preset
                      ? {}
                      : { preset: event.currentTarget.value },
                },
                true,
              )
            }
          >
            {presets.map((each) => (
              <option key={each.preset} value={each.preset}>
                {each.preset === paper.preset ? `${each.preset} (default)` : each.preset}
              </option>
            ))}
          </select>
          <span class="hint">{PRESETS[preset ?? ''] ?? ''}</span>
        </label>
      )}
      <label class="field" for="beta">
        <span>
          Complete – stable (β {beta}) <Term of="beta" />
        </span>
        <span class="trade">
          <span>complete</span>
          <input
            id="beta"
            type="range"
            min={0}
            max={1}
            step={0.05}
            value={beta}
            onChange={(event) => set('beta', Number(event.currentTarget.value))}
          />
          <span>stable</span>
        </span>
        <span class="small">
          {conservation && conservation.first !== 0
            ? `${percent((100 * conservation.reached) / conservation.first)} of the credit now ` +
              'arrives at the tokens'
            : ''}
        </span>
      </label>
      {CHOICES.filter(({ key }) => key !== 'keys' || value('direction') === 'read').map(
        ({ key, label, help, values }) => (
          <label key={key} class="field" for={`option-${key}`}>
            <span>
              {label} <Explained title={label} text={`${help[0].toUpperCase()}${help.slice(1)}.`} />
            </span>
            <select
              id={`option-${key}`}
              data-option={key}
              value={value(key)}
              onChange={(event) => set(key, event.currentTarget.value)}
            >
              {values.map((name) => (
                <option key={name} value={name}>
                  {name === defaults[key]
                    ? `${name} (${preset === paper.preset ? 'default' : preset})`
                    : name}
                </option>
              ))}
            </select>
          </label>
        ),
      )}
      {value('direction') === 'read' && (
        <label class="field inline" for="option-floor">
          <span>
            Floor{' '}
            <Explained
              title="Floor"
              text="Least denominator of K and Q shares, in logits: smaller sums pass on less."
            />
          </span>
          <NumberField
            id="option-floor"
            value={value('floor')}
            min={0}
            onChange={(next) => set('floor', next)}
          />
        </label>
      )}
      {weights('weights', 'Branch weights', ['K', 'Q', 'V'])}
      {gated && weights('mlp_weights', 'Gated MLP weights', ['G', 'U'])}
      {mixture && weights('expert_weights', 'Mixture weights', ['R', 'G', 'U'])}
      <label class="check">
        <input
          type="checkbox"
          checked={view.noBos}
          onChange={(event) =>
            onChange(
              { noBos: event.currentTarget.checked, position: null, trail: [], selected: null },
              true,
            )
          }
        />
        leave the special tokens in front out
      </label>
      <button
        type="button"
        id="defaults"
        class="link"
        onClick={() => onChange({ options: {}, noBos: false })}
      >
        Back to the defaults
      </button>
    </div>
  );
}

function NumberField({
  id,
  value,
  min,
  onChange,
}: {
  id?: string;
  value: number;
  min: number;
  onChange: (value: number) => void;
}) {
  const shown = Math.round(value * 1e4) / 1e4;
  return (
    <input
      id={id}
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
