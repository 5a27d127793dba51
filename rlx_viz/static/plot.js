// Owns what the three canvas views share: layers, axes, the step range, gestures, and the text twin.

import { el } from "./dom.js";
import { formatCount, roundTicks } from "./format.js";
import { THEMES, toPixel } from "./palette.js";
import { PixelRenderer } from "./raster.js";
import { attachViewport, clampRange, zoomRange } from "./viewport.js";

/** @typedef {{x: number, y: number}} Point  CSS pixels in the view */
/** @typedef {{x0: number, y0: number, x1: number, y1: number}} Box */

export const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';
/** Rows a text twin shows before it says how many more there are. */
export const TWIN_ROWS = 200;
const AXIS = 18;
const SHARPEN_AFTER = 140;

export class Plot {
  /**
   * @param {import("./store.js").Store} store
   * @param {{name: string, title: string, label: string, wheelAllowed: () => boolean}} options
   */
  constructor(store, options) {
    this.store = store;
    this.name = options.name;
    this.base = el("canvas", { class: "rlx-base", "aria-hidden": "true" });
    this.over = el("canvas", { class: "rlx-over", tabindex: 0, role: "img", "aria-label": options.label });
    this.twin = el("pre", { class: "rlx-twin", "data-twin": options.name, "aria-label": `${options.title} as text` });
    this.body = el("div", { class: "rlx-plot" }, this.base, this.over, this.twin);
    this.legend = el("div", { class: "rlx-legend" });
    this.note = el("span", { class: "rlx-note" });
    this.grow = el("button", {
      class: "rlx-icon", type: "button", title: `Fill the space with ${options.title}`,
      "aria-label": `Maximise ${options.title}`, "aria-pressed": "false",
      onclick: () => store.set({ maximised: store.state.maximised === this.name ? "" : this.name }),
    }, "⤢");
    this.element = el("section", { class: `rlx-view rlx-view-${options.name}`, "aria-label": options.title },
      el("header", {}, el("h2", {}, options.title), this.note, this.legend, this.grow), this.body);
    this.renderer = new PixelRenderer(this.base);
    this.context = /** @type {CanvasRenderingContext2D} */ (this.over.getContext("2d"));
    this.scale = 0;
    this.axis = false;
    this.drawn = 0;
    /** @type {Box | null} */
    this.box = null;
    /** @type {Point | null} */
    this.pointer = null;
    this.area = { left: 0, top: 0, width: 1, height: 1 };
    this.resizing = new ResizeObserver(() => this.draw(true));
    this.resizing.observe(this.body);
    this.stop = store.on((changed) => this.update(changed));
    attachViewport(this, options.wheelAllowed);
  }

  // What a view supplies.
  /** State keys that change the rectangles. @returns {string[]} */
  get inputs() { return []; }
  /** Key of the state's y range, "" when the y axis does not zoom. @returns {"rows" | "offsets" | ""} */
  get yKey() { return ""; }
  /** y grows upwards. */
  get upward() { return true; }
  /** Smallest y span that zooming reaches. */
  get yLeast() { return 1; }
  /** @returns {[number, number]} */
  fullY() { return [0, 1]; }
  build() {}
  paint() {}
  /** @param {CanvasRenderingContext2D} _context */
  decorate(_context) {}
  /** Row under a point, -1 for none. @param {Point} _at @returns {number} */
  hit(_at) { return -1; }
  /** @returns {string} */
  describe() { return ""; }

  get state() { return this.store.state; }
  get snap() { return /** @type {import("./data.js").Snapshot} */ (this.store.state.snap); }
  get theme() { return THEMES[this.state.theme]; }
  /** @returns {[number, number]} */
  get fullX() { return [0, this.snap?.steps ?? 1]; }
  /** @returns {[number, number]} */
  get x() { return this.state.x ?? this.fullX; }
  /** @returns {[number, number]} */
  get y() { return (this.yKey && this.state[this.yKey]) || this.fullY(); }

  // Data to CSS pixels and back.
  /** @param {number} step */
  toX(step) { return this.area.left + ((step - this.x[0]) * this.area.width) / (this.x[1] - this.x[0]); }
  /** @param {number} value */
  toY(value) {
    const share = (value - this.y[0]) / (this.y[1] - this.y[0]);
    return this.area.top + (this.upward ? 1 - share : share) * this.area.height;
  }
  /** @param {number} px */
  fromX(px) { return this.x[0] + ((px - this.area.left) * (this.x[1] - this.x[0])) / this.area.width; }
  /** @param {number} py */
  fromY(py) {
    const share = (py - this.area.top) / this.area.height;
    return this.y[0] + (this.upward ? 1 - share : share) * (this.y[1] - this.y[0]);
  }

  // Gestures.
  /** @param {number} factorX @param {number} factorY @param {Point} at */
  zoom(factorX, factorY, at) {
    /** @type {any} */
    const patch = {};
    if (factorX !== 1) patch.x = zoomRange(this.x, this.fullX, factorX, this.fromX(at.x), 2);
    if (factorY !== 1 && this.yKey) {
      patch[this.yKey] = zoomRange(this.y, this.fullY(), factorY, this.fromY(at.y), this.yLeast);
    }
    this.move(patch);
  }

  /** @param {number} dx @param {number} dy  pixels the window moves over the data */
  pan(dx, dy) {
    /** @type {any} */
    const patch = {};
    const x = (dx * (this.x[1] - this.x[0])) / this.area.width;
    const y = (dy * (this.y[1] - this.y[0]) * (this.upward ? -1 : 1)) / this.area.height;
    if (dx) patch.x = clampRange([this.x[0] + x, this.x[1] + x], this.fullX);
    if (dy && this.yKey) patch[this.yKey] = clampRange([this.y[0] + y, this.y[1] + y], this.fullY());
    this.move(patch);
  }

  /** @param {Box} box */
  zoomToBox(box) {
    const xs = [this.fromX(box.x0), this.fromX(box.x1)].sort((a, b) => a - b);
    const ys = [this.fromY(box.y0), this.fromY(box.y1)].sort((a, b) => a - b);
    /** @type {any} */
    const patch = {};
    if (Math.abs(box.x1 - box.x0) > 4) {
      patch.x = clampRange([xs[0], Math.max(xs[1], xs[0] + 2)], this.fullX);
    }
    if (this.yKey && Math.abs(box.y1 - box.y0) > 4) {
      patch[this.yKey] = clampRange([ys[0], Math.max(ys[1], ys[0] + this.yLeast)], this.fullY());
    }
    this.move(patch);
  }

  reset() {
    /** @type {any} */
    const patch = { x: null };
    if (this.yKey) patch[this.yKey] = null;
    this.move(patch);
  }

  /** @param {any} patch */
  move(patch) {
    clearTimeout(this.sharpen);
    this.sharpen = setTimeout(() => this.store.set({ moving: false }), SHARPEN_AFTER);
    this.store.set({ ...patch, moving: true });
  }

  /** @param {Point | null} at */
  point(at) {
    this.pointer = at;
    const inside = at && this.inArea(at);
    const step = inside ? Math.min(Math.floor(this.fromX(at.x)), this.snap.steps - 1) : -1;
    this.store.set({ hover: inside ? this.hit(at) : -1, hoverStep: step, pointer: at ? this.name : "", at });
  }

  /** @param {Point} at */
  inArea(at) {
    const { left, top, width, height } = this.area;
    return this.snap && at.x >= left && at.x < left + width && at.y >= top && at.y < top + height;
  }

  /** @param {Point} at */
  click(at) {
    if (this.inArea(at)) this.store.set({ selected: this.hit(at) });
  }

  /** @param {Box | null} box */
  drawBox(box) {
    this.box = box;
    this.draw(false);
  }

  // Drawing.
  /** @param {Set<string>} changed */
  update(changed) {
    if (!this.snap) return;
    const rebuild = this.inputs.some((key) => changed.has(key));
    if (rebuild) {
      this.build();
      this.keepZoom();
    }
    if (changed.has("maximised")) this.grow.setAttribute("aria-pressed", String(this.state.maximised === this.name));
    const repaint = rebuild || changed.has("x") || (this.yKey !== "" && changed.has(this.yKey)) || changed.has("theme");
    this.draw(repaint);
  }

  /** A new plan may be shorter or lower than the zoomed range. */
  keepZoom() {
    const { x } = this.state;
    const y = this.yKey ? this.state[this.yKey] : null;
    if (x) this.store.set({ x: clampRange(x, this.fullX) });
    if (y) this.store.set({ [this.yKey]: clampRange(y, this.fullY()) });
  }

  /** @param {boolean} repaint  the rectangles too, not only what lies over them */
  draw(repaint) {
    const width = this.body.clientWidth;
    const height = this.body.clientHeight;
    if (!this.snap || width < 40 || height < 20) return;
    const started = performance.now();
    const gutter = width < 620 ? 76 : 124;
    const area = { left: gutter, top: 4, width: width - gutter - 10, height: height - 4 - (this.axis ? AXIS : 4) };
    const sharp = window.devicePixelRatio || 1;
    const scale = this.state.moving ? Math.min(1, sharp) : sharp;
    const moved = area.width !== this.area.width || area.height !== this.area.height || scale !== this.scale;
    this.area = area;
    this.scale = scale;
    if (repaint || moved) {
      this.renderer.resize(Math.max(1, Math.round(area.width * scale)), Math.max(1, Math.round(area.height * scale)));
      Object.assign(this.base.style, {
        left: `${area.left}px`, top: `${area.top}px`, width: `${area.width}px`, height: `${area.height}px`,
      });
      this.renderer.clear();
      const grid = toPixel(this.theme.faint);
      this.renderer.lines(this.stepTicks().map((tick) => (this.toX(tick) - area.left) * scale), [], grid);
      this.renderer.lines([], this.yTicks().map((tick) => (this.toY(tick) - area.top) * scale), grid);
      this.paint();
      this.renderer.show();
    }
    if (this.over.width !== Math.round(width * sharp) || this.over.height !== Math.round(height * sharp)) {
      this.over.width = Math.round(width * sharp);
      this.over.height = Math.round(height * sharp);
    }
    const context = this.context;
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    this.frameAndSteps(context);
    context.save();
    context.beginPath();
    context.rect(area.left, area.top, area.width, area.height);
    context.clip();
    this.peakBand(context);
    this.decorate(context);
    this.cursor(context);
    context.restore();
    this.labels(context);
    if (repaint || moved) this.drawn = performance.now() - started;
  }

  /** Rectangles' scale and origin in device pixels: x·kx + ox, y·ky + oy. */
  transform() {
    const { area, scale } = this;
    const kx = (this.renderer.width) / (this.x[1] - this.x[0]);
    const ky = ((this.upward ? -1 : 1) * this.renderer.height) / (this.y[1] - this.y[0]);
    return { kx, ox: -this.x[0] * kx, ky, oy: (this.toY(0) - area.top) * scale };
  }

  stepTicks() {
    return roundTicks(this.x[0], this.x[1], this.area.width / 90, false);
  }

  /** @returns {number[]} */
  yTicks() { return []; }

  /** Text left of the plot. @param {CanvasRenderingContext2D} _context */
  labels(_context) {}

  /** @param {CanvasRenderingContext2D} context */
  frameAndSteps(context) {
    const { left, top, width, height } = this.area;
    context.strokeStyle = this.theme.line;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(left - 0.5, top);
    context.lineTo(left - 0.5, top + height + 0.5);
    context.lineTo(left + width, top + height + 0.5);
    context.stroke();
    if (!this.axis) return;
    context.fillStyle = this.theme.muted;
    context.textAlign = "right";
    context.textBaseline = "top";
    context.fillText("step", left - 8, top + height + 4);
    let free = left - 6;
    context.textAlign = "center";
    for (const tick of this.stepTicks()) {
      const text = formatCount(tick);
      const half = context.measureText(text).width / 2;
      const x = Math.min(Math.max(this.toX(tick), left + half - 4), left + width - half + 8);
      if (x - half < free) continue;
      context.fillText(text, x, top + height + 4);
      free = x + half + 8;
    }
  }

  /** @param {CanvasRenderingContext2D} context */
  peakBand(context) {
    const peak = this.snap.meta.headline?.peak_step;
    if (!Number.isInteger(peak) || peak < 0 || !this.snap.n) return;
    const x0 = this.toX(peak);
    const x1 = Math.max(this.toX(peak + 1), x0 + 1);
    context.fillStyle = this.theme.accent;
    context.globalAlpha = x1 - x0 > 3 ? 0.13 : 0.5;
    context.fillRect(x0, this.area.top, x1 - x0, this.area.height);
    context.globalAlpha = 1;
    const middle = (x0 + x1) / 2;
    context.beginPath();
    context.moveTo(middle - 4, this.area.top);
    context.lineTo(middle + 4, this.area.top);
    context.lineTo(middle, this.area.top + 6);
    context.fill();
  }

  /** @param {CanvasRenderingContext2D} context */
  cursor(context) {
    const { top, height } = this.area;
    if (this.state.hoverStep >= 0) {
      const x = Math.round(this.toX(this.state.hoverStep + 0.5)) + 0.5;
      context.strokeStyle = this.theme.muted;
      context.globalAlpha = 0.55;
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + height);
      context.stroke();
      context.globalAlpha = 1;
    }
    if (this.box) {
      const { x0, y0, x1, y1 } = this.box;
      context.strokeStyle = context.fillStyle = this.theme.accent;
      context.globalAlpha = 0.12;
      context.fillRect(x0, y0, x1 - x0, y1 - y0);
      context.globalAlpha = 1;
      context.strokeRect(x0, y0, x1 - x0, y1 - y0);
    }
  }

  /** Outline a data box; tiny ones get a frame large enough to see. @param {CanvasRenderingContext2D} context @param {number[]} edges x0 x1 y0 y1 @param {string} colour @param {number} width @param {number[]} [dash] */
  outline(context, edges, colour, width, dash = []) {
    const [a, b] = [this.toX(edges[0]), this.toX(edges[1])];
    const [c, d] = [this.toY(edges[2]), this.toY(edges[3])].sort((p, q) => p - q);
    const growX = Math.max(0, (7 - (b - a)) / 2);
    const growY = Math.max(0, (7 - (d - c)) / 2);
    const box = /** @type {[number, number, number, number]} */ (
      [a - growX, c - growY, b - a + 2 * growX, d - c + 2 * growY]);
    context.setLineDash(dash);
    context.strokeStyle = this.theme.ground;
    context.lineWidth = width + 2;
    context.strokeRect(...box);
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(...box);
    context.setLineDash([]);
    context.lineWidth = 1;
  }

  writeTwin() {
    this.twin.textContent = this.snap ? this.describe() : "";
  }

  close() {
    clearTimeout(this.sharpen);
    this.resizing.disconnect();
    this.stop();
  }
}
