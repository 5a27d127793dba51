// Owns the occupancy curve: live arena bytes per step, stacked by class, with peak, arena and lower bound.

import { el, swatch } from "./dom.js";
import { formatBytes, formatCount, formatTick, roundTicks, toBig } from "./format.js";
import { coloursFor, toPixel } from "./palette.js";
import { Plot, TWIN_ROWS } from "./plot.js";


export class OccupancyView extends Plot {
  /** @param {import("./store.js").Store} store @param {() => boolean} wheelAllowed */
  constructor(store, wheelAllowed) {
    super(store, {
      name: "occupancy", title: "Occupancy", wheelAllowed,
      label: "Occupancy: live arena bytes over the steps, stacked by class.",
    });
    this.top = 1;
    /** @type {string[]} */
    this.classes = [];
    /** @type {string[]} */
    this.colours = [];
    /** Classes that the legend switched off. @type {Set<string>} */
    this.off = new Set();
  }

  get inputs() { return ["snap", "theme"]; }
  /** @returns {[number, number]} */
  fullY() { return [0, this.top]; }

  /** @returns {Record<string, Float64Array>} */
  get columns() { return this.snap.tables.occupancy?.columns ?? {}; }

  build() {
    const { columns, snap } = this;
    this.classes = (snap.meta.classes ?? []).filter((/** @type {string} */ name) => columns[name]?.some((/** @type {number} */ bytes) => bytes > 0));
    this.colours = coloursFor(this.classes, this.theme);
    this.live = columns.live ?? new Float64Array(0);
    this.bound = Number(toBig(snap.meta.headline?.lower_bound));
    this.arena = Number(toBig(snap.meta.headline?.arena));
    this.peak = this.live.reduce((most, bytes) => Math.max(most, bytes), 0);
    const curve = Math.max(this.peak, this.bound, 1);
    // An arena far above the curve would flatten it: it leaves the scale, and the legend says where it is.
    this.beyond = this.arena > curve * 1.8;
    this.top = (this.beyond ? curve : Math.max(curve, this.arena)) * 1.1;
    this.legend.replaceChildren(
      ...this.classes.map((name, i) => el("button", { type: "button", class: "rlx-key", "data-key": name, "aria-pressed": String(!this.off.has(name)),
        title: `Click to ${this.off.has(name) ? "stack it again" : "take it out of the stack"}.`, onclick: () => this.flip(name) }, swatch(this.colours[i]), name)),
    );
    this.legend.append(
      el("span", { class: "rlx-key" }, el("i", { class: "rlx-rule" }),
        this.beyond ? `arena ${formatBytes(this.arena)}, above the scale` : "arena"),
      el("span", { class: "rlx-key" }, el("i", { class: "rlx-rule rlx-dashed" }), "lower bound"));
    this.note.textContent = `peak ${formatBytes(this.peak)}`;
  }

  /** @param {string} name */
  flip(name) {
    if (!this.off.delete(name)) this.off.add(name);
    this.build();
    this.draw(true);
    for (const key of this.legend.querySelectorAll("button")) if (key.dataset.key === name) key.focus();
  }

  /** Each pixel column shows its fullest step, so that no peak falls between pixels. */
  paint() {
    const { renderer, columns, live = new Float64Array(0) } = this;
    const { ky, oy } = this.transform();
    const series = this.classes.map((name) => columns[name]);
    const pixels = this.colours.map(toPixel);
    const [x0, x1] = this.x;
    const perPixel = (x1 - x0) / renderer.width;
    for (let px = 0; px < renderer.width; px++) {
      const first = Math.floor(x0 + px * perPixel);
      const last = Math.min(Math.max(first + 1, Math.ceil(x0 + (px + 1) * perPixel)), live.length);
      let step = first;
      for (let s = first; s < last; s++) if (live[s] > live[step]) step = s;
      if (step >= live.length) continue;
      let base = 0;
      for (let k = 0; k < series.length; k++) {
        if (this.off.has(this.classes[k])) continue;
        const next = base + series[k][step];
        if (next > base) renderer.box(px, px + 1, next * ky + oy, base * ky + oy, pixels[k]);
        base = next;
      }
      if (!series.length) renderer.box(px, px + 1, live[step] * ky + oy, oy, toPixel(this.theme.colours.sky));
    }
  }

  yTicks() {
    return roundTicks(this.y[0], this.y[1], Math.max(2, this.area.height / 30), true);
  }

  /** @param {CanvasRenderingContext2D} context */
  labels(context) {
    const { left, top, height } = this.area;
    context.fillStyle = this.theme.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const tick of this.yTicks()) {
      context.fillText(formatTick(tick), left - 8, Math.min(Math.max(this.toY(tick), top + 5), top + height - 4));
    }
  }

  /** @param {CanvasRenderingContext2D} context */
  decorate(context) {
    const { left, width } = this.area;
    for (const [bytes, dash] of /** @type {[number, number[]][]} */ ([[this.arena, []], [this.bound, [5, 3]]])) {
      if (!(bytes > 0)) continue;
      const y = Math.round(this.toY(bytes)) + 0.5;
      context.setLineDash(dash);
      context.strokeStyle = this.theme.ink;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(left + width, y);
      context.stroke();
    }
    context.setLineDash([]);
    const selected = this.state.selected;
    if (selected < 0) return;
    const { birth, death } = this.snap.t;
    const y = this.area.top + this.area.height - 2;
    context.strokeStyle = this.theme.accent;
    context.lineWidth = 3;
    context.beginPath();
    context.moveTo(this.toX(birth[selected]), y);
    context.lineTo(Math.max(this.toX(death[selected] + 1), this.toX(birth[selected]) + 3), y);
    context.stroke();
    context.lineWidth = 1;
  }

  /** A click selects the tensor made at that step. @param {import("./plot.js").Point} at */
  click(at) {
    if (!this.inArea(at)) return;
    const step = Math.floor(this.fromX(at.x));
    this.store.set({ selected: this.snap.rowAt(step) });
  }

  describe() {
    const { columns, live = new Float64Array(0), classes } = this;
    const lines = [
      `occupancy: peak ${formatBytes(this.peak)} at step ${this.snap.meta.headline?.peak_step}, ` +
        `arena ${formatBytes(this.arena)}, lower bound ${formatBytes(this.bound)}`,
      ["step", "live", ...classes].join("  "),
    ];
    for (let step = 0; step < Math.min(live.length, TWIN_ROWS); step++) {
      lines.push([step, live[step], ...classes.map((name) => columns[name][step])].join("  "));
    }
    if (live.length > TWIN_ROWS) lines.push(`… ${formatCount(live.length - TWIN_ROWS)} more`);
    return lines.join("\n");
  }
}
