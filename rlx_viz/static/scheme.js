// Owns which mark each tensor gets: by family, dtype, kind, module, or the rule that set its death.

import { modulesOf } from "./modules.js";
import { inkOn, marksFor, mixColours, PATTERNS, toPixel } from "./palette.js";

const MAX = 30;
/** Offsets in the colour table: strong, light (an extension), and the same two for rows filtered out. */
export const LIGHT = 32;
export const FADED = 64;
export const FADED_LIGHT = 96;
export const GUARD = 128;
export const GUARD_STRIPE = 129;
/** What patterns are drawn in, strong and filtered out. */
const OVERLAY = 132;
const OVERLAY_FADED = 164;

const LISTS = { family: "families", dtype: "dtypes", kind: "kinds", rule: "rules" };

/**
 * @typedef {object} Scheme
 * @property {string[]} names
 * @property {string[]} docs
 * @property {string[]} colours
 * @property {number[]} patterns  index into PATTERNS
 * @property {number[]} counts    tensors of each
 * @property {Uint32Array} table  pixel of each paint
 * @property {(row: number) => number} of
 * @property {(row: number) => boolean} dim
 * @property {(index: number, dim: boolean) => number} overlay  paint of the pattern, 0 for none
 */

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

/**
 * The list that colours stand for, and each tensor's place in it.
 * @param {import("./data.js").Snapshot} snap @param {string} colour
 * @returns {{names: string[], docs: string[], column: ArrayLike<number>}}
 */
function categories(snap, colour) {
  if (colour === "module") return moduleCategories(snap);
  const list = snap.meta[LISTS[/** @type {keyof typeof LISTS} */ (colour)]] ?? [];
  const names = list.map((/** @type {any} */ entry) => (typeof entry === "string" ? entry : entry.name));
  const docs = list.map((/** @type {any} */ entry) => (typeof entry === "string" ? "" : entry.doc));
  if (names.length > MAX) {
    docs[MAX - 1] = names.slice(MAX - 1).join(", ");
    names[MAX - 1] = `${names.length - MAX + 1} others`;
    names.length = docs.length = MAX;
  }
  return { names, docs, column: snap.t[colour] };
}

/** The modules with the most bytes, in the model's order; the rest is one more. @param {import("./data.js").Snapshot} snap */
function moduleCategories(snap) {
  const { names, of } = modulesOf(snap);
  const bytes = new Float64Array(names.length);
  for (let row = 0; row < snap.n; row++) if (of[row] >= 0) bytes[of[row]] += snap.t.size[row] + 1;
  const order = Array.from(names.keys()).sort((a, b) => bytes[b] - bytes[a]).slice(0, names.length > MAX - 1 ? MAX - 2 : MAX - 1);
  order.sort((a, b) => a - b);
  const place = new Map(order.map((module, at) => [module, at]));
  const column = Int32Array.from(of, (module) => (module < 0 ? order.length + 1 : place.get(module) ?? order.length));
  const left = names.length - order.length;
  return {
    names: [...order.map((module) => names[module]), left ? `${left} other modules` : "other", "no module"],
    docs: order.map(() => "").concat("", "Made outside every module."), column,
  };
}

/** @param {import("./data.js").Snapshot} snap @param {string} colour @param {import("./palette.js").Theme} theme @returns {Scheme} */
function build(snap, colour, theme) {
  const { names, docs, column } = categories(snap, colour);
  if (!names.length) names.push("tensor");
  const counts = new Array(names.length).fill(0);
  for (let row = 0; row < snap.n; row++) counts[Math.min(column[row], names.length - 1)] += 1;
  /** Also what only the graph before fusion has gets a colour, none from the legend. */
  const present = counts.slice();
  if (colour === "family") for (const family of snap.table("source")?.columns.family ?? []) if (family < present.length) present[family] += 1;
  // Colours go to the names in use, so that a long list of absent ones does not use them up.
  const used = names.filter((/** @type {string} */ _name, /** @type {number} */ i) => present[i] > 0);
  const given = new Map(marksFor(used, theme).map((mark, i) => [used[i], mark]));
  const marks = names.map((/** @type {string} */ name) => given.get(name) ?? { colour: theme.muted, pattern: 0 });
  const table = new Uint32Array(256);
  marks.forEach(({ colour: hex }, i) => {
    const over = mixColours(inkOn(hex), hex, 0.7);
    table[1 + i] = toPixel(hex);
    table[1 + i + LIGHT] = toPixel(mixColours(hex, theme.ground, 0.38));
    table[1 + i + FADED] = toPixel(mixColours(hex, theme.ground, 0.16));
    table[1 + i + FADED_LIGHT] = toPixel(mixColours(hex, theme.ground, 0.08));
    table[1 + i + OVERLAY] = toPixel(over);
    table[1 + i + OVERLAY_FADED] = toPixel(mixColours(over, theme.ground, 0.2));
  });
  table[GUARD] = toPixel(mixColours(theme.muted, theme.ground, 0.25));
  table[GUARD_STRIPE] = toPixel(theme.ink);
  const patterns = marks.map((mark) => mark.pattern);
  return {
    names, docs, colours: marks.map((mark) => mark.colour), patterns, counts, table,
    of: (row) => Math.min(column[row], names.length - 1),
    dim: () => false,
    overlay: (index, dim) => (patterns[index] ? 1 + index + (dim ? OVERLAY_FADED : OVERLAY) : 0),
  };
}

/** The square that stands for a category. @param {Scheme} scheme @param {number} index @returns {[string, string]} colour and pattern */
export function markOf(scheme, index) {
  return [scheme.colours[index], PATTERNS[scheme.patterns[index]] ?? ""];
}
