import { number, percent, tokenText } from './format';
import { parseNode } from './nodes';
import type { Hover } from './routes';
import type { Path, Token } from './types';

interface Props {
  routes: Path[];
  tokens: Token[];
  rooted: boolean;
  lit: Set<number> | null;
  onHover: (hover: Hover) => void;
  onSelect: (node: string) => void;
}

const MOST = 60;

export function RouteList({ routes, tokens, rooted, lit, onHover, onSelect }: Props) {
  const largest = Math.abs(routes[0]?.credit ?? 1) || 1;
  if (routes.length === 0)
    return <p class="muted">No route passes the filters. Clear them, or lower the threshold.</p>;
  return (
    <ol class="paths">
      {routes.slice(0, MOST).map((path, index) => (
        <li
          key={path.text}
          class={
            (path.credit < 0 ? 'negative' : 'positive') + ` ${lit && !lit.has(index) ? 'dim' : ''}`
          }
          onMouseEnter={() => onHover({ route: index })}
          onMouseLeave={() => onHover(null)}
        >
          <span class="amount" title={`${percent(path.percent)} of the positive token credit`}>
            <span class="meter">
              <span style={{ width: `${(100 * Math.abs(path.credit)) / largest}%` }} />
            </span>
            <span class="value">{number(path.credit)}</span>
          </span>
          <span class="route">
            <span class="word">
              {tokenText(tokens[parseNode(path.nodes[0]).position]?.text ?? '')}
            </span>
            {path.nodes.map((node, hop) => (
              <span key={hop} class="hop">
                {hop > 0 && (
                  <span class="arrow" aria-hidden="true">
                    {path.branches[hop] && path.branches[hop] !== 'MLP' ? (
                      <b>{path.branches[hop]}</b>
                    ) : (
                      '→'
                    )}
                  </span>
                )}
                <button
                  type="button"
                  class="name link"
                  onFocus={() => onHover({ route: index })}
                  onBlur={() => onHover(null)}
                  onClick={() => onSelect(node)}
                >
                  {node}
                </button>
              </span>
            ))}
            {!rooted && (
              <span class="hop">
                <span class="arrow" aria-hidden="true">
                  →
                </span>
                <span class="name">target</span>
              </span>
            )}
          </span>
        </li>
      ))}
      {routes.length > MOST && (
        <li class="muted more">
          and {routes.length - MOST} weaker ones, in the graph and in the exports
        </li>
      )}
    </ol>
  );
}
