import { useEffect, useState } from 'preact/hooks';
import { Answer, hasGated } from './Answer';
import { api } from './api';
import { ExportMenu } from './ExportMenu';
import { useLatest, useTheme, type Theme } from './hooks';
import { Menu } from './Menu';
import { OptionsPanel } from './OptionsPanel';
import { FIRST_PATHS } from './paths';
import { Predictions } from './Predictions';
import { PromptCard } from './PromptCard';
import { NO_FILTERS, fromHash, promptBody, rootOf, toHash, traceBody, type View } from './state';

// The view lives in the address: every change is written there, and going back in the browser goes back here.
function useView(): [View, (change: Partial<View>, step?: boolean) => void] {
  const [view, setView] = useState<View>(() => fromHash(location.hash));
  useEffect(() => {
    const follow = () => setView(fromHash(location.hash));
    addEventListener('popstate', follow);
    return () => removeEventListener('popstate', follow);
  }, []);
  const change = (part: Partial<View>, step = false) =>
    setView((old) => {
      const next = { ...old, ...part };
      const hash = toHash(next);
      if (hash !== location.hash) history[step ? 'pushState' : 'replaceState'](null, '', hash);
      return next;
    });
  return [view, change];
}

export function App() {
  const [view, change] = useView();
  const [draft, setDraft] = useState(view.prompt);
  useEffect(() => setDraft(view.prompt), [view.prompt]);
  const [theme, setTheme] = useTheme();
  const [raw, setRaw] = useState(false);
  const models = useLatest('models', (signal) => api.models(signal));
  const model = view.model ?? models.data?.models.find((entry) => entry.default)?.name ?? null;

  const typed = { ...promptBody({ ...view, prompt: draft }) };
  const tokens = useLatest(model && draft ? JSON.stringify(typed) : null, (signal) => api.tokenize(typed, signal), 60);
  const asked = { ...typed, ...(view.position === null || draft !== view.prompt ? {} : { position: view.position }) };
  const predicted = useLatest(model && draft ? JSON.stringify(asked) : null, (signal) => api.predict(asked, signal), draft === view.prompt ? 0 : 250);

  const body = traceBody(view);
  const root = rootOf(view);
  const traceRequest = { ...body, top_paths: FIRST_PATHS };
  const traced = useLatest(model && view.prompt ? JSON.stringify(traceRequest) : null, (signal) => (root ? api.reroot : api.trace)(traceRequest, signal));

  // Another prompt has other positions: what was chosen by position is dropped.
  const trace = (part: Partial<View> = {}) => change({ prompt: draft, ...(draft === view.prompt ? {} : { position: null, trail: [], filters: NO_FILTERS, mass: null }), ...part });

  return (
    <>
      <header>
        <h1>unpack</h1>
        <label class="field inline">
          <span class="wide-only">Model</span>
          <select
            id="model"
            aria-label="Model"
            value={model ?? ''}
            onChange={(event) => change({ model: event.currentTarget.value, target: null, versus: null, position: null, trail: [], filters: NO_FILTERS, mass: null })}
          >
            {models.data?.models.map((entry) => <option key={entry.name} value={entry.name}>{entry.name}</option>)}
          </select>
        </label>
        <span class="grow" />
        {models.data && (
          <Menu id="options" label={Object.keys(view.options).length ? 'Options •' : 'Options'}>
            <OptionsPanel view={view} defaults={models.data.options} gated={traced.data ? hasGated(models.data, traced.data) : false} onChange={change} />
          </Menu>
        )}
        {traced.data && <ExportMenu trace={traced.data} body={body} />}
        <label class="field inline">
          <select aria-label="Theme" value={theme} onChange={(event) => setTheme(event.currentTarget.value as Theme)}>
            <option value="auto">auto</option>
            <option value="light">light</option>
            <option value="dark">dark</option>
          </select>
        </label>
      </header>
      <main>
        {models.error && <p class="problem" role="alert">{models.error}</p>}
        <div class="ask">
          <PromptCard
            draft={draft}
            tokens={draft ? (tokens.data?.tokens ?? []) : []}
            busy={traced.busy}
            stale={draft !== view.prompt}
            position={draft === view.prompt ? view.position : null}
            error={tokens.error ?? predicted.error}
            onDraft={setDraft}
            onTrace={() => trace()}
            onPosition={(position) => trace({ position, trail: [] })}
          />
          <Predictions
            predictions={predicted.data?.predictions ?? []}
            target={view.target}
            versus={view.versus}
            resolved={traced.data?.target ?? null}
            onTarget={(target) => trace({ target })}
            onVersus={(versus) => trace({ versus })}
          />
        </div>
        {traced.error && <p class="problem" role="alert">{traced.error}</p>}
        {traced.data && models.data && (
          <Answer
            trace={traced.data}
            busy={traced.busy}
            models={models.data}
            view={view}
            body={body}
            raw={raw}
            theme={theme}
            onRaw={setRaw}
            onChange={change}
          />
        )}
      </main>
    </>
  );
}
