// Owns what is kept of a view: the state that reopens it, and the steps that undo walks through.

import { fusionOf } from "./graphs.js";
import { openViews } from "./layout.js";
import { THEMES } from "./palette.js";
import { schemeOf } from "./scheme.js";
import { clampRange } from "./viewport.js";

/** Keys of the state that a saved view holds as they are, with their defaults. @type {Record<string, any>} */
const PLAIN = {
  query: "", colour: "family", sort: "birth", views: true, statics: false, space: "arena", heat: "off", graph: "both",
  collapse: "auto", present: false, maximised: "", text: false,
  sizes: "",
};
const RANGES = { x: "steps", rows: "rows", offsets: "bytes", graphX: "gx", graphY: "gy" };
const CHOICES = /** @type {Record<string, string[]>} */ ({
  colour: ["family", "dtype", "kind", "rule", "module"], sort: ["birth", "size", "lifetime", "offset", "module"], space: ["arena", "weights"],
  heat: ["off", "occupancy", "reuse", "touched"], graph: ["both", "overlay", "fused"], collapse: ["auto", "on", "off"],
});
export const KEPT = [...Object.keys(PLAIN), ...Object.keys(RANGES), "open", "selected", "module", "hidden", "theme"];

/** What a view has before anyone touches it: it depends on the screen and the document. @typedef {{open: string, theme: string}} Usual */

/** Names of the legend entries switched off. @param {import("./store.js").State} state @returns {string[]} */
export function hiddenNames(state) {
  if (!state.snap || !state.hidden.size) return [];
  const { names } = schemeOf(state, THEMES[state.theme]);
  return [...state.hidden].sort((a, b) => a - b).map((index) => names[index]).filter((name) => name !== undefined);
}

/** The legend entries of those names; the set of the state itself where it is the same. @param {import("./store.js").State} state @param {any} wanted @returns {Set<number>} */
export function hiddenOf(state, wanted) {
  /** @type {Set<number>} */
  const found = new Set();
  if (state.snap && Array.isArray(wanted)) {
    const { names } = schemeOf(state, THEMES[state.theme]);
    for (const name of wanted) if (names.includes(name)) found.add(names.indexOf(name));
  }
  return found.size === state.hidden.size && [...found].every((index) => state.hidden.has(index)) ? state.hidden : found;
}

/**
 * The view as plain data; what stands at its default is left out. `open` is left out only with everything else:
 * which views open by themselves depends on the screen.
 * @param {import("./store.js").State} state @param {Usual} usual
 * @returns {Record<string, any>}
 */
export function saveView(state, usual) {
  /** @type {Record<string, any>} */
  const saved = {};
  const values = /** @type {any} */ (state);
  for (const [key, normal] of Object.entries(PLAIN)) if (values[key] !== normal) saved[key] = values[key];
  for (const [key, name] of Object.entries(RANGES)) if (values[key]) saved[name] = values[key].map((/** @type {number} */ v) => Number(v.toFixed(2)));
  if (state.snap && state.selected >= 0) {
    saved.selected = state.snap.text("name", state.selected);
    const nth = state.snap.ordinal(state.selected);
    if (nth) saved.nth = nth;
  }
  const hidden = hiddenNames(state);
  if (hidden.length) saved.hidden = hidden;
  if (state.theme !== usual.theme) saved.theme = state.theme;
  if (state.snap && state.module >= 0) saved.module = fusionOf(state.snap).groups?.name(state.module) ?? "";
  if (state.open !== usual.open || Object.keys(saved).length) saved.open = state.open;
  return saved;
}

/**
 * The changes that bring back a saved view; what a document no longer has is left as it is.
 * @param {any} saved @param {import("./store.js").State} state @param {Usual} usual
 * @returns {any}
 */
export function restoreView(saved, state, usual) {
  const { snap } = state;
  if (!saved || typeof saved !== "object") return {};
  /** @type {any} */
  const patch = {};
  for (const [key, normal] of Object.entries(PLAIN)) {
    const value = key in saved ? saved[key] : normal;
    patch[key] = typeof value === typeof normal && (!CHOICES[key] || CHOICES[key].includes(value)) ? value : normal;
  }
  if (openViews(patch.maximised).join() !== patch.maximised) patch.maximised = "";
  for (const [key, name] of Object.entries(RANGES)) {
    const range = saved[name];
    patch[key] = Array.isArray(range) && range.length === 2 && range.every(Number.isFinite) && range[1] > range[0] ? [range[0], range[1]] : null;
  }
  if (patch.x && snap) patch.x = clampRange(patch.x, [0, snap.steps]);
  patch.open = typeof saved.open === "string" ? openViews(saved.open).join(" ") : usual.open;
  patch.theme = saved.theme === "light" || saved.theme === "dark" ? saved.theme : usual.theme;
  if (snap) {
    patch.selected = typeof saved.selected === "string" ? snap.rowOf(saved.selected, Number(saved.nth) || 0) : -1;
    patch.hidden = hiddenOf({ ...state, colour: patch.colour, theme: patch.theme }, saved.hidden);
    const groups = fusionOf(snap).groups;
    patch.module = -1;
    if (typeof saved.module === "string" && groups) {
      for (let group = groups.n - 1; group >= 0; group--) if (groups.name(group) === saved.module) patch.module = group;
    }
  }
  return patch;
}

/** A saved view as the part of an address after "#". @param {Record<string, any>} saved */
export function toHash(saved) {
  return Object.entries(saved).map(([key, value]) => `${key}=${encodeURIComponent(typeof value === "string" ? value : JSON.stringify(value))}`).join("&");
}

/** @param {string} hash @returns {Record<string, any> | null} null when it is of something else, {} for the usual view */
export function fromHash(hash) {
  const text = hash.replace(/^#/, "");
  if (text && !text.includes("=")) return null;
  /** @type {Record<string, any>} */
  const saved = {};
  for (const part of text.split("&")) {
    const at = part.indexOf("=");
    if (at < 1) continue;
    const key = part.slice(0, at);
    try {
      const value = decodeURIComponent(part.slice(at + 1));
      const plain = key === "query" || key === "selected" || key === "module" || key === "open" || !/^(true|false|\d+|\[.*\])$/.test(value);
      saved[key] = plain ? value : JSON.parse(value);
    } catch {
      // A damaged part of an address is as good as none.
    }
  }
  return saved;
}

const MOST_STEPS = 100;

/** Steps back and forth: views of ours, and option changes that Python keeps itself. */
export class History {
  /** @param {{restore: (saved: any) => void, plan: (direction: "undo" | "redo") => void}} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {({view: any} | {plan: true})[]} */
    this.past = [];
    /** @type {({view: any} | {plan: true})[]} */
    this.future = [];
    /** @type {any} */
    this.now = null;
    /** Python's counts when they were last looked at. @type {{undo: number, redo: number} | null} */
    this.counts = null;
    /** The way of an option step that was asked for and not answered yet. @type {"undo" | "redo" | ""} */
    this.asked = "";
  }

  /** The view came to rest at `saved`. @param {any} saved */
  note(saved) {
    const text = JSON.stringify(saved);
    if (this.now !== null && text === JSON.stringify(this.now)) return;
    if (this.now !== null) {
      this.past.push({ view: this.now });
      if (this.past.length > MOST_STEPS) this.past.shift();
      this.future = [];
    }
    this.now = saved;
  }

  /**
   * Python counts its option steps: whatever moved them (this page, another one, a cell) takes its place among ours.
   * A failed change moves nothing. @param {{undo: number, redo: number}} counts
   */
  counted(counts) {
    const before = this.counts;
    this.counts = { undo: counts.undo, redo: counts.redo };
    if (!before || (before.undo === counts.undo && before.redo === counts.redo)) return;
    const more = counts.undo - before.undo;
    const asked = this.asked;
    this.asked = "";
    if (more < 0) for (let k = more; k < 0; k++) moveStep(this.past, this.future);
    else if (more > 0 && (asked === "redo" || counts.redo > 0)) for (let k = 0; k < more; k++) moveStep(this.future, this.past);
    else {
      for (let k = 0; k < more; k++) this.past.push({ plan: true });
      this.future = [];
    }
  }

  /** @param {"undo" | "redo"} direction @param {number} elsewhere  steps that only Python knows of */
  go(direction, elsewhere) {
    const [from, to] = direction === "undo" ? [this.past, this.future] : [this.future, this.past];
    const step = from.at(-1);
    if (!step || "plan" in step) {
      if (!step && elsewhere <= 0) return false;
      this.asked = direction; // the step moves when Python has moved it
      this.actions.plan(direction);
    } else {
      from.pop();
      to.push({ view: this.now });
      this.now = step.view;
      this.actions.restore(step.view);
    }
    return true;
  }
}

/** The last option step of one way becomes the next of the other. @param {({view: any} | {plan: true})[]} from @param {({view: any} | {plan: true})[]} to */
function moveStep(from, to) {
  const at = from.findLastIndex((step) => "plan" in step);
  if (at >= 0) from.splice(at, 1);
  to.push({ plan: true });
}
