// Owns which tensor of one plan is which of another, and what changed between them.

import { NONE } from "./data.js";

/** In the order of the snapshot's `match.change`; "gone" has no row in the new plan. */
export const CHANGES = ["same", "moved", "resized", "new", "lifetime", "gone"];
const SAME = 0;
const MOVED = 1;
const RESIZED = 2;
const NEW = 3;
const LIFETIME = 4;
export const GONE = 5;

/**
 * @typedef {object} Matching
 * @property {Int32Array} other    row in the base of each row, -1 for none
 * @property {Int32Array} back     row here of each row of the base, -1 for none
 * @property {Uint8Array} change   of each row
 * @property {Uint8Array} changeBase  of each row of the base
 * @property {number[]} counts     rows of each change
 */

/** @type {WeakMap<object, WeakMap<object, Matching>>} */
const matchings = new WeakMap();

/** @param {import("./data.js").Snapshot} base @param {import("./data.js").Snapshot} snap @returns {Matching} */
export function matchingOf(base, snap) {
  let known = matchings.get(snap);
  if (!known) matchings.set(snap, (known = new WeakMap()));
  let found = known.get(base);
  if (!found) known.set(base, (found = matchUp(base, snap)));
  return found;
}

/** @typedef {{base: import("./data.js").Snapshot, next: import("./data.js").Snapshot, screen: "a" | "b", matching: Matching}} Comparison */

/**
 * The two plans compared, and which of them is on screen elsewhere: A against another document that came with
 * its matches, else the plan on screen as B against the pinned one.
 * @param {import("./store.js").State} state @returns {Comparison | null}
 */
export function comparisonOf(state) {
  const { snap, other, base } = state;
  if (!snap) return null;
  if (other) return { base: snap, next: other, screen: "a", matching: matchingOf(snap, other) };
  return base ? { base, next: snap, screen: "b", matching: matchingOf(base, snap) } : null;
}

/** Row on screen of a row of one side, -1 for none. @param {Comparison} comparison @param {"a" | "b"} side @param {number} row */
export function toScreen(comparison, side, row) {
  if (row < 0 || comparison.screen === side) return row;
  return (side === "a" ? comparison.matching.back : comparison.matching.other)[row] ?? -1;
}

/** Row of one side of a row on screen, -1 for none. @param {Comparison} comparison @param {"a" | "b"} side @param {number} row */
export function fromScreen(comparison, side, row) {
  if (row < 0 || comparison.screen === side) return row;
  return (side === "a" ? comparison.matching.other : comparison.matching.back)[row] ?? -1;
}

/** Does the row hold bytes, so that a change of it shows? @param {import("./data.js").Snapshot} snap @param {number} row */
function holds(snap, row) {
  return snap.t.size[row] > 0;
}

/** @param {import("./data.js").Snapshot} base @param {import("./data.js").Snapshot} snap @returns {Matching} */
function matchUp(base, snap) {
  const table = snap.table("match")?.columns;
  const other = new Int32Array(snap.n).fill(-1);
  const back = new Int32Array(base.n).fill(-1);
  if (table) {
    for (let row = 0; row < snap.n; row++) if (table.other[row] !== NONE && table.other[row] < base.n) other[row] = table.other[row];
  } else byNames(base, snap, other);
  for (let row = 0; row < snap.n; row++) if (other[row] >= 0) back[other[row]] = row;
  const change = new Uint8Array(snap.n);
  const changeBase = new Uint8Array(base.n).fill(GONE);
  const counts = CHANGES.map(() => 0);
  for (let row = 0; row < snap.n; row++) {
    change[row] = table?.change ? table.change[row] : changeOf(base, snap, other[row], row);
    if (other[row] >= 0) changeBase[other[row]] = change[row];
    if (holds(snap, row) || (other[row] >= 0 && holds(base, other[row]))) counts[change[row]] += 1;
  }
  for (let row = 0; row < base.n; row++) if (back[row] < 0 && holds(base, row)) counts[GONE] += 1;
  return { other, back, change, changeBase, counts };
}

/** @param {import("./data.js").Snapshot} base @param {import("./data.js").Snapshot} snap @param {Int32Array} other */
function byNames(base, snap, other) {
  for (const column of ["name", "source"]) {
    /** @type {Map<string, number>} */
    const places = new Map();
    const taken = new Set(other);
    for (let row = base.n - 1; row >= 0; row--) {
      const text = base.text(column, row);
      if (text && !taken.has(row)) places.set(text, row);
    }
    for (let row = 0; row < snap.n; row++) {
      if (other[row] >= 0) continue;
      const found = places.get(snap.text(column, row));
      if (found === undefined) continue;
      other[row] = found;
      places.delete(snap.text(column, row));
    }
  }
}

/** @param {import("./data.js").Snapshot} base @param {import("./data.js").Snapshot} snap @param {number} old @param {number} row */
function changeOf(base, snap, old, row) {
  if (old < 0) return NEW;
  const a = base.t;
  const b = snap.t;
  if (a.size[old] !== b.size[row] || a.guard[old] !== b.guard[row]) return RESIZED;
  if (a.offset[old] !== b.offset[row] || a.space[old] !== b.space[row]) return MOVED;
  return a.death[old] - a.birth[old] === b.death[row] - b.birth[row] ? SAME : LIFETIME;
}

/** Options whose values differ: name, before, now. @param {import("./data.js").Snapshot} base @param {import("./data.js").Snapshot} snap @returns {[string, any, any][]} */
export function changedOptions(base, snap) {
  const before = new Map((base.meta.options ?? []).map((/** @type {any} */ one) => [one.name, one.value]));
  return (snap.meta.options ?? []).filter((/** @type {any} */ one) => before.has(one.name) && before.get(one.name) !== one.value)
    .map((/** @type {any} */ one) => [one.name, before.get(one.name), one.value]);
}

/** Why a row differs, in words. @param {import("./data.js").Snapshot} base @param {import("./data.js").Snapshot} snap @param {number} old @param {number} row */
export function causeOf(base, snap, old, row) {
  if (old < 0) return "only in B: fusion or the model differs";
  if (row < 0) return "only in A: fused away, or the model differs";
  const shapeA = base.text("shape", old);
  const shapeB = snap.text("shape", row);
  if (shapeA !== shapeB) return `shape ${shapeA} → ${shapeB}`;
  const dtypeA = base.label("dtypes", base.t.dtype[old]);
  const dtypeB = snap.label("dtypes", snap.t.dtype[row]);
  if (dtypeA !== dtypeB) return `dtype ${dtypeA} → ${dtypeB}`;
  const spaceA = base.label("spaces", base.t.space[old]);
  const spaceB = snap.label("spaces", snap.t.space[row]);
  if (spaceA !== spaceB) return `${spaceA} → ${spaceB}`;
  const ruleA = base.rule(base.t.rule[old]).name;
  const ruleB = snap.rule(snap.t.rule[row]).name;
  if (ruleA !== ruleB) return `death set by ${ruleB || "nothing"}, before by ${ruleA || "nothing"}`;
  if (base.t.size[old] !== snap.t.size[row]) return "stored at another width";
  if (base.t.guard[old] !== snap.t.guard[row]) return "another guard";
  if (base.t.offset[old] !== snap.t.offset[row]) return "placed again: others' lives or sizes changed";
  if (base.t.death[old] - base.t.birth[old] !== snap.t.death[row] - snap.t.birth[row]) return "the steps around it changed";
  return "";
}
