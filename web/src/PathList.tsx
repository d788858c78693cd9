import { useState } from 'preact/hooks';
import { number, percent } from './format';
import { pathEdges, type Hover } from './paths';
import type { Path } from './types';

interface Props {
  paths: Path[];
  rooted: boolean;
  lit: Set<number> | null;
  onHover: (hover: Hover) => void;
  onPick: (edge: string) => void; // Enter on a path: its last hop
}

const FIRST = 100;

export function PathList({ paths, rooted, lit, onHover, onPick }: Props) {
  const [most, setMost] = useState(FIRST);
  const largest = Math.abs(paths[0]?.credit ?? 1) || 1;
  if (paths.length === 0) return <p class="muted">No path matches these filters.</p>;
  return (
    <>
      <ol class="paths">
        {paths.slice(0, most).map((path, index) => (
          <li
            key={path.text}
            class={`${path.credit < 0 ? 'negative' : 'positive'} ${lit && !lit.has(index) ? 'dim' : ''}`}
            tabIndex={0}
            aria-label={`${path.text}, credit ${number(path.credit)}`}
            onMouseEnter={() => onHover({ path: index })}
            onMouseLeave={() => onHover(null)}
            onFocus={() => onHover({ path: index })}
            onBlur={() => onHover(null)}
            onKeyDown={(event) => {
              const edge = pathEdges(path, rooted).at(-1);
              if (event.key === 'Enter' && edge) onPick(edge.key);
            }}
          >
            <span class="amount">
              <span class="meter"><span style={{ width: `${(100 * Math.abs(path.credit)) / largest}%` }} /></span>
              <span class="value" title={`${percent(path.percent)} of the positive token credit`}>{number(path.credit)}</span>
            </span>
            <span class="route">
              {path.nodes.map((node, hop) => (
                <span key={hop} class="hop">
                  {hop > 0 && <Arrow branch={path.branches[hop] ?? null} />}
                  <span class="name">{node}</span>
                </span>
              ))}
              {!rooted && <span class="hop"><Arrow branch={null} /><span class="name">target</span></span>}
            </span>
          </li>
        ))}
      </ol>
      {paths.length > most && (
        <button type="button" class="link" onClick={() => setMost(most + 4 * FIRST)}>
          Show more of the {paths.length} paths
        </button>
      )}
    </>
  );
}

function Arrow({ branch }: { branch: string | null }) {
  return <span class="arrow" aria-hidden="true">{branch ? <b>{branch}</b> : '→'}</span>;
}
