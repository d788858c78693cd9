import { percent, tokenText } from './format';
import { NO_FILTERS, filtered, type Filters as Chosen } from './state';
import type { Shares, Shown } from './paths';
import type { Token } from './types';

interface Props {
  filters: Chosen;
  branches: string[];
  components: string[];
  tokens: Token[];
  layers: number;
  onChange: (filters: Chosen) => void;
}

export function FilterBar({ filters, branches, components, tokens, layers, onChange }: Props) {
  const set = (change: Partial<Chosen>) => onChange({ ...filters, ...change });
  const integer = (text: string) => (text === '' ? null : Number(text));
  return (
    <div class="filters" role="group" aria-label="Filters">
      <label class="field">
        <span>Last hop</span>
        <select id="filter-branch" value={filters.branch ?? ''} onChange={(event) => set({ branch: event.currentTarget.value || null })}>
          <option value="">any branch</option>
          {branches.map((branch) => <option key={branch} value={branch}>{branch}</option>)}
        </select>
      </label>
      <label class="field">
        <span>Through</span>
        <select id="filter-through" value={filters.through ?? ''} onChange={(event) => set({ through: event.currentTarget.value || null })}>
          <option value="">any component</option>
          {components.map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
      </label>
      <label class="field">
        <span>From token</span>
        <select id="filter-from" value={filters.from ?? ''} onChange={(event) => set({ from: integer(event.currentTarget.value) })}>
          <option value="">any token</option>
          {tokens.map((token) => <option key={token.position} value={token.position}>{`${token.position}: ${tokenText(token.text)}`}</option>)}
        </select>
      </label>
      <label class="field">
        <span>Layers</span>
        <select id="filter-layer" value={filters.minLayer ?? ''} onChange={(event) => set({ minLayer: integer(event.currentTarget.value) })}>
          <option value="">all layers</option>
          {Array.from({ length: Math.max(0, layers - 1) }, (_, layer) => <option key={layer} value={layer + 1}>{`${layer + 1} and above`}</option>)}
        </select>
      </label>
      <label class="field">
        <span>Sign</span>
        <select id="filter-sign" value={filters.sign ?? ''} onChange={(event) => set({ sign: (event.currentTarget.value || null) as Chosen['sign'] })}>
          <option value="">both signs</option>
          <option value="positive">positive</option>
          <option value="negative">negative</option>
        </select>
      </label>
      {filtered(filters) && <button type="button" class="link" onClick={() => onChange(NO_FILTERS)}>Clear filters</button>}
    </div>
  );
}

interface MassProps {
  mass: number | null;
  shown: Shown;
  shares: Shares;
  busy: boolean;
  limited: boolean; // the server lists no more paths than these
  onMass: (mass: number | null) => void;
}

// What is not shown is always said: a few paths are never the whole story.
export function MassBar({ mass, shown, shares, busy, limited, onMass }: MassProps) {
  const matching = shares.shown + shares.unlisted;
  const held = matching > 0 ? (100 * shares.shown) / matching : 0;
  const remainder = shares.unlisted + shares.filteredOut;
  return (
    <div class="mass">
      <label class="row" for="mass">
        <span>Paths that hold</span>
        <input id="mass" type="range" min={1} max={99} step={1} value={mass ?? Math.max(1, Math.round(held))} onInput={(event) => onMass(Number(event.currentTarget.value))} />
        <output for="mass">{mass === null ? percent(held) : `${mass}%`} of the mass</output>
        {mass !== null && <button type="button" class="link" onClick={() => onMass(null)}>strongest 30</button>}
      </label>
      <div class="stack" role="img" aria-label={`shown ${percent(shares.shown)}, not shown ${percent(remainder)}`}>
        <span class="shown" style={{ width: `${shares.shown}%` }} />
        <span class="unlisted" style={{ width: `${shares.unlisted}%` }} />
        <span class="out" style={{ width: `${shares.filteredOut}%` }} />
      </div>
      <p class="small" id="remainder" aria-live="polite">
        <b>{shown.paths.length}</b> path{shown.paths.length === 1 ? '' : 's'} shown, <b>{percent(shares.shown)}</b> of all mass; <b>unexplained remainder {percent(remainder)}</b>
        {shares.filteredOut > 0.005 && ` (${percent(shares.filteredOut)} filtered out)`}
        {busy ? ' · fetching more…' : !shown.reached && limited ? ' · the server lists no more paths than these' : ''}
      </p>
    </div>
  );
}
