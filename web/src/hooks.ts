import { useEffect, useRef, useState } from 'preact/hooks';

export interface Loaded<T> {
  data: T | null;
  error: string | null;
  busy: boolean;
}

// Runs `load` whenever `key` changes (null: not at all), the latest request only; what was there stays until the new answer comes.
export function useLatest<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>, delay = 0): Loaded<T> & { key: string | null } {
  const [state, setState] = useState<Loaded<T> & { key: string | null }>({ data: null, error: null, busy: false, key: null });
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    if (key === null) {
      setState({ data: null, error: null, busy: false, key: null });
      return;
    }
    const controller = new AbortController();
    setState((old) => ({ ...old, busy: true }));
    const run = () =>
      latest.current(controller.signal).then(
        (data) => !controller.signal.aborted && setState({ data, error: null, busy: false, key }),
        (error: Error) => !controller.signal.aborted && setState((old) => ({ ...old, error: error.message, busy: false })),
      );
    if (delay === 0) {
      void run();
      return () => controller.abort();
    }
    const timer = setTimeout(run, delay);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [key]);
  return state;
}

export function useWidth<E extends Element>(): [{ current: E | null }, number] {
  const ref = useRef<E>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!ref.current) return;
    const observer = new ResizeObserver((entries) => setWidth(Math.floor(entries[0].contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

export type Theme = 'auto' | 'light' | 'dark';

export function useTheme(): [Theme, (theme: Theme) => void] {
  const [theme, setTheme] = useState<Theme>(() => {
    try {
      const kept = localStorage.getItem('unpack-theme');
      return kept === 'light' || kept === 'dark' ? kept : 'auto';
    } catch {
      return 'auto'; // storage may be switched off
    }
  });
  useEffect(() => {
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem('unpack-theme', theme);
    } catch {
      // not kept then
    }
  }, [theme]);
  return [theme, setTheme];
}
