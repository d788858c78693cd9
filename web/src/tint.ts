// Signed colour on the screen: the sign is in a number too, so that colour never stands alone.
export const tint = (share: number): string =>
  'color-mix(in srgb, var(' +
  (share < 0 ? '--negative-fill' : '--positive-fill') +
  `) ${Math.round(72 * Math.sqrt(Math.min(1, Math.abs(share))))}%, var(--card))`;
