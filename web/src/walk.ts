// A grid of buttons is one stop for Tab; the arrow keys walk over its cells.
const STEPS: Record<string, [number, number]> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};

export const walk =
  (columns: number) => (event: KeyboardEvent & { currentTarget: HTMLElement }) => {
    const step = STEPS[event.key];
    const cells = [...event.currentTarget.querySelectorAll('button')];
    const at = cells.indexOf(document.activeElement as HTMLButtonElement);
    if (!step || at < 0) return;
    event.preventDefault();
    const column = (at % columns) + step[0];
    if (column < 0 || column >= columns) return; // no further to that side
    cells[at + step[0] + step[1] * columns]?.focus();
  };
