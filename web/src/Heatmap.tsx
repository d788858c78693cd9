import { interpolateRgbBasis } from 'd3-interpolate';
import { scaleSequentialSqrt } from 'd3-scale';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useAsk } from './ask';
import { number, tokenText } from './format';
import { Term } from './Help';
import { layerStarts, makeGrid, type Zoom } from './heat';
import { useSize } from './hooks';
import { parseComponent } from './nodes';
import { Status } from './Status';
import type { InteractionsAnswer, Token } from './types';

interface Props {
  body: Record<string, unknown>;
  tokens: Token[];
  dark: boolean;
}

const LEFT = 52,
  TOP = 18;
// Light to dark through one hue and a half: readable without telling colours apart.
const LIGHT = ['#f3f6f9', '#9cc7e0', '#3182bd', '#123a66'];
const DARK = ['#1a222c', '#1f5583', '#46a0d8', '#e6f4ff'];

const layerName = (layer: number) => (layer < 0 ? 'emb' : `L${layer}`);

export function Heatmap({ body, tokens, dark }: Props) {
  const [kind, setKind] = useState<'attention' | 'mlp'>('attention');
  const [query, setQuery] = useState<number | null>(null);
  const [zoom, setZoom] = useState<Zoom>({ reader: null, writer: null });
  const [at, setAt] = useState<{ row: number; column: number } | null>(null);
  const [frame, { width }] = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const request = { ...body, ...(query === null ? {} : { query }) };
  const loaded = useAsk<InteractionsAnswer>('interactions', request);
  const grid = useMemo(() => makeGrid(loaded.data?.[kind] ?? [], zoom), [loaded.data, kind, zoom]);
  const rows = grid.readers.length,
    columns = grid.writers.length;
  const cell = Math.max(1, Math.min(26, columns ? (Math.max(240, width) - LEFT) / columns : 1));
  const tall = Math.max(3, Math.min(cell, rows ? 560 / rows : cell));
  const height = TOP + rows * tall;
  const color = useMemo(
    () =>
      scaleSequentialSqrt(interpolateRgbBasis(dark ? DARK : LIGHT)).domain([0, grid.largest || 1]),
    [grid, dark],
  );

  useEffect(() => {
    const context = canvas.current?.getContext('2d');
    if (!canvas.current || !context || columns === 0) return;
    const scale = window.devicePixelRatio || 1;
    canvas.current.width = Math.round((LEFT + columns * cell) * scale);
    canvas.current.height = Math.round(height * scale);
    context.scale(scale, scale);
    const ink = getComputedStyle(canvas.current).color;
    // The first reader at the bottom: layers go upward, as in the graph.
    for (let row = 0; row < rows; ++row) {
      for (let column = 0; column < columns; ++column) {
        const score = grid.scores[row * columns + column];
        if (Number.isNaN(score)) continue;
        context.fillStyle = color(score);
        context.fillRect(
          LEFT + column * cell,
          TOP + (rows - 1 - row) * tall,
          Math.max(cell - (cell > 5 ? 1 : 0), 0.5),
          Math.max(tall - (tall > 5 ? 1 : 0), 0.5),
        );
      }
    }
    context.fillStyle = ink;
    context.font = '10px system-ui, sans-serif';
    label(context, grid, cell, tall, rows);
    if (at && at.row < rows && at.column < columns) {
      context.strokeStyle = ink;
      context.lineWidth = 1.5;
      context.strokeRect(
        LEFT + at.column * cell - 0.5,
        TOP + (rows - 1 - at.row) * tall - 0.5,
        cell,
        tall,
      );
    }
  }, [grid, cell, tall, color, at]);

  const layers = [
    ...new Set((loaded.data?.[kind] ?? []).map((entry) => parseComponent(entry.reader).layer)),
  ].sort((a, b) => a - b);
  const score = at ? grid.scores[at.row * columns + at.column] : NaN;
  const move = (event: KeyboardEvent) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[
      event.key
    ];
    if (step && rows && columns) {
      event.preventDefault();
      const clip = (x: number, most: number) => Math.min(most - 1, Math.max(0, x));
      setAt({
        row: clip((at?.row ?? 0) + step[0], rows),
        column: clip((at?.column ?? 0) + step[1], columns),
      });
    }
    if (event.key === 'Enter' && at) zoomAt(at);
    if (event.key === 'Escape') setZoom({ reader: null, writer: null });
  };
  const zoomAt = (place: { row: number; column: number }) => {
    if (Number.isNaN(grid.scores[place.row * columns + place.column])) return;
    const inside = zoom.reader !== null;
    setZoom(
      inside
        ? { reader: null, writer: null }
        : {
            reader: parseComponent(grid.readers[place.row]).layer,
            writer: parseComponent(grid.writers[place.column]).layer,
          },
    );
    setAt(null);
  };
  const find = (event: MouseEvent) => {
    const box = canvas.current?.getBoundingClientRect();
    if (!box) return null;
    const column = Math.floor((event.clientX - box.left - LEFT) / cell),
      row = rows - 1 - Math.floor((event.clientY - box.top - TOP) / tall);
    return row >= 0 && row < rows && column >= 0 && column < columns ? { row, column } : null;
  };

  return (
    <section class="card" aria-label="Interactions">
      <h2 class="title">
        Who reads whom{' '}
        <span class="muted">how strongly each reader (rows) reads each writer (columns)</span>{' '}
        <Term of="interactions" />
      </h2>
      <div class="filter-fields">
        <div class="segmented" role="group" aria-label="Readers">
          <button
            type="button"
            aria-pressed={kind === 'attention'}
            onClick={() => setKind('attention')}
          >
            attention heads
          </button>
          <button type="button" aria-pressed={kind === 'mlp'} onClick={() => setKind('mlp')}>
            MLPs
          </button>
        </div>
        <label class="field">
          <span>Query</span>
          <select
            value={query ?? ''}
            onChange={(event) =>
              setQuery(event.currentTarget.value === '' ? null : Number(event.currentTarget.value))
            }
          >
            <option value="">mean over queries</option>
            {tokens.map((token) => (
              <option
                key={token.position}
                value={token.position}
              >{`${token.position}: ${tokenText(token.text)}`}</option>
            ))}
          </select>
        </label>
        <label class="field">
          <span>Reader layer</span>
          <select
            value={zoom.reader ?? ''}
            onChange={(event) =>
              setZoom({
                ...zoom,
                reader: event.currentTarget.value === '' ? null : Number(event.currentTarget.value),
              })
            }
          >
            <option value="">all</option>
            {layers.map((layer) => (
              <option key={layer} value={layer}>
                {layer}
              </option>
            ))}
          </select>
        </label>
        <label class="field">
          <span>Writer layer</span>
          <select
            value={zoom.writer ?? ''}
            onChange={(event) =>
              setZoom({
                ...zoom,
                writer: event.currentTarget.value === '' ? null : Number(event.currentTarget.value),
              })
            }
          >
            <option value="">all</option>
            {[-1, ...layers].map((layer) => (
              <option key={layer} value={layer}>
                {layerName(layer)}
              </option>
            ))}
          </select>
        </label>
      </div>
      <Status ask={loaded} what="Reading interactions" />
      <div class="heat" ref={frame}>
        {columns > 0 ? (
          <canvas
            ref={canvas}
            style={{ width: `${LEFT + columns * cell}px`, height: `${height}px` }}
            tabIndex={0}
            role="application"
            aria-label={
              'Interaction heatmap; arrow keys move, Enter zooms into the layer, Escape shows ' +
              'all'
            }
            onMouseMove={(event) => setAt(find(event))}
            onMouseLeave={() => setAt(null)}
            onClick={(event) => {
              const place = find(event);
              if (place) zoomAt(place);
            }}
            onKeyDown={move}
          />
        ) : (
          <p class="muted">
            {loaded.status === 'busy'
              ? 'Reading…'
              : 'Nothing is read there: a reader sees only the layers below it.'}
          </p>
        )}
      </div>
      <p class="small" aria-live="polite">
        {at && !Number.isNaN(score) ? (
          <>
            <b>{grid.readers[at.row]}</b> reads <b>{grid.writers[at.column]}</b>: {number(score)}
          </>
        ) : (
          <span class="muted">
            {zoom.reader === null
              ? 'Click a cell to zoom into its layers.'
              : 'Click again to see all layers.'}{' '}
            Strongest: {number(grid.largest)}
          </span>
        )}
      </p>
    </section>
  );
}

function label(
  context: CanvasRenderingContext2D,
  grid: { readers: string[]; writers: string[] },
  cell: number,
  tall: number,
  rows: number,
) {
  const few = (size: number) => size >= 13;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  if (few(tall))
    grid.readers.forEach((name, row) =>
      context.fillText(name, LEFT - 5, TOP + (rows - 1 - row + 0.5) * tall),
    );
  else
    for (const start of layerStarts(grid.readers))
      context.fillText(layerName(start.layer), LEFT - 5, TOP + (rows - start.index) * tall - 5);
  context.textAlign = 'left';
  const wide = cell >= 24;
  let free = 0;
  for (const start of layerStarts(grid.writers)) {
    const x = LEFT + start.index * cell;
    if (wide || x < free) continue;
    context.fillText(layerName(start.layer), x, TOP - 9);
    free = x + 24;
  }
  if (wide)
    grid.writers.forEach((name, column) =>
      context.fillText(name.replace(/^A\d+\./, ''), LEFT + column * cell + 2, TOP - 9),
    );
}
