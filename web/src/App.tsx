import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { AnswerTab } from './AnswerTab';
import { hasToken, request } from './api';
import { useAsk } from './ask';
import { Circuit } from './Circuit';
import { Compare } from './Compare';
import { Conversation, newTalk } from './Conversation';
import { ExportMenu } from './ExportMenu';
import type { Exports } from './exports';
import { toSvg } from './figure';
import { plural } from './format';
import { Heads } from './Heads';
import { useTheme, type Theme } from './hooks';
import { htmlPage } from './html_page';
import { Layers } from './Layers';
import { Menu } from './Menu';
import { OptionsPanel } from './OptionsPanel';
import { PromptTokens } from './PromptTokens';
import { questionText, titleOf } from './question';
import { LISTED } from './routes';
import { Sentence } from './Sentence';
import { Start, type Example } from './Start';
import {
  OF_A_PROMPT,
  fromHash,
  lastUser,
  pinsOf,
  promptBody,
  rootOf,
  toHash,
  traceBody,
  type Choice,
  type Tab,
  type Talk,
  type View,
  rootBody,
} from './state';
import { Status } from './Status';
import { TokenPrompt } from './TokenPrompt';
import type { ModelInfo, ModelsAnswer, TokenizeAnswer, Trace } from './types';
import { Why } from './Why';

const TABS: { tab: Tab; label: string }[] = [
  { tab: 'why', label: 'Why' },
  { tab: 'layers', label: 'Layers' },
  { tab: 'heads', label: 'Heads' },
  { tab: 'answer', label: 'Answer' },
  { tab: 'compare', label: 'Compare' },
  { tab: 'circuit', label: 'Circuit' },
];

// The view lives in the address: every question is an entry of the history, smaller changes replace
// the current one.
function useView(): [View, (change: Partial<View>, step?: boolean) => void] {
  const [view, setView] = useState<View>(() => fromHash(location.hash));
  const latest = useRef(view);
  useEffect(() => {
    const follow = () => {
      latest.current = fromHash(location.hash);
      setView(latest.current);
    };
    addEventListener('popstate', follow);
    return () => removeEventListener('popstate', follow);
  }, []);
  const change = (part: Partial<View>, step = false) => {
    const next = { ...latest.current, ...part };
    const hash = toHash(next);
    if (hash !== (location.hash || '#'))
      history[step ? 'pushState' : 'replaceState'](null, '', hash);
    latest.current = next;
    setView(next);
  };
  return [view, change];
}

export const isGated = (info: ModelInfo | null, trace: Trace | null): boolean =>
  info?.gated ??
  (trace !== null && ['llama', 'mistral', 'qwen2', 'qwen3'].includes(trace.model.family));

function modelLine(info: ModelInfo | null): string {
  if (!info) return 'loaded when it is first asked';
  return (
    `${info.family}, ${plural(info.layers, 'layer')} of ` +
    `${plural(info.heads, 'head')}${info.gated ? ', gated MLPs' : ''}` +
    (info.parallel ? ', parallel blocks' : '') +
    `; up to ${info.context} tokens; on ${info.device}`
  );
}

export function App() {
  const [view, change] = useView();
  const [draft, setDraft] = useState<string | null>(view.prompt ? null : '');
  const [talk, setTalk] = useState<Talk | null>(null); // a conversation that is being written
  const [theme, setTheme, dark] = useTheme();
  const [copied, setCopied] = useState<string | null>(null);
  const [tokenHover, setTokenHover] = useState<number | null>(null);
  const exports = useRef<Exports | null>(null);
  useEffect(() => {
    setDraft(view.prompt ? null : '');
    setTalk(null);
  }, [view.prompt, JSON.stringify(view.talk)]);

  const models = useAsk<ModelsAnswer>('models', null);
  // What a model can do is known once it is loaded.
  const traceRequest = { ...traceBody(view), top_paths: LISTED };
  const root = rootOf(view);
  const ready = models.data !== null;
  const traced = useAsk<Trace>(
    ready && view.prompt ? (root ? 'reroot' : 'trace') : null,
    root ? rootBody(traceRequest) : traceRequest,
  );
  const [infos, setInfos] = useState<ModelsAnswer | null>(null);
  const loaded = traced.data?.model.name;
  // A conversation wants to know whether the model has a template.
  const [talked, setTalked] = useState(0);
  useEffect(() => {
    if (!loaded && !talked) return;
    const stop = new AbortController();
    request('/api/models', null, stop.signal)
      .then((text) => setInfos(JSON.parse(text) as ModelsAnswer))
      .catch(() => undefined);
    return () => stop.abort();
  }, [loaded, talked]);
  const locked = models.status === 'failed' && models.problem?.status === 401;
  const served = infos ?? models.data;
  const model = view.model ?? served?.models.find((entry) => entry.default)?.name ?? null;
  const info = served?.models.find((entry) => entry.name === model)?.info ?? null;

  const written: View = talk
    ? { ...view, talk, prompt: lastUser(talk) }
    : draft === null
      ? view
      : { ...view, talk: null, prompt: draft };
  const tokens = useAsk<TokenizeAnswer>(
    ready && written.prompt ? 'tokenize' : null,
    promptBody(written),
    talk || draft !== null ? 80 : 0,
  );

  const split = tokens.status === 'done' || tokens.status === 'failed';
  useEffect(() => {
    if (talk && split && !info) setTalked(talked + 1);
  }, [talk !== null, split, model]);

  const editing = talk
    ? JSON.stringify(talk) !== JSON.stringify(view.talk)
    : draft !== null && (draft !== view.prompt || view.talk !== null);
  const stale =
    traced.stale || traced.status === 'failed' || traced.status === 'cancelled' || editing;
  const bytes = useMemo(
    () =>
      new Map(
        (tokens.data?.tokens ?? [])
          .filter((token) => token.bytes)
          .map((token) => [token.position, token.bytes]),
      ),
    [tokens.data],
  );
  // Tokens of the trace with the bytes that only the tokenizer's answer has.
  const trace = useMemo(() => {
    if (!traced.data || bytes.size === 0) return traced.data;
    return {
      ...traced.data,
      tokens: traced.data.tokens.map((token) => ({ ...token, bytes: bytes.get(token.position) })),
    };
  }, [traced.data, bytes]);
  useEffect(() => {
    document.title = titleOf(trace && !stale ? trace : null, view);
  }, [trace, stale, view.prompt]);

  const edit = () => (view.talk ? setTalk(view.talk) : setDraft(view.prompt));
  const ask = (prompt: string, conversation: Talk | null = null) => {
    setDraft(null);
    setTalk(null);
    change(
      prompt === view.prompt && JSON.stringify(conversation) === JSON.stringify(view.talk)
        ? {}
        : { prompt, talk: conversation, ...OF_A_PROMPT },
      true,
    );
    if (traced.status === 'failed' || traced.status === 'cancelled') traced.retry();
  };
  const example = (chosen: Example) => {
    setDraft(null);
    setTalk(null);
    change(
      {
        ...OF_A_PROMPT,
        talk: null,
        prompt: chosen.prompt,
        target: chosen.target,
        versus: chosen.versus,
        tab: 'why',
      },
      true,
    );
  };
  // Another model has other ids: the target and the contrast go along by their spelling.
  const chooseModel = (name: string) => {
    const spelled = (choice: Choice | null, text: string | null | undefined): Choice | null =>
      choice && 'id' in choice ? (text ? { text } : null) : choice;
    change(
      {
        model: name,
        trail: [],
        selected: null,
        circuit: { name: '', groups: [] },
        filters: {
          branch: null,
          through: null,
          from: null,
          minLayer: null,
          sign: view.filters.sign,
        },
        target: spelled(view.target, trace?.target.text),
        versus: view.versus === 'raw' ? 'raw' : spelled(view.versus, trace?.target.versus_text),
      },
      true,
    );
  };
  const copyLink = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      setCopied('copied');
    } catch {
      setCopied(location.href); // where the clipboard is closed, to be copied by hand
    }
    setTimeout(() => setCopied(null), 4000);
  };
  const last = (tokens.data?.tokens.length ?? trace?.tokens.length ?? 1) - 1;
  const position =
    view.position === null ? last : view.position < 0 ? last + 1 + view.position : view.position;

  // The printed figure is the exported one.
  useEffect(() => {
    const prepare = () => {
      const box = document.getElementById('printed');
      if (box && exports.current) box.innerHTML = toSvg(exports.current.figure());
    };
    addEventListener('beforeprint', prepare);
    return () => removeEventListener('beforeprint', prepare);
  }, []);
  if (view.tab !== 'why' || !trace) exports.current = null;
  const { top_paths: _, ...body } = traceRequest as Record<string, unknown>;
  const common = { trace: trace as Trace, stale, view, body, exports, onChange: change };
  return (
    <>
      <header>
        <h1>
          <button
            type="button"
            class="home"
            title="start again"
            onClick={() => {
              setDraft('');
              setTalk(null);
              change({ ...fromHash(''), model: view.model }, true);
            }}
          >
            unpack
          </button>
        </h1>
        <label class="field inline">
          <span class="wide-only">Model</span>
          <select
            id="model"
            aria-label="Model"
            value={model ?? ''}
            onChange={(event) => chooseModel(event.currentTarget.value)}
          >
            {served?.models.map((entry) => (
              <option key={entry.name} value={entry.name}>
                {entry.name}
              </option>
            ))}
          </select>
        </label>
        <span id="model-line" class="muted small wide-only">
          {ready ? modelLine(info) : ''}
        </span>
        <span class="grow" />
        {served && (
          <Menu
            id="options"
            label={Object.keys(view.options).length || view.noBos ? 'Options •' : 'Options'}
          >
            <OptionsPanel
              view={view}
              defaults={served.options}
              gated={isGated(info, trace)}
              mixture={info?.mixture ?? false}
              presets={served.presets ?? []}
              conservation={trace && !stale ? trace.conservation : null}
              onChange={change}
            />
          </Menu>
        )}
        {trace && (
          <>
            <ExportMenu
              exports={exports}
              question={questionText(trace.target, trace.root === 'target' ? null : trace.root)}
              html={
                view.tab === 'why' && !stale ? () => htmlPage(trace, exports.current, view) : null
              }
            />
            <button type="button" id="copy-link" onClick={copyLink}>
              {copied === 'copied' ? 'Copied' : 'Copy link'}
            </button>
          </>
        )}
        <label class="field inline">
          <select
            aria-label="Theme"
            value={theme}
            onChange={(event) => setTheme(event.currentTarget.value as Theme)}
          >
            <option value="auto">auto</option>
            <option value="light">light</option>
            <option value="dark">dark</option>
          </select>
        </label>
      </header>
      <main>
        {copied && copied !== 'copied' && (
          <p class="card">
            <input
              type="text"
              aria-label="Link"
              readOnly
              value={copied}
              onFocus={(event) => event.currentTarget.select()}
            />
          </p>
        )}
        {locked ? (
          <TokenPrompt tried={hasToken()} onToken={models.retry} />
        ) : (
          !models.data && <Status ask={models} what="Looking for the server" />
        )}
        {view.prompt && models.data && models.status === 'failed' && (
          <Status ask={models} what="Looking for the server" />
        )}
        {!locked && (
          <div class={`card ask ${view.prompt ? '' : 'empty'}`}>
            {talk && (
              <Conversation
                talk={talk}
                model={model}
                ownTemplate={info?.chat ?? null}
                asked={view.prompt !== ''}
                onDraft={setTalk}
                onAsk={(asked) => ask(lastUser(asked), asked)}
                onText={() => {
                  setDraft(lastUser(talk));
                  setTalk(null);
                }}
                onLeave={() => setTalk(null)}
              />
            )}
            <PromptTokens
              prompt={view.prompt}
              draft={talk ? null : draft}
              tokens={tokens}
              talking={written.talk !== null}
              credit={
                trace && !stale && root === null
                  ? { values: trace.token_credit, percents: trace.token_percent }
                  : null
              }
              position={position}
              from={view.filters.from}
              skipFirst={view.skipFirst}
              onDraft={setDraft}
              onEdit={edit}
              onTalk={() => {
                setTalk(newTalk(draft ?? view.prompt, info?.chat ?? true));
                if (view.prompt) setDraft(null);
              }}
              onPrompt={(text) => ask(text)}
              onPosition={(at) =>
                change(
                  {
                    position: at === last ? null : at,
                    target: null,
                    versus: null,
                    trail: [],
                    selected: null,
                    filters: { ...view.filters, from: null },
                  },
                  true,
                )
              }
              onHover={setTokenHover}
            />
            {tokens.status === 'failed' && traced.status !== 'failed' && (
              <Status ask={tokens} what="Splitting into tokens" />
            )}
            {view.prompt && !editing && (
              <Sentence
                trace={trace}
                stale={traced.stale || traced.status === 'failed'}
                view={view}
                onChange={change}
              />
            )}
          </div>
        )}
        {!locked && !view.prompt && <Start onExample={example} />}
        {view.prompt && (
          <>
            {editing && trace && (
              <p class="note" role="status">
                The prompt is being changed: what is greyed out answers the one before.
              </p>
            )}
            <Status ask={traced} what="Tracing" />
            {trace && (
              <div
                class={`answer ${stale ? 'of-before' : ''}`}
                aria-busy={traced.status === 'busy'}
              >
                <nav class="tabs" role="tablist" aria-label="Views">
                  {TABS.map(({ tab, label }) => (
                    <button
                      key={tab}
                      type="button"
                      role="tab"
                      id={`tab-${tab}`}
                      aria-selected={view.tab === tab}
                      onClick={() => change({ tab }, true)}
                    >
                      {label}
                      {tab === 'circuit' && pinsOf(view).length > 0
                        ? ` (${pinsOf(view).length})`
                        : ''}
                    </button>
                  ))}
                </nav>
                {view.tab === 'why' && (
                  <Why
                    {...common}
                    gated={isGated(info, trace)}
                    dark={dark}
                    tokenHover={tokenHover}
                  />
                )}
                {view.tab === 'layers' && <Layers {...common} />}
                {view.tab === 'heads' && <Heads {...common} dark={dark} />}
                {view.tab === 'answer' && (
                  <AnswerTab
                    model={trace.model.name}
                    documents={served?.endpoints.includes('sources') ?? false}
                    view={view}
                    exports={exports}
                    onChange={change}
                  />
                )}
                {view.tab === 'compare' && <Compare {...common} />}
                {view.tab === 'circuit' && <Circuit {...common} />}
              </div>
            )}
          </>
        )}
      </main>
      <div id="printed" class="print-only" aria-hidden="true" />
    </>
  );
}
