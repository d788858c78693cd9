// Numbers and token texts as a person reads them.

const MINUS = '−';

export function number(x: number, digits = 3): string {
  if (x === 0 || !Number.isFinite(x)) return x === 0 ? '0' : String(x);
  const size = Math.abs(x);
  const text =
    size >= 1e5 || size < 1e-4
      ? size.toExponential(digits - 1)
      : size
          .toPrecision(digits)
          .replace(/(\.\d*?)0+$/, '$1')
          .replace(/\.$/, '');
  return (
    (x < 0 ? MINUS : '') + (text.includes('e+') && size < 1e5 ? String(Math.round(size)) : text)
  );
}

export const signed = (x: number, digits = 3): string => (x > 0 ? '+' : '') + number(x, digits);

export function percent(x: number): string {
  const size = Math.abs(x);
  if (size < 0.005) return size === 0 ? '0%' : '≈0%';
  return `${x < 0 ? MINUS : ''}${size.toFixed(size >= 99.95 ? 0 : size >= 0.095 ? 1 : 2)}%`;
}

export const share = (part: number, whole: number): string =>
  `${Math.round((100 * part) / whole)}%`.replace('-', MINUS);

export const probability = (p: number): string => percent(100 * p);

// A space is a dot, a line's end an arrow; bytes that are no text by themselves are shown as hex.
export function tokenText(text: string, bytes?: string): string {
  if (bytes)
    return bytes
      .split(' ')
      .map((byte) => `0x${byte}`)
      .join(' ');
  if (text === '') return '∅';
  return text
    .replace(/ /g, '·')
    .replace(/\n/g, '⏎')
    .replace(/\t/g, '⇥')
    .replace(
      /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
      (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
    );
}

export const clipped = (text: string, most: number): string => {
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join('')}…` : text;
};

export const quoted = (text: string): string => `“${tokenText(text)}”`;
export const plural = (count: number, word: string): string =>
  `${count} ${word}${count === 1 ? '' : 's'}`;

// The program writes sentences with the hyphen of a keyboard.
export const withMinus = (text: string): string => text.replace(/credit -(?=\d)/g, 'credit −');
