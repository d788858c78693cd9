import { useState } from 'preact/hooks';
import { save, slug, toCsv, type Exports } from './exports';
import { toPng, toSvg, toTikz } from './figure';
import { Menu } from './Menu';
import { toPdf } from './pdf';

interface Props {
  exports: { current: Exports | null };
  question: string; // what the files are named after
  html: (() => string) | null; // the Why tab's page
}

export function ExportMenu({ exports, question, html }: Props) {
  const [error, setError] = useState<string | null>(null);
  const attempt =
    (suffix: string, type: string, make: (from: Exports) => Promise<Blob> | string) => async () => {
      try {
        setError(null);
        if (!exports.current) throw new Error('there is nothing to save here yet');
        const made = await make(exports.current);
        save(
          `${slug(question)}` +
            (exports.current.name === 'why' ? '' : `-${exports.current.name}`) +
            `.${suffix}`,
          made instanceof Blob ? made : new Blob([made], { type }),
        );
      } catch (problem) {
        setError((problem as Error).message);
      }
    };
  return (
    <Menu id="export" label="Export">
      <button
        type="button"
        data-format="svg"
        onClick={attempt('svg', 'image/svg+xml', (from) => toSvg(from.figure()))}
      >
        SVG figure
      </button>
      <button
        type="button"
        data-format="pdf"
        onClick={attempt('pdf', 'application/pdf', (from) => toPdf(from.figure()))}
      >
        PDF figure
      </button>
      <button
        type="button"
        data-format="png"
        onClick={attempt('png', 'image/png', (from) => toPng(from.figure()))}
      >
        PNG figure
      </button>
      <button
        type="button"
        data-format="tex"
        onClick={attempt('tex', 'text/plain', (from) => toTikz(from.figure()))}
      >
        TikZ (LaTeX)
      </button>
      <button
        type="button"
        data-format="csv"
        onClick={attempt('csv', 'text/csv', (from) => toCsv(from.rows()))}
      >
        CSV table
      </button>
      <button
        type="button"
        data-format="json"
        onClick={attempt(
          'json',
          'application/json',
          async (from) =>
            new Blob([JSON.stringify(await from.data(), null, 1)], { type: 'application/json' }),
        )}
      >
        JSON data
      </button>
      {html && (
        <button
          type="button"
          data-format="html"
          onClick={attempt('html', 'text/html', () => html())}
        >
          HTML page
        </button>
      )}
      <button type="button" data-format="print" onClick={() => print()}>
        Print…
      </button>
      {error && (
        <p class="problem" role="alert">
          {error}
        </p>
      )}
    </Menu>
  );
}
