// Owns the tooltip: what is under the pointer, kept inside the explorer's edges.

import { el, swatch, wrappingName } from "./dom.js";
import { factsOf, reasonsOf } from "./details.js";
import { formatBytes, formatCount } from "./format.js";
import { THEMES } from "./palette.js";
import { markOf, schemeOf } from "./scheme.js";

export class Tooltip {
  /** @param {import("./store.js").Store} store @param {HTMLElement} root @param {Record<string, import("./plot.js").Plot>} plots */
  constructor(store, root, plots) {
    this.root = root;
    this.plots = plots;
    this.element = el("div", { class: "rlx-tip", role: "tooltip", hidden: true });
    this.shown = "";
    this.stop = store.on((changed, state) => {
      if (["hover", "hoverStep", "hoverSource", "hoverGroup", "hoverOther", "pointer", "at", "snap", "x", "present"].some((key) => changed.has(key))) this.update(state);
    });
  }

  /** @param {import("./store.js").State} state */
  update(state) {
    const { snap, at } = state;
    const plot = this.plots[state.pointer];
    const row = state.hover;
    const curve = state.pointer === "occupancy" && state.hoverStep >= 0;
    const own = snap && plot && at ? plot.tip(state) : null;
    if (!snap || !plot || !at || (row < 0 && !curve && !own)) {
      this.element.hidden = true;
      this.shown = "";
      return;
    }
    const key = `${state.rev} ${own?.key ?? row} ${state.pointer} ${curve ? state.hoverStep : ""} ${state.colour} ${state.theme}`;
    if (key !== this.shown) {
      this.shown = key;
      if (own) this.element.replaceChildren(...own.parts.filter(Boolean));
      else if (row >= 0) this.fillRow(state, row);
      else this.fillStep(snap, state.hoverStep);
    }
    this.element.hidden = false;
    this.place(plot, at);
  }

  /** @param {import("./store.js").State} state @param {number} row */
  fillRow(state, row) {
    const snap = /** @type {import("./data.js").Snapshot} */ (state.snap);
    const scheme = schemeOf(state, THEMES[state.theme]);
    const list = el("dl", { class: "rlx-pairs" });
    for (const [name, value] of factsOf(snap, row)) list.append(el("dt", {}, name), el("dd", {}, value));
    const rules = [...new Set(reasonsOf(snap, row).map((reason) => reason.rule.name))];
    if (state.pointer === "arena" && state.at) this.nextDoor(snap, list, row, state.at);
    if (rules.length) list.append(el("dt", {}, "kept by"), el("dd", {}, rules.join(", ")));
    this.element.replaceChildren(
      el("div", { class: "rlx-name" }, swatch(...markOf(scheme, scheme.of(row))), wrappingName(snap.text("name", row))), list);
  }

  /** What was on these bytes before and what comes after. @param {import("./data.js").Snapshot} snap @param {HTMLElement} list @param {number} row @param {import("./plot.js").Point} at */
  nextDoor(snap, list, row, at) {
    const arena = /** @type {import("./arena.js").ArenaView} */ (this.plots.arena);
    const { before, after } = arena.neighbours(row, arena.fromY(at.y));
    /** @param {string} when @param {number} other @param {string} none */
    const line = (when, other, none) => list.append(el("dt", {}, when),
      el("dd", {}, other < 0 ? none : `${snap.text("name", other)} · ${formatCount(snap.t.birth[other])} to ${formatCount(snap.t.death[other])}`));
    line("before", before, "nothing on this byte");
    line("after", after, "nothing on this byte");
  }

  /** @param {import("./data.js").Snapshot} snap @param {number} step */
  fillStep(snap, step) {
    const columns = snap.tables.occupancy?.columns ?? {};
    const row = snap.rowAt(step);
    const list = el("dl", { class: "rlx-pairs" });
    if (row >= 0) list.append(el("dt", {}, "makes"), el("dd", {}, `${snap.text("name", row)} · ${snap.text("op", row)}`));
    list.append(el("dt", {}, "live"), el("dd", {}, formatBytes(columns.live?.[step] ?? 0)));
    for (const name of snap.meta.classes ?? []) {
      if (columns[name]?.[step] > 0) list.append(el("dt", {}, name), el("dd", {}, formatBytes(columns[name][step])));
    }
    this.element.replaceChildren(el("div", { class: "rlx-name" }, el("span", {}, `Step ${formatCount(step)}`)), list);
  }

  /** @param {import("./plot.js").Plot} plot @param {import("./plot.js").Point} at */
  place(plot, at) {
    const bounds = this.root.getBoundingClientRect();
    const view = plot.over.getBoundingClientRect();
    const x = view.left - bounds.left + at.x;
    const y = view.top - bounds.top + at.y;
    // While presenting the tooltip is zoomed: its own pixels, those of left and top too, are larger than the page's.
    const zoom = Number(getComputedStyle(this.element).zoom) || 1;
    this.element.style.left = "0px"; // near the right edge it would be measured squeezed
    const width = this.element.offsetWidth * zoom;
    const height = this.element.offsetHeight * zoom;
    const left = x + 14 + width > bounds.width - 6 ? x - 14 - width : x + 14;
    const top = y + 14 + height > bounds.height - 6 ? y - 10 - height : y + 14;
    this.element.style.left = `${Math.max(6, Math.min(left, bounds.width - 6 - width)) / zoom}px`;
    this.element.style.top = `${Math.max(6, Math.min(top, bounds.height - 6 - height)) / zoom}px`;
  }

  close() {
    this.stop();
  }
}
