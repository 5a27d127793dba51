// Owns what is kept of a view: the state that reopens it, and the steps that undo walks through.

import { fusionOf } from "./graphs.js";
import { openViews } from "./layout.js";
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
export const KEPT = [...Object.keys(PLAIN), ...Object.keys(RANGES), "open", "selected", "module"];

/**
 * The view as plain data; what stands at its default is left out.
 * @param {import("./store.js").State} state @param {string} usual  the views open at first
 * @returns {Record<string, any>}
 */
export function saveView(state, usual) {
  /** @type {Record<string, any>} */
  const saved = {};
  const values = /** @type {any} */ (state);
  for (const [key, normal] of Object.entries(PLAIN)) if (values[key] !== normal) saved[key] = values[key];
  for (const [key, name] of Object.entries(RANGES)) if (values[key]) saved[name] = values[key].map((/** @type {number} */ v) => Number(v.toFixed(2)));
  if (state.open !== usual) saved.open = state.open;
  if (state.snap && state.selected >= 0) saved.selected = state.snap.text("name", state.selected);
  if (state.snap && state.module >= 0) saved.module = fusionOf(state.snap).groups?.name(state.module) ?? "";
  return saved;
}

/**
 * The changes that bring back a saved view; what a document no longer has is left as it is.
 * @param {any} saved @param {import("./store.js").State} state @param {string} usual
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
  if (patch.maximised && !openViews(patch.maximised).length) patch.maximised = "";
  for (const [key, name] of Object.entries(RANGES)) {
    const range = saved[name];
    patch[key] = Array.isArray(range) && range.length === 2 && range.every(Number.isFinite) && range[1] > range[0] ? [range[0], range[1]] : null;
  }
  if (patch.x && snap) patch.x = clampRange(patch.x, [0, snap.steps]);
  patch.open = typeof saved.open === "string" ? openViews(saved.open).join(" ") : usual;
  if (snap) {
    patch.selected = typeof saved.selected === "string" ? snap.rowsByName().get(saved.selected) ?? -1 : -1;
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

/** @param {string} hash @returns {Record<string, any> | null} null when there is none */
export function fromHash(hash) {
  const text = hash.replace(/^#/, "");
  if (!text.includes("=")) return null;
  /** @type {Record<string, any>} */
  const saved = {};
  for (const part of text.split("&")) {
    const at = part.indexOf("=");
    if (at < 1) continue;
    const key = part.slice(0, at);
    try {
      const value = decodeURIComponent(part.slice(at + 1));
      const plain = key === "query" || key === "selected" || key === "module" || key === "open" || !/^(true|false|\[.*\])$/.test(value);
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

  /** An option was changed. */
  planned() {
    this.past.push({ plan: true });
    this.future = [];
  }

  /** @param {"undo" | "redo"} direction @param {number} elsewhere  steps that only Python knows of */
  go(direction, elsewhere) {
    const [from, to] = direction === "undo" ? [this.past, this.future] : [this.future, this.past];
    const step = from.pop();
    if (!step) {
      if (elsewhere > 0) this.actions.plan(direction);
      return elsewhere > 0;
    }
    if ("plan" in step) {
      to.push(step);
      this.actions.plan(direction);
    } else {
      to.push({ view: this.now });
      this.now = step.view;
      this.actions.restore(step.view);
    }
    return true;
  }
}
