import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';

// A disclosure that closes on Escape and on a click elsewhere.
export function Menu({
  id,
  label,
  children,
}: {
  id: string;
  label: string;
  children: ComponentChildren;
}) {
  const box = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      const inside = event.target instanceof globalThis.Node && box.current?.contains(event.target);
      if (box.current?.open && (event instanceof KeyboardEvent ? event.key === 'Escape' : !inside))
        box.current.open = false;
    };
    document.addEventListener('pointerdown', close);
    document.addEventListener('keydown', close);
    return () => {
      document.removeEventListener('pointerdown', close);
      document.removeEventListener('keydown', close);
    };
  }, []);
  return (
    <details id={id} class="menu" ref={box}>
      <summary>{label}</summary>
      <div class="sheet">{children}</div>
    </details>
  );
}
