// Owns every colour that canvases draw with: Okabe–Ito's hues, tuned until each pair stays apart under
// simulated colour-vision deficiency (the test for this file measures it).

/** @typedef {{name: string, ink: string, muted: string, line: string, faint: string, accent: string, ground: string, colours: Record<string, string>}} Theme */

/** @type {Record<string, Theme>} */
export const THEMES = {
  light: {
    name: "light",
    ink: "#1a1e23",
    muted: "#5c6570",
    line: "#c9ced4",
    faint: "#edeff2",
    accent: "#c2185b",
    ground: "#ffffff",
    colours: {
      blue: "#0065a7",
      green: "#0c9471",
      vermillion: "#cd5903",
      purple: "#b47abe",
      sky: "#53c2f5",
      orange: "#d89209",
      yellow: "#e1c314",
      slate: "#ada9a5",
      dark: "#162e30",
      brown: "#68525b",
    },
  },
  dark: {
    name: "dark",
    ink: "#e7eaee",
    muted: "#98a2ae",
    line: "#3a424b",
    faint: "#23292f",
    accent: "#ff7eb6",
    ground: "#15181c",
    colours: {
      blue: "#2781de",
      green: "#08b480",
      vermillion: "#f26f1e",
      purple: "#bd91cd",
      sky: "#6fd5fe",
      orange: "#f6b023",
      yellow: "#f7e34e",
      slate: "#4a4850",
      dark: "#bccbb4",
      brown: "#87634c",
    },
  },
};

/** A family keeps its colour in every model, so that pictures can be compared. */
const FIXED = {
  matmul: "blue",
  linear: "blue",
  conv: "green",
  attention: "vermillion",
  norm: "purple",
  elementwise: "sky",
  activation: "sky",
  activations: "sky",
  reduce: "orange",
  reduction: "orange",
  indexing: "yellow",
  structure: "slate",
  view: "slate",
  boundary: "dark",
  input: "dark",
  inputs: "dark",
  custom: "brown",
  constant: "orange",
  constants: "orange",
  param: "blue",
  params: "blue",
  packs: "green",
  weights: "blue",
  scratch: "orange",
  padding: "slate",
  elided: "yellow",
};

/** What lies over a colour once all are in use: nothing, dots, lines. */
export const PATTERNS = ["", "dots", "lines"];

/**
 * One mark per name: the fixed colour where there is one, else the next unused; after those the same
 * colours again with a pattern, so that up to thirty names stay apart.
 * @param {string[]} names @param {Theme} theme @returns {{colour: string, pattern: number}[]}
 */
export function marksFor(names, theme) {
  const taken = new Set();
  const fixed = names.map((name) => {
    const key = /** @type {Record<string, string>} */ (FIXED)[name.toLowerCase()];
    if (!key || taken.has(key)) return "";
    taken.add(key);
    return theme.colours[key];
  });
  const all = Object.values(theme.colours);
  const free = Object.entries(theme.colours).filter(([key]) => !taken.has(key)).map(([, colour]) => colour);
  const rest = free.map((colour) => ({ colour, pattern: 0 }));
  for (let pattern = 1; pattern < PATTERNS.length; pattern++) rest.push(...all.map((colour) => ({ colour, pattern })));
  let next = 0;
  return fixed.map((colour) => (colour ? { colour, pattern: 0 } : rest[next++ % rest.length]));
}

/** The colours of `marksFor`, for a few names. @param {string[]} names @param {Theme} theme @returns {string[]} */
export function coloursFor(names, theme) {
  return marksFor(names, theme).map((mark) => mark.colour);
}

/** @param {string} hex @returns {[number, number, number]} */
function channels(hex) {
  const value = Number.parseInt(hex.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** `share` of `hex` over `ground`. @param {string} hex @param {string} ground @param {number} share */
export function mixColours(hex, ground, share) {
  const over = channels(hex);
  const under = channels(ground);
  const mixed = over.map((value, i) => Math.round(value * share + under[i] * (1 - share)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** The colour as one little-endian RGBA pixel. @param {string} hex */
export function toPixel(hex) {
  const [r, g, b] = channels(hex);
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

/** Black or white, whichever reads better on `hex`. @param {string} hex */
export function inkOn(hex) {
  const [r, g, b] = channels(hex);
  return r * 0.299 + g * 0.587 + b * 0.114 > 140 ? "#111418" : "#ffffff";
}
