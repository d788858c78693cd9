import { useEffect, useRef, useState } from 'preact/hooks';

export function useSize<E extends Element>(): [
  { current: E | null },
  { width: number; height: number },
] {
  const ref = useRef<E>(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  useEffect(() => {
    if (!ref.current) return;
    const observer = new ResizeObserver((entries) => {
      const { width, height } = entries[0].contentRect;
      setSize((old) =>
        Math.floor(width) === old.width && Math.floor(height) === old.height
          ? old
          : { width: Math.floor(width), height: Math.floor(height) },
      );
    });
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, size];
}

export type Theme = 'auto' | 'light' | 'dark';

export function useTheme(): [Theme, (theme: Theme) => void, boolean] {
  const [theme, setTheme] = useState<Theme>(() => {
    try {
      const kept = localStorage.getItem('unpack-theme');
      return kept === 'light' || kept === 'dark' ? kept : 'auto';
    } catch {
      return 'auto'; // storage may be switched off
    }
  });
  const query = matchMedia('(prefers-color-scheme: dark)');
  const [system, setSystem] = useState(query.matches);
  useEffect(() => {
    const follow = () => setSystem(query.matches);
    query.addEventListener('change', follow);
    return () => query.removeEventListener('change', follow);
  }, []);
  useEffect(() => {
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem('unpack-theme', theme);
    } catch {
      // not kept then
    }
  }, [theme]);
  return [theme, setTheme, theme === 'dark' || (theme === 'auto' && system)];
}
