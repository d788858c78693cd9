// The Why tab as a page of its own: the figure, the routes and the tokens, no script and nothing to
// load.
import type { Exports } from './exports';
import { toSvg } from './figure';
import { number, tokenText } from './format';
import type { View } from './state';
import type { Trace } from './types';

const escape = (text: string): string =>
  text.replace(
    /[&<>"]/g,
    (character) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[character] as string,
  );

export function htmlPage(trace: Trace, exports: Exports | null, view: View): string {
  if (!exports) throw new Error('there is nothing to save here yet');
  const figure = exports.figure();
  const [names, ...rows] = exports.rows();
  const table = (head: (string | number)[], body: (string | number)[][]) =>
    '<table><thead><tr>' +
    head.map((name) => `<th>${escape(String(name).replace(/_/g, ' '))}</th>`).join('') +
    '</tr></thead><tbody>' +
    body
      .map(
        (row) =>
          '<tr>' +
          row
            .map((cell) => `<td>${escape(typeof cell === 'number' ? number(cell, 4) : cell)}</td>`)
            .join('') +
          '</tr>',
      )
      .join('') +
    '</tbody></table>';
  const tokens = trace.tokens.map((token, i) => [
    i,
    tokenText(token.text, token.bytes),
    trace.token_credit[i],
  ]);
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escape(figure.title)}</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;margin:24px auto;max-width:1200px;padding:0 16px}
body{color:#17202b;background:#fff}
svg{max-width:100%;height:auto}
table{border-collapse:collapse;margin:12px 0}
td,th{padding:3px 10px 3px 0;text-align:left;border-bottom:1px solid #d8dee6;font-size:13px}
blockquote{margin:0;padding-left:12px;border-left:3px solid #d8dee6;white-space:pre-wrap}
</style></head>
<body><blockquote>${escape(view.prompt)}</blockquote>
${toSvg(figure)}
<h2>Routes</h2>${table(names, rows)}
<h2>Tokens</h2>${table(['position', 'token', 'credit'], tokens)}
<p>Made by unpack from ${escape(trace.model.name)};
options ${escape(JSON.stringify(trace.options))}.</p></body></html>
`;
}
