// Owns which colour each tensor gets: by family, dtype, kind, or the rule that set its death.

import { coloursFor, mixColours, toPixel } from "./palette.js";

const MAX = 30;
/** Offsets in the colour table: strong, light (an extension), and the same two for rows filtered out. */
export const LIGHT = 32;
export const FADED = 64;
export const FADED_LIGHT = 96;
export const GUARD = 128;
export const GUARD_STRIPE = 129;

const LISTS = { family: "families", dtype: "dtypes", kind: "kinds", rule: "rules" };

/** @typedef {{names: string[], docs: string[], colours: string[], counts: number[], table: Uint32Array, of: (row: number) => number, dim: (row: number) => boolean}} Scheme */

/** @type {WeakMap<object, Map<string, Scheme>>} */
const known = new WeakMap();

/**
 * The colour scheme of the current state; index 0 of its table is unused, so that 0 can say "no hatch".
 * @param {import("./store.js").State} state @param {import("./palette.js").Theme} theme @returns {Scheme}
 */
export function schemeOf(state, theme) {
  const snap = /** @type {import("./data.js").Snapshot} */ (state.snap);
  const schemes = known.get(snap) ?? new Map();
  known.set(snap, schemes);
  const key = `${state.colour} ${theme.name}`;
  let scheme = schemes.get(key);
  if (!scheme) {
    scheme = build(snap, state.colour, theme);
    schemes.set(key, scheme);
  }
  const { match, hidden } = state;
  const of = scheme.of;
  scheme.dim = (/** @type {number} */ row) => (match !== null && !match[row]) || (hidden.size > 0 && hidden.has(of(row)));
  return scheme;
}

/** @param {import("./data.js").Snapshot} snap @param {string} colour @param {import("./palette.js").Theme} theme @returns {Scheme} */
function build(snap, colour, theme) {
  const list = snap.meta[LISTS[/** @type {keyof typeof LISTS} */ (colour)]] ?? [];
  const names = list.map((/** @type {any} */ entry) => (typeof entry === "string" ? entry : entry.name));
  const docs = list.map((/** @type {any} */ entry) => (typeof entry === "string" ? "" : entry.doc));
  if (!names.length) names.push("tensor");
  const column = snap.t[colour];
  const counts = new Array(names.length).fill(0);
  for (let row = 0; row < snap.n; row++) counts[column[row]] += 1;
  // Colours go to the names in use, so that a long list of absent ones does not use them up.
  const used = names.filter((/** @type {string} */ _name, /** @type {number} */ i) => counts[i] > 0);
  const given = new Map(coloursFor(used, theme).map((hex, i) => [used[i], hex]));
  const colours = names.map((/** @type {string} */ name) => given.get(name) ?? theme.muted);
  const table = new Uint32Array(256);
  colours.slice(0, MAX).forEach((/** @type {string} */ hex, /** @type {number} */ i) => {
    table[1 + i] = toPixel(hex);
    table[1 + i + LIGHT] = toPixel(mixColours(hex, theme.ground, 0.38));
    table[1 + i + FADED] = toPixel(mixColours(hex, theme.ground, 0.16));
    table[1 + i + FADED_LIGHT] = toPixel(mixColours(hex, theme.ground, 0.08));
  });
  table[GUARD] = toPixel(mixColours(theme.muted, theme.ground, 0.25));
  table[GUARD_STRIPE] = toPixel(theme.ink);
  return {
    names, docs, colours, counts, table,
    of: (row) => Math.min(column[row], MAX - 1),
    dim: () => false,
  };
}
