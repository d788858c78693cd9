import { number, percent, plural, share, signed, tokenText } from './format';
import { Term } from './Help';
import { grossShare, routesAt, sharesMislead, sliderAt, type Shown } from './routes';
import { NO_FILTERS, filtered, type Filters, type View } from './state';
import type { Coverage, Token } from './types';

interface Props {
  view: View;
  shown: Shown;
  coverage: Coverage;
  branches: string[];
  components: string[];
  tokens: Token[];
  layers: number;
  onChange: (change: Partial<View>) => void;
}

// How many routes, which ones, and what they carry: every share is of the same whole, all routes.
export function Controls({
  view,
  shown,
  coverage,
  branches,
  components,
  tokens,
  layers,
  onChange,
}: Props) {
  const { filters } = view;
  const set = (change: Partial<Filters>) => onChange({ filters: { ...filters, ...change } });
  const integer = (text: string) => (text === '' ? null : Number(text));
  const asked = filtered(filters) || view.threshold > 0;
  const filteredCount =
    Object.values({ ...filters, sign: null }).filter((value) => value !== null).length +
    (view.threshold > 0 ? 1 : 0);
  return (
    <div class="controls">
      <label class="field inline routes">
        <span>Routes</span>
        <input
          id="routes"
          type="range"
          min={0}
          max={100}
          step={0.5}
          value={sliderAt(view.routes)}
          aria-valuetext={plural(view.routes, 'route')}
          onInput={(event) => onChange({ routes: routesAt(Number(event.currentTarget.value)) })}
        />
        <output for="routes">{view.routes}</output>
      </label>
      <div class="segmented" role="group" aria-label="Signs">
        {(
          [
            [null, '±', 'both signs'],
            ['positive', '+', 'only routes that raise the target'],
            ['negative', '−', 'only routes that lower it'],
          ] as const
        ).map(([value, label, title]) => (
          <button
            key={label}
            type="button"
            data-sign={value ?? 'both'}
            aria-pressed={filters.sign === value}
            title={title}
            aria-label={title}
            onClick={() => set({ sign: value })}
          >
            {label}
          </button>
        ))}
      </div>
      <label class="check small" title="Heads that have nothing to do rest on the first token">
        <input
          id="skip-first"
          type="checkbox"
          checked={view.skipFirst}
          onChange={(event) => onChange({ skipFirst: event.currentTarget.checked })}
        />
        leave out the first token
      </label>
      <Term of="first" />
      <details class="filters">
        <summary>Filters{filteredCount ? ` (${filteredCount})` : ''}</summary>
        <div class="filter-fields">
          <label class="field">
            <span>Last hop</span>
            <select
              id="filter-branch"
              value={filters.branch ?? ''}
              onChange={(event) => set({ branch: event.currentTarget.value || null })}
            >
              <option value="">any branch</option>
              {branches.map((branch) => (
                <option key={branch} value={branch}>
                  {branch}
                </option>
              ))}
            </select>
          </label>
          <label class="field">
            <span>Through</span>
            <select
              id="filter-through"
              value={filters.through ?? ''}
              onChange={(event) => set({ through: event.currentTarget.value || null })}
            >
              <option value="">any component</option>
              {components.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </label>
          <label class="field">
            <span>From token</span>
            <select
              id="filter-from"
              value={filters.from ?? ''}
              onChange={(event) => set({ from: integer(event.currentTarget.value) })}
            >
              <option value="">any token</option>
              {tokens.map((token) => (
                <option
                  key={token.position}
                  value={token.position}
                >{`${token.position}: ${tokenText(token.text, token.bytes)}`}</option>
              ))}
            </select>
          </label>
          <label class="field">
            <span>Layers</span>
            <select
              id="filter-layer"
              value={filters.minLayer ?? ''}
              onChange={(event) => set({ minLayer: integer(event.currentTarget.value) })}
            >
              <option value="">all layers</option>
              {Array.from({ length: Math.max(0, layers - 1) }, (_, layer) => (
                <option key={layer} value={layer + 1}>{`${layer + 1} and above`}</option>
              ))}
            </select>
          </label>
          <label class="field">
            <span>At least, of the net</span>
            <select
              id="threshold"
              value={String(view.threshold)}
              onChange={(event) => onChange({ threshold: Number(event.currentTarget.value) })}
            >
              {[0, 0.1, 0.2, 0.5, 1, 2, 5].map((value) => (
                <option key={value} value={value}>
                  {value === 0 ? 'any size' : `${value}%`}
                </option>
              ))}
            </select>
          </label>
        </div>
      </details>
      {asked && (
        <button
          type="button"
          id="clear-filters"
          class="link"
          onClick={() => onChange({ filters: NO_FILTERS, threshold: 0 })}
        >
          Clear filters
        </button>
      )}
      <p class="carried" id="carried" aria-live="polite">
        {sharesMislead(shown, coverage) ? (
          <>
            <b>{plural(shown.routes.length, 'route')}</b> add up to <b>{signed(shown.net)}</b> of a
            net credit <Term of="net" /> of {signed(shown.total)}{' '}
            <span class="muted">(a share of so little would say nothing)</span>
          </>
        ) : (
          <>
            <b>{plural(shown.routes.length, 'route')}</b> carr
            {shown.routes.length === 1 ? 'ies' : 'y'}{' '}
            <b>{share(shown.net, shown.total)} of the net credit</b> <Term of="net" />{' '}
            <span class="muted">
              ({number(shown.net)} of {number(shown.total)})
            </span>
          </>
        )}
        <span class="muted">
          {' '}
          and {percent(100 * grossShare(shown.gross, coverage))} of the gross mass
        </span>{' '}
        <Term of="mass" />
        <span class="muted">
          {filtered(filters)
            ? '; all routes that pass the filters hold ' +
              percent(100 * grossShare(coverage.absolute_matching, coverage)) +
              ' of it'
            : ''}
          {shown.routes.length < view.routes
            ? shown.limited
              ? `; no more than these are among the 500 strongest`
              : '; there are no more'
            : ''}
        </span>
      </p>
    </div>
  );
}
