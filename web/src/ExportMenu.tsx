import { useState } from 'preact/hooks';
import { api } from './api';
import { png, save, standaloneSvg } from './exports';
import { Menu } from './Menu';
import { FIRST_PATHS } from './paths';
import type { Trace } from './types';

export function ExportMenu({ trace, body }: { trace: Trace; body: Record<string, unknown> }) {
  const [error, setError] = useState<string | null>(null);
  const attempt = (make: () => Promise<void> | void) => async () => {
    try {
      setError(null);
      await make();
    } catch (problem) {
      setError((problem as Error).message);
    }
  };
  const graph = () => {
    const svg = document.querySelector<SVGSVGElement>('#graph');
    if (!svg) throw new Error('open the Paths view first: the picture is taken from there');
    return svg;
  };
  const name = `unpack-${trace.root.replace(/[^A-Za-z0-9]+/g, '-')}`;
  return (
    <Menu id="export" label="Export">
      <button type="button" onClick={attempt(() => save(`${name}.json`, new Blob([JSON.stringify(trace, null, 1)], { type: 'application/json' })))}>JSON</button>
      <button type="button" onClick={attempt(() => save(`${name}.svg`, new Blob([standaloneSvg(graph())], { type: 'image/svg+xml' })))}>SVG</button>
      <button type="button" onClick={attempt(async () => save(`${name}.png`, await png(graph())))}>PNG</button>
      <button type="button" onClick={attempt(async () => save(`${name}.html`, new Blob([await api.html({ ...body, top_paths: FIRST_PATHS })], { type: 'text/html' })))}>HTML page</button>
      {error && <p class="problem" role="alert">{error}</p>}
    </Menu>
  );
}
