// Owns what the canvas views share: layers, axes, the ranges shown, gestures, and the text twin.

import { el } from "./dom.js";
import { formatCount, roundTicks } from "./format.js";
import { THEMES, toPixel } from "./palette.js";
import { PixelRenderer } from "./raster.js";
import { isOpen } from "./store.js";
import { attachViewport, clampRange, zoomRange } from "./viewport.js";

/** @typedef {{x: number, y: number}} Point  CSS pixels in the view */
/** @typedef {{x0: number, y0: number, x1: number, y1: number}} Box */

const FACE = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';
/** Type in canvases while presenting, against the usual 11 px. */
const LARGER = 1.45;
/** Below this width a view's header takes two lines. */
const SLIM = 720;
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
    this.mid = el("canvas", { class: "rlx-mid", "aria-hidden": "true" });
    this.twin = el("pre", { class: "rlx-twin", "data-twin": options.name, "aria-label": `${options.title} as text` });
    this.body = el("div", { class: "rlx-plot" }, this.base, this.mid, this.over, this.twin);
    /** Controls of this view, in its header. */
    this.tools = el("span", { class: "rlx-view-tools" });
    this.legend = el("div", { class: "rlx-legend" });
    this.note = el("span", { class: "rlx-note" });
    this.grow = el("button", {
      class: "rlx-icon", type: "button", title: `Fill the space with ${options.title}`,
      "aria-label": `Maximise ${options.title}`, "aria-pressed": "false",
      onclick: () => store.set({ maximised: store.state.maximised === this.name ? "" : this.name }),
    }, "⤢");
    this.heading = el("h2", { title: "Double click to fill the space (m)", ondblclick: () => this.grow.click() }, options.title);
    this.element = el("section", { class: `rlx-view rlx-view-${options.name}`, "aria-label": options.title, "data-view": options.name },
      el("header", {}, this.heading, this.note, this.legend, this.tools, this.grow), this.body);
    this.renderer = new PixelRenderer(this.base);
    this.context = /** @type {CanvasRenderingContext2D} */ (this.over.getContext("2d"));
    this.still = /** @type {CanvasRenderingContext2D} */ (this.mid.getContext("2d"));
    this.scale = 0;
    this.axis = false;
    /** Nothing else reads what this view builds. */
    this.lazy = false;
    this.stale = false;
    this.drawn = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.sharpen = undefined;
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
  /** Key of the state's x range. @returns {"x" | "graphX"} */
  get xKey() { return "x"; }
  /** Smallest x span that zooming reaches. */
  get xLeast() { return 2; }
  /** Key of the state's y range, "" when the y axis does not zoom. @returns {"rows" | "offsets" | "graphY" | ""} */
  get yKey() { return ""; }
  /** y grows upwards. */
  get upward() { return true; }
  /** Smallest y span that zooming reaches. */
  get yLeast() { return 1; }
  /** @returns {[number, number]} */
  fullY() { return [0, 1]; }
  /** Room around the plot. @param {number} width @param {number} height @returns {{left: number, top: number, right: number, bottom: number}} */
  margins(width, height) {
    const left = Math.round((width < 620 ? 76 : 124) * (this.state.present ? 1.25 : 1));
    return { left: Math.min(left, width * 0.4), top: 4, right: 10, bottom: height && this.axis ? AXIS * this.type : 4 };
  }
  build() {}
  paint() {}
  /** What stays while the pointer moves. @param {CanvasRenderingContext2D} _context */
  inscribe(_context) {}
  /** What follows the pointer and the selection. @param {CanvasRenderingContext2D} _context */
  decorate(_context) {}
  /** Row under a point, -1 for none. @param {Point} _at @returns {number} */
  hit(_at) { return -1; }
  /** @returns {string} */
  describe() { return ""; }
  /** A tooltip of the view's own, null for the tensor's. @param {import("./store.js").State} _state @returns {{key: string, parts: any[]} | null} */
  tip(_state) { return null; }

  get state() { return this.store.state; }
  get snap() { return /** @type {import("./data.js").Snapshot} */ (this.store.state.snap); }
  get theme() { return THEMES[this.state.theme]; }
  /** How much larger type is than usual. */
  get type() { return this.state.present ? LARGER : 1; }
  /** @returns {[number, number]} */
  get fullX() { return [0, this.snap?.steps ?? 1]; }
  /** @returns {[number, number]} */
  get x() { return this.state[this.xKey] ?? this.fullX; }
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
    if (factorX !== 1) patch[this.xKey] = zoomRange(this.x, this.fullX, factorX, this.fromX(at.x), this.xLeast);
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
    if (dx) patch[this.xKey] = clampRange([this.x[0] + x, this.x[1] + x], this.fullX);
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
      patch[this.xKey] = clampRange([xs[0], Math.max(xs[1], xs[0] + this.xLeast)], this.fullX);
    }
    if (this.yKey && Math.abs(box.y1 - box.y0) > 4) {
      patch[this.yKey] = clampRange([ys[0], Math.max(ys[1], ys[0] + this.yLeast)], this.fullY());
    }
    this.move(patch);
  }

  reset() {
    /** @type {any} */
    const patch = { [this.xKey]: null };
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
    this.store.set({ hover: inside ? this.hit(at) : -1, hoverStep: step, hoverSource: -1, hoverGroup: -1, hoverOther: -1, pointer: at ? this.name : "", at });
  }

  /** @param {Point} at */
  inArea(at) {
    const { left, top, width, height } = this.area;
    return this.snap && at.x >= left && at.x < left + width && at.y >= top && at.y < top + height;
  }

  /** @param {Point} at */
  click(at) {
    if (this.inArea(at)) this.store.set({ selected: this.hit(at), source: -1 });
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
    if (rebuild && !this.asleep) {
      this.build();
      this.keepZoom();
    } else if (rebuild) this.stale = true;
    if (changed.has("maximised")) this.grow.setAttribute("aria-pressed", String(this.state.maximised === this.name));
    const repaint = rebuild || changed.has(this.xKey) || changed.has("present") || (this.yKey !== "" && changed.has(this.yKey)) || changed.has("theme");
    if (repaint || this.frontKeys.some((key) => changed.has(key))) this.draw(repaint);
  }

  /** State keys that change what lies over the rectangles. @returns {string[]} */
  get frontKeys() { return ["hover", "hoverStep", "selected", "maximised"]; }

  /** A closed view that nothing else reads builds only once it is opened. */
  get asleep() { return this.lazy && !isOpen(this.state, this.name); }

  /** Build now what a closed view put off; false when there was nothing. */
  wake() {
    if (!this.stale || this.asleep || !this.snap) return false;
    this.stale = false;
    this.build();
    this.keepZoom();
    return true;
  }

  /** A new plan may be shorter or lower than the zoomed range. */
  keepZoom() {
    const x = this.state[this.xKey];
    const y = this.yKey ? this.state[this.yKey] : null;
    if (x) this.store.set({ [this.xKey]: clampRange(x, this.fullX) });
    if (y) this.store.set({ [this.yKey]: clampRange(y, this.fullY()) });
  }

  /** @param {boolean} again  the rectangles too, not only what lies over them */
  draw(again) {
    const width = this.body.clientWidth;
    const height = this.body.clientHeight;
    if (!this.snap || width < 40 || height < 20) return;
    const started = performance.now();
    const repaint = this.wake() || again;
    this.element.classList.toggle("rlx-slim", width < SLIM * this.type);
    const { left, top, right, bottom } = this.margins(width, height);
    const area = { left, top, width: width - left - right, height: height - top - bottom };
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
    if (repaint || moved) {
      this.layer(this.mid, this.still, width, height, () => {
        this.frameAndSteps(this.still);
        this.clipped(this.still, () => {
          this.peakBand(this.still);
          this.inscribe(this.still);
        });
      });
    }
    const context = this.context;
    this.layer(this.over, context, width, height, () => this.front(context));
    if (repaint || moved) this.drawn = performance.now() - started;
  }

  /** A canvas layer cleared, at the screen's sharpness, with the view's type. @param {HTMLCanvasElement} canvas @param {CanvasRenderingContext2D} context @param {number} width @param {number} height @param {() => void} draw */
  layer(canvas, context, width, height, draw) {
    const sharp = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * sharp) || canvas.height !== Math.round(height * sharp)) {
      canvas.width = Math.round(width * sharp);
      canvas.height = Math.round(height * sharp);
    }
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = this.font();
    draw();
  }

  /** @param {number} [size] @param {string} [weight] */
  font(size = 11, weight = "") {
    return `${weight} ${Math.round(size * this.type * 2) / 2}px ${FACE}`.trim();
  }

  /** @param {CanvasRenderingContext2D} context @param {() => void} draw */
  clipped(context, draw) {
    context.save();
    context.beginPath();
    context.rect(this.area.left, this.area.top, this.area.width, this.area.height);
    context.clip();
    draw();
    context.restore();
  }

  /** @param {CanvasRenderingContext2D} context */
  front(context) {
    this.clipped(context, () => {
      this.decorate(context);
      this.cursor(context);
    });
    this.labels(context);
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
    this.wake();
    this.twin.textContent = this.snap && !this.asleep ? this.describe() : "";
  }

  close() {
    clearTimeout(this.sharpen);
    this.resizing.disconnect();
    this.stop();
  }
}
