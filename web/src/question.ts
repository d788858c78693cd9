// The question in words: title of the page, of figures, and of files.
import { tokenText } from './format';
import type { Target, Trace } from './types';
import type { View } from './state';

export function questionText(target: Target, root: string | null): string {
  if (root) return `What does ${root} read?`;
  return (
    `Why ${tokenText(target.text)}` +
    (target.versus_text ? ` rather than ${tokenText(target.versus_text)}` : '') +
    '?'
  );
}

export const titleOf = (trace: Trace | null, view: View): string => {
  if (!view.prompt) return 'unpack';
  if (!trace) return `${view.prompt.slice(0, 60)} · unpack`;
  return (
    questionText(trace.target, trace.root === 'target' ? null : trace.root) +
    ` ${view.prompt.slice(0, 60)}${view.prompt.length > 60 ? '…' : ''} · unpack`
  );
};
