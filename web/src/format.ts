// Numbers and token texts as a person reads them.

const MINUS = '−';

export function number(x: number, digits = 3): string {
  if (x === 0 || !Number.isFinite(x)) return x === 0 ? '0' : String(x);
  const size = Math.abs(x);
  const text = size >= 1e5 || size < 1e-4 ? size.toExponential(digits - 1) : size.toPrecision(digits).replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '');
  return (x < 0 ? MINUS : '') + (text.includes('e+') && size < 1e5 ? String(Math.round(size)) : text);
}

export const signed = (x: number, digits = 3): string => (x > 0 ? '+' : '') + number(x, digits);

export function percent(x: number): string {
  const size = Math.abs(x);
  if (size < 0.005) return size === 0 ? '0%' : '≈0%';
  return `${x < 0 ? MINUS : ''}${size.toFixed(size >= 99.95 ? 0 : size >= 0.095 ? 1 : 2)}%`;
}

export const probability = (p: number): string => percent(100 * p);

// Spaces at the ends and control characters would be invisible.
export function tokenText(text: string): string {
  if (text === '') return '∅';
  return text.replace(/\n/g, '⏎').replace(/\t/g, '⇥').replace(/\r/g, '␍').replace(/[\u0000-\u001f\u007f]/g, '␀');
}

export const quoted = (text: string): string => `“${tokenText(text)}”`;
