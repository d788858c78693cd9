// A picture as a list of things to draw, so that SVG, PNG, PDF and TikZ show the same. Always on
// white.

export interface Rect {
  kind: 'rect';
  x: number;
  y: number;
  w: number;
  h: number;
  r?: number;
  fill?: string;
  stroke?: string;
  width?: number;
}

export interface Polyline {
  kind: 'line';
  points: { x: number; y: number }[];
  stroke: string;
  width: number;
  dashed?: boolean;
  opacity?: number;
}

export interface Text {
  kind: 'text';
  x: number;
  y: number;
  text: string;
  size: number;
  fill?: string;
  anchor?: 'start' | 'middle' | 'end';
  bold?: boolean;
}

export type Item = Rect | Polyline | Text;

export interface Figure {
  title: string;
  width: number;
  height: number;
  items: Item[];
}

export const INK = '#1b1f24',
  MUTED = '#5d6672',
  LINE = '#d9dee4',
  BAND = '#f5f7f9',
  POSITIVE = '#0b5fa5',
  NEGATIVE = '#d55e00',
  WHITE = '#ffffff';

const channels = (hex: string): number[] =>
  [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// `amount` of a over b.
export function mix(a: string, b: string, amount: number): string {
  const x = channels(a),
    y = channels(b);
  return `#${x
    .map((value, i) =>
      Math.round(value * amount + y[i] * (1 - amount))
        .toString(16)
        .padStart(2, '0'),
    )
    .join('')}`;
}

// Never so strong that dark letters on it were hard to read.
export const signedFill = (share: number): string =>
  mix(share < 0 ? NEGATIVE : POSITIVE, WHITE, 0.72 * Math.sqrt(Math.min(1, Math.abs(share))));

const escapeXml = (text: string): string =>
  text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, '\ufffd')
    .replace(
      /[&<>"]/g,
      (character) =>
        ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[character] as string,
    );

const short = (x: number): number => Math.round(x * 100) / 100;

// Corners of a drawn line are rounded, in every format.
export function rounded(
  points: { x: number; y: number }[],
  radius = 5,
): { x: number; y: number; corner?: { x: number; y: number } }[] {
  const out: { x: number; y: number; corner?: { x: number; y: number } }[] = [points[0]];
  for (let i = 1; i + 1 < points.length; ++i) {
    const [a, b, c] = [points[i - 1], points[i], points[i + 1]];
    const before = Math.hypot(b.x - a.x, b.y - a.y) || 1,
      after = Math.hypot(c.x - b.x, c.y - b.y) || 1;
    const r = Math.min(radius, before / 2, after / 2);
    out.push({ x: b.x + ((a.x - b.x) * r) / before, y: b.y + ((a.y - b.y) * r) / before });
    out.push({ x: b.x + ((c.x - b.x) * r) / after, y: b.y + ((c.y - b.y) * r) / after, corner: b });
  }
  return [...out, points[points.length - 1]];
}

export const FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif";

export function toSvg(figure: Figure): string {
  const body = figure.items.map((item) => {
    if (item.kind === 'rect')
      return (
        `<rect x="${short(item.x)}" y="${short(item.y)}" width="${short(item.w)}" ` +
        `height="${short(item.h)}"${item.r ? ` rx="${item.r}"` : ''} ` +
        `fill="${item.fill ?? 'none'}"` +
        (item.stroke ? ` stroke="${item.stroke}" stroke-width="${item.width ?? 1}"` : '') +
        '/>'
      );
    if (item.kind === 'line') {
      const d = rounded(item.points)
        .map((p, i) =>
          p.corner
            ? `Q${short(p.corner.x)} ${short(p.corner.y)} ${short(p.x)} ${short(p.y)}`
            : `${i ? 'L' : 'M'}${short(p.x)} ${short(p.y)}`,
        )
        .join('');
      return (
        `<path d="${d}" fill="none" stroke="${item.stroke}" ` +
        `stroke-width="${short(item.width)}" stroke-linecap="round"` +
        (item.dashed ? ' stroke-dasharray="5 4"' : '') +
        (item.opacity ? ` stroke-opacity="${item.opacity}"` : '') +
        '/>'
      );
    }
    return (
      `<text x="${short(item.x)}" y="${short(item.y)}" font-size="${item.size}" ` +
      `fill="${item.fill ?? INK}"` +
      (item.anchor && item.anchor !== 'start' ? ` text-anchor="${item.anchor}"` : '') +
      (item.bold ? ' font-weight="bold"' : '') +
      ` xml:space="preserve">${escapeXml(item.text)}</text>`
    );
  });
  const width = Math.ceil(figure.width),
    height = Math.ceil(figure.height);
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ` +
    `${width} ${height}" font-family="${FONT}" ` +
    `role="img"><title>${escapeXml(figure.title)}</title><rect width="${width}" ` +
    `height="${height}" fill="${WHITE}"/>${body.join('\n')}</svg>\n`
  );
}

export async function toCanvas(figure: Figure, scale = 2): Promise<HTMLCanvasElement> {
  const image = new Image();
  const url = URL.createObjectURL(new Blob([toSvg(figure)], { type: 'image/svg+xml' }));
  try {
    await new Promise<void>((done, fail) => {
      image.onload = () => done();
      image.onerror = () => fail(new Error('the picture could not be drawn'));
      image.src = url;
    });
    const canvas = document.createElement('canvas');
    // Browsers refuse canvases past some size.
    const fits = Math.min(scale, 16000 / Math.max(figure.width, figure.height));
    canvas.width = Math.ceil(fits * figure.width);
    canvas.height = Math.ceil(fits * figure.height);
    canvas.getContext('2d')?.drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas;
  } finally {
    URL.revokeObjectURL(url);
  }
}

export async function toPng(figure: Figure): Promise<Blob> {
  const canvas = await toCanvas(figure);
  return new Promise<Blob>((done, fail) =>
    canvas.toBlob(
      (blob) => (blob ? done(blob) : fail(new Error('the picture could not be drawn'))),
      'image/png',
    ),
  );
}

const tex = (text: string): string =>
  [...text]
    .map((letter) => {
      const special: Record<string, string> = {
        '\\': '\\textbackslash{}',
        '{': '\\{',
        '}': '\\}',
        $: '\\$',
        '&': '\\&',
        '#': '\\#',
        _: '\\_',
        '%': '\\%',
        '~': '\\textasciitilde{}',
        '^': '\\textasciicircum{}',
        '·': '\\textperiodcentered{}',
        '−': '$-$',
        '“': '``',
        '”': "''",
        '…': '\\ldots{}',
        '→': '$\\to$',
        '<': '$<$',
        '>': '$>$',
        '|': '$|$',
        '"': "''",
        '≈': '$\\approx$',
        '×': '$\\times$',
        '⏎': '$\\hookleftarrow$',
      };
      if (special[letter]) return special[letter];
      return letter >= ' ' && letter <= '~'
        ? letter
        : `{\\tiny U+${letter.codePointAt(0)?.toString(16).toUpperCase()}}`;
    })
    .join('');

const UNIT = 0.6; // pt of a pixel: a picture fits a column or two

// TeX rounds a corner even where its sides are shorter than the radius, and draws a kink.
const radius = (points: { x: number; y: number }[]): number =>
  Math.min(
    2.4,
    ...(points.length > 2
      ? points
          .slice(1)
          .map((point, i) => 0.45 * UNIT * Math.hypot(point.x - points[i].x, point.y - points[i].y))
      : []),
  );

export function toTikz(figure: Figure): string {
  const colours = new Map<string, string>();
  const colour = (hex: string) => {
    if (!colours.has(hex)) colours.set(hex, `c${colours.size}`);
    return colours.get(hex) as string;
  };
  const at = (x: number, y: number) => `(${short(x)},${short(-y)})`;
  const body = figure.items.map((item) => {
    if (item.kind === 'rect') {
      const style = [
        item.fill ? `fill=${colour(item.fill)}` : '',
        item.stroke
          ? `draw=${colour(item.stroke)}, line width=${short(UNIT * (item.width ?? 1))}pt`
          : '',
        item.r ? `rounded corners=${short(UNIT * item.r)}pt` : '',
      ].filter(Boolean);
      return (
        `\\path[${style.join(', ')}] ${at(item.x, item.y)} rectangle ` +
        `${at(item.x + item.w, item.y + item.h)};`
      );
    }
    if (item.kind === 'line')
      return (
        `\\draw[${colour(item.stroke)}, line width=${short(UNIT * item.width)}pt, rounded ` +
        `corners=${short(radius(item.points))}pt, line cap=round` +
        (item.dashed ? ', dash pattern=on 2.6pt off 1.8pt' : '') +
        (item.opacity ? `, opacity=${item.opacity}` : '') +
        `] ${item.points.map((p) => at(p.x, p.y)).join(' -- ')};`
      );
    const anchor = { start: 'base west', middle: 'base', end: 'base east' }[item.anchor ?? 'start'];
    return (
      `\\node[anchor=${anchor}, inner sep=0, text=${colour(item.fill ?? INK)}, ` +
      `font=\\sffamily\\fontsize{${short(UNIT * item.size)}}{${short(UNIT * item.size)}}` +
      `\\selectfont${item.bold ? '\\bfseries' : ''}] at ${at(item.x, item.y)} ` +
      `{${tex(item.text)}};`
    );
  });
  const names = [...colours].map(
    ([hex, name]) => `\\definecolor{${name}}{HTML}{${hex.slice(1).toUpperCase()}}`,
  );
  // No class or font beyond the plainest LaTeX with TikZ; the page is as large as the picture.
  return String.raw`% Compile with pdflatex; TikZ is all it needs. The tikzpicture may be copied
% into a paper together with the colours.
\RequirePackage{fix-cm}
\documentclass{article}
\IfFileExists{lmodern.sty}{\usepackage[T1]{fontenc}\usepackage{lmodern}}{}
\usepackage{tikz}
\pagestyle{empty}
${names.join('\n')}
\newsavebox\thepicture
\begin{document}
\sbox\thepicture{%
\begin{tikzpicture}[x=${UNIT}pt,y=${UNIT}pt]
${body.join('\n')}
\end{tikzpicture}}
\pdfpagewidth=\dimexpr\wd\thepicture+24pt\relax
\pdfpageheight=\dimexpr\ht\thepicture+\dp\thepicture+24pt\relax
\hoffset=\dimexpr12pt-1in\relax
\voffset=\dimexpr12pt-1in\relax
\shipout\box\thepicture
\end{document}
`;
}
