// A figure as a PDF of one page: lines and letters where the standard fonts have all of them, else
// a picture of it.
import { INK, rounded, toCanvas, type Figure, type Item } from './figure';

const EXTRA: Record<string, number> = {
  '…': 0x85,
  '“': 0x93,
  '”': 0x94,
  '–': 0x96,
  '—': 0x97,
  '‘': 0x91,
  '’': 0x92,
  '€': 0x80,
  '•': 0x95,
};

// Its code in the fonts' own encoding; null: not there. The minus sign is drawn as a dash.
function code(letter: string): number | null {
  if (letter === '−') return 0x96;
  const point = letter.codePointAt(0) ?? 0;
  if ((point >= 0x20 && point < 0x7f) || (point >= 0xa0 && point <= 0xff)) return point;
  return EXTRA[letter] ?? null;
}

const short = (x: number): number => Math.round(x * 100) / 100;
const rgb = (hex: string): string =>
  [1, 3, 5].map((at) => short(parseInt(hex.slice(at, at + 2), 16) / 255)).join(' ');

// Letters of the standard fonts are as wide as Arial's and its free twins'.
const measure = (() => {
  let context: CanvasRenderingContext2D | null = null;
  return (text: string, size: number, bold: boolean): number => {
    context ??= document.createElement('canvas').getContext('2d');
    if (!context) return 0.5 * size * text.length;
    const weight = bold ? 'bold ' : '';
    context.font = `${weight}${size}px Helvetica, Arial, 'Liberation Sans', sans-serif`;
    return context.measureText(text).width;
  };
})();

function draw(item: Item, height: number): string {
  const at = (x: number, y: number) => `${short(x)} ${short(height - y)}`;
  if (item.kind === 'rect') {
    const box = item.r
      ? roundedBox(item.x, item.y, item.w, item.h, item.r, at)
      : `${at(item.x, item.y + item.h)} ${short(item.w)} ${short(item.h)} re`;
    if (!item.fill && !item.stroke) return '';
    const paint = item.fill && item.stroke ? 'B' : item.fill ? 'f' : 'S';
    return (
      (item.fill ? `${rgb(item.fill)} rg ` : '') +
      (item.stroke ? `${rgb(item.stroke)} RG ${short(item.width ?? 1)} w [] 0 d ` : '') +
      `${box} ${paint}`
    );
  }
  if (item.kind === 'line') {
    let here = item.points[0];
    const path = rounded(item.points).map((p, i) => {
      const from = here;
      here = p;
      if (!p.corner) return `${at(p.x, p.y)} ${i ? 'l' : 'm'}`;
      // A quadratic corner as a cubic one.
      const c = p.corner;
      return (
        at(from.x + (2 / 3) * (c.x - from.x), from.y + (2 / 3) * (c.y - from.y)) +
        ` ${at(p.x + (2 / 3) * (c.x - p.x), p.y + (2 / 3) * (c.y - p.y))} ${at(p.x, p.y)} c`
      );
    });
    return (
      (item.opacity ? (item.opacity < 0.5 ? '/Thin gs ' : '/Faint gs ') : '') +
      `${rgb(item.stroke)} RG ${short(item.width)} w 1 J ${item.dashed ? '[5 4]' : '[]'} 0 d ` +
      `${path.join(' ')} S${item.opacity ? ' /Full gs' : ''}`
    );
  }
  const width =
    item.anchor && item.anchor !== 'start' ? measure(item.text, item.size, item.bold === true) : 0;
  const x = item.x - (item.anchor === 'middle' ? width / 2 : item.anchor === 'end' ? width : 0);
  const letters = [...item.text]
    .map((letter) => (code(letter) as number).toString(16).padStart(2, '0'))
    .join('');
  return (
    `BT /${item.bold ? 'Bold' : 'Plain'} ${item.size} Tf ${rgb(item.fill ?? INK)} rg ` +
    `${at(x, item.y)} Td <${letters}> Tj ET`
  );
}

function roundedBox(
  x: number,
  y: number,
  w: number,
  h: number,
  radius: number,
  at: (x: number, y: number) => string,
): string {
  const r = Math.min(radius, w / 2, h / 2),
    k = 0.5523 * r;
  return [
    `${at(x + r, y)} m ${at(x + w - r, y)} l ${at(x + w - r + k, y)} ${at(x + w, y + r - k)} ` +
      `${at(x + w, y + r)} c`,
    `${at(x + w, y + h - r)} l ${at(x + w, y + h - r + k)} ${at(x + w - r + k, y + h)} ` +
      `${at(x + w - r, y + h)} c`,
    `${at(x + r, y + h)} l ${at(x + r - k, y + h)} ${at(x, y + h - r + k)} ${at(x, y + h - r)} c`,
    `${at(x, y + r)} l ${at(x, y + r - k)} ${at(x + r - k, y)} ${at(x + r, y)} c h`,
  ].join(' ');
}

const plain = (text: string): Uint8Array => new TextEncoder().encode(text);
const titleHex = (title: string): string =>
  'feff' +
  [...Array(title.length).keys()]
    .map((i) => title.charCodeAt(i).toString(16).padStart(4, '0'))
    .join('');

function assemble(objects: Uint8Array[][]): Blob {
  const parts: Uint8Array[] = [plain('%PDF-1.4\n')];
  let length = parts[0].length;
  const starts: number[] = [];
  const push = (part: Uint8Array) => {
    parts.push(part);
    length += part.length;
  };
  objects.forEach((object, i) => {
    starts.push(length);
    push(plain(`${i + 1} 0 obj\n`));
    object.forEach(push);
    push(plain('\nendobj\n'));
  });
  const table = length;
  push(
    plain(
      `xref\n0 ${objects.length + 1}\n0000000000 65535 f \n` +
        starts.map((at) => `${String(at).padStart(10, '0')} 00000 n \n`).join(''),
    ),
  );
  push(
    plain(
      `trailer\n<< /Size ${objects.length + 1} /Root 1 0 R /Info 5 0 R >>\nstartxref\n` +
        `${table}\n%%EOF\n`,
    ),
  );
  return new Blob(parts as BlobPart[], { type: 'application/pdf' });
}

export async function toPdf(figure: Figure): Promise<Blob> {
  const width = Math.ceil(figure.width),
    height = Math.ceil(figure.height);
  const spelled = figure.items.every(
    (item) => item.kind !== 'text' || [...item.text].every((letter) => code(letter) !== null),
  );
  const stream = (content: Uint8Array, more = ''): Uint8Array[] => [
    plain(`<< /Length ${content.length} ${more}>>\nstream\n`),
    content,
    plain('\nendstream'),
  ];
  const info = [plain(`<< /Title <${titleHex(figure.title)}> /Producer (unpack) >>`)];
  const head = [
    [plain('<< /Type /Catalog /Pages 2 0 R >>')],
    [plain('<< /Type /Pages /Kids [3 0 R] /Count 1 >>')],
  ];
  const page = (resources: string) => [
    plain(
      `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${width} ${height}] /Contents 4 0 R ` +
        `/Resources << ${resources} >> >>`,
    ),
  ];
  if (spelled) {
    const content = plain(figure.items.map((item) => draw(item, height)).join('\n'));
    const font = (name: string) =>
      `<< /Type /Font /Subtype /Type1 /BaseFont /${name} /Encoding /WinAnsiEncoding >>`;
    return assemble([
      ...head,
      page(
        `/Font << /Plain ${font('Helvetica')} /Bold ${font('Helvetica-Bold')} >> /ExtGState ` +
          '<< /Thin << /CA 0.3 >> /Faint << /CA 0.75 >> /Full << /CA 1 >> >>',
      ),
      stream(content),
      info,
    ]);
  }
  const canvas = await toCanvas(figure, 3);
  const jpeg = await new Promise<Blob>((done, fail) =>
    canvas.toBlob(
      (blob) => (blob ? done(blob) : fail(new Error('the picture could not be drawn'))),
      'image/jpeg',
      0.95,
    ),
  );
  const bytes = new Uint8Array(await jpeg.arrayBuffer());
  return assemble([
    ...head,
    page('/XObject << /Picture 6 0 R >>'),
    stream(plain(`q ${width} 0 0 ${height} 0 0 cm /Picture Do Q`)),
    info,
    stream(
      bytes,
      `/Type /XObject /Subtype /Image /Width ${canvas.width} /Height ${canvas.height} ` +
        '/ColorSpace /DeviceRGB /BitsPerComponent 8 /Filter /DCTDecode ',
    ),
  ]);
}
