// Owns the live-range view: one row per buffer, views under their root, what rules added hatched.

import { bareName, fitTail } from "./dom.js";
import { FLAG_STATIC, FLAG_UNKNOWN } from "./data.js";
import { countOf, formatBytes, formatCount, roundTicks } from "./format.js";
import { inkOn } from "./palette.js";
import { Plot, TWIN_ROWS } from "./plot.js";
import { makeRects, pushRect } from "./raster.js";
import { clampRange } from "./viewport.js";
import { modulesOf } from "./modules.js";
import { FADED, FADED_LIGHT, LIGHT, schemeOf } from "./scheme.js";

/** Rows at least this high are named: each where the text fits, else every other one. */
const LABEL_ROW = 8;
const LABEL_HEIGHT = 13;
/** A few buffers stay bars instead of growing into blocks. */
const TALLEST_ROW = 28;

/** Also of infinities, whose difference is no number. @param {number} a @param {number} b */
function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

export class GanttView extends Plot {
  /** @param {import("./store.js").Store} store @param {() => boolean} wheelAllowed */
  constructor(store, wheelAllowed) {
    super(store, {
      name: "gantt", title: "Live ranges", wheelAllowed,
      label: "Live ranges: one row per buffer over the steps. Arrow keys pan, plus and minus zoom, j and k select.",
    });
    this.rects = makeRects(0);
    this.order = new Uint32Array(0);
    this.rowOf = new Int32Array(0);
    this.left = { views: 0, statics: 0, none: 0 };
  }

  get inputs() { return ["snap", "sort", "views", "statics", "colour", "theme", "match", "hidden"]; }
  get yKey() { return /** @type {const} */ ("rows"); }
  get upward() { return false; }
  get yLeast() { return 3; }
  /** @returns {[number, number]} */
  fullY() { return [0, Math.max(this.order.length, this.area.height / TALLEST_ROW, 1)]; }

  /**
   * Until rows are zoomed by hand, rows sorted by birth follow the steps: those born in view.
   * @returns {[number, number]}
   */
  get y() {
    const { rows, x, sort } = this.state;
    if (rows || !x || sort !== "birth" || this.order.length < 4) return rows ?? this.fullY();
    const low = this.firstBorn(x[0]);
    const high = Math.max(this.firstBorn(x[1]), low + 1);
    const pad = Math.max(0.5, (this.yLeast - (high - low)) / 2);
    return clampRange([low - pad, high + pad], this.fullY()) ?? this.fullY();
  }

  /** First row whose root is born at or after `step`. @param {number} step */
  firstBorn(step) {
    const { birth, root } = this.snap.t;
    let low = 0;
    let high = this.order.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (birth[root[this.order[middle]]] < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Rows live in the steps in view that lie above the first or below the last row shown. */
  outside() {
    const { birth, death } = this.snap.t;
    const [x0, x1] = this.x;
    const [y0, y1] = this.y;
    let above = 0;
    let below = 0;
    if (!this.state.x && !this.state.rows) return { above, below };
    for (let y = 0; y < this.order.length; y++) {
      if (y + 1 > y0 && y < y1) continue;
      const row = this.order[y];
      if (birth[row] >= x1 || death[row] + 1 <= x0) continue;
      if (y < y0) above += 1;
      else below += 1;
    }
    return { above, below };
  }

  build() {
    const { snap, state } = this;
    const { birth, last_read, death, root } = snap.t;
    this.order = this.arrange();
    this.rowOf = new Int32Array(snap.n).fill(-1);
    const scheme = schemeOf(state, this.theme);
    const rects = makeRects(this.order.length * 2);
    // Rows can be thinner than a pixel: what the search keeps is drawn over what it fades.
    /** @type {number[]} */
    const faded = [];
    /** @type {number[]} */
    const kept = [];
    for (let y = 0; y < this.order.length; y++) {
      this.rowOf[this.order[y]] = y;
      (scheme.dim(this.order[y]) ? faded : kept).push(y);
    }
    for (const y of faded.concat(kept)) {
      const row = this.order[y];
      const inset = root[row] === row ? 0.06 : 0.3;
      const index = scheme.of(row);
      const paint = 1 + index;
      const dim = scheme.dim(row);
      const read = Math.min(Math.max(last_read[row], birth[row]), death[row]);
      pushRect(rects, birth[row], read + 1, y + inset, y + 1 - inset, paint + (dim ? FADED : 0), scheme.overlay(index, dim), row, scheme.patterns[index]);
      if (death[row] > read) {
        const light = paint + (dim ? FADED_LIGHT : LIGHT);
        pushRect(rects, read + 1, death[row] + 1, y + inset, y + 1 - inset, light, paint + (dim ? FADED : 0), row);
      }
    }
    this.rects = rects;
    const { views, statics, none } = this.left;
    const parts = [countOf(this.order.length, "row")];
    if (views) parts.push(`${countOf(views, "view")} folded`);
    if (statics) parts.push(`${countOf(statics, "weight")} folded`);
    if (none) parts.push(`${formatCount(none)} without storage`);
    this.note.textContent = parts.join(" · ");
  }

  /** Rows in drawing order; counts what is left out, so that the note can say so. */
  arrange() {
    const { snap, state } = this;
    const { birth, death, size, offset, root, space, flags } = snap.t;
    const roots = [];
    this.left = { views: 0, statics: 0, none: 0 };
    const unknown = 4;
    for (let row = 0; row < snap.n; row++) {
      if (root[row] !== row) {
        if (!state.views) this.left.views += 1;
      } else if (space[row] === snap.weightsSpace || flags[row] & FLAG_STATIC) {
        if (state.statics) roots.push(row);
        else this.left.statics += 1;
      } else if (space[row] === snap.arenaSpace || flags[row] & unknown) roots.push(row);
      else this.left.none += 1;
    }
    const module = state.sort === "module" ? modulesOf(snap).of : new Int32Array(0);
    const key = {
      birth: (/** @type {number} */ row) => birth[row],
      size: (/** @type {number} */ row) => -size[row],
      lifetime: (/** @type {number} */ row) => birth[row] - death[row],
      offset: (/** @type {number} */ row) => offset[row],
      module: (/** @type {number} */ row) => (module[row] < 0 ? Infinity : module[row]),
    }[state.sort] ?? ((row) => birth[row]);
    roots.sort((a, b) => compare(key(a), key(b)) || a - b);
    if (!state.views) return Uint32Array.from(roots);
    const order = [];
    for (const row of roots) {
      order.push(row);
      for (const view of snap.viewRows.of(row)) order.push(view);
    }
    this.left.views = 0;
    return Uint32Array.from(order);
  }

  paint() {
    const { kx, ox, ky, oy } = this.transform();
    this.renderer.rects(this.rects, kx, ox, ky, oy, schemeOf(this.state, this.theme).table);
  }

  yTicks() {
    return this.rowHeight >= LABEL_ROW ? [] : roundTicks(this.y[0], this.y[1], this.area.height / 32, false);
  }

  get rowHeight() { return this.area.height / (this.y[1] - this.y[0]); }

  /** @param {CanvasRenderingContext2D} context */
  inscribe(context) {
    if (this.rowHeight >= 14 * this.type) this.barTexts(context);
    const { above, below } = this.outside();
    this.outsideText(context, above ? `▲ ${formatCount(above)} more live above` : "", this.area.top + 18);
    this.outsideText(context, below ? `▼ ${formatCount(below)} more live below` : "", this.area.top + this.area.height - 8);
  }

  /** @param {CanvasRenderingContext2D} context */
  decorate(context) {
    const { snap, state } = this;
    const { birth, death } = snap.t;
    /** @param {number} row @param {string} colour @param {number} width @param {number[]} [dash] */
    const frame = (row, colour, width, dash) => {
      const y = this.rowOf[row] ?? -1;
      if (y >= 0) this.outline(context, [birth[row], death[row] + 1, y, y + 1], colour, width, dash);
    };
    if (state.selected >= 0) {
      for (const row of snap.producers(state.selected).slice(0, 40)) frame(row, this.theme.muted, 1, [3, 2]);
      frame(snap.t.root[state.selected], this.theme.accent, 1);
      frame(state.selected, this.theme.accent, 2);
    }
    if (state.hover >= 0 && state.hover !== state.selected) frame(state.hover, this.theme.ink, 1.5);
  }

  /** @param {CanvasRenderingContext2D} context @param {string} text @param {number} y */
  outsideText(context, text, y) {
    if (!text) return;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const right = this.area.left + this.area.width - 8;
    const width = context.measureText(text).width;
    context.fillStyle = this.theme.ground;
    context.globalAlpha = 0.88;
    context.fillRect(right - width - 5, y - 8, width + 10, 16);
    context.globalAlpha = 1;
    context.fillStyle = this.theme.muted;
    context.fillText(text, right, y);
  }

  /** Sizes inside the bars that have room. @param {CanvasRenderingContext2D} context */
  barTexts(context) {
    const { snap } = this;
    const { birth, death, size } = snap.t;
    const scheme = schemeOf(this.state, this.theme);
    context.textBaseline = "middle";
    context.textAlign = "left";
    const last = Math.min(this.order.length, Math.ceil(this.y[1]));
    for (let y = Math.max(0, Math.floor(this.y[0])); y < last; y++) {
      const row = this.order[y];
      const x0 = Math.max(this.toX(birth[row]), this.area.left);
      const x1 = Math.min(this.toX(Math.min(snap.t.last_read[row], death[row]) + 1), this.area.left + this.area.width);
      if (x1 - x0 < 44 || scheme.dim(row)) continue;
      if (snap.t.root[row] !== row && this.rowHeight < 30) continue;
      const bytes = snap.t.flags[row] & FLAG_UNKNOWN ? "size unknown" : size[row] > 0 ? formatBytes(size[row]) : "";
      const text = bytes ? `${snap.text("op", row)}  ${bytes}` : snap.text("op", row);
      context.fillStyle = inkOn(scheme.colours[scheme.of(row)]);
      const shown = context.measureText(text).width < x1 - x0 - 8 ? text : bytes;
      if (context.measureText(shown).width < x1 - x0 - 8) context.fillText(shown, x0 + 4, this.toY(y + 0.5) + 0.5);
    }
  }

  /** @param {CanvasRenderingContext2D} context */
  labels(context) {
    const { left, top, height } = this.area;
    context.textAlign = "right";
    context.textBaseline = "middle";
    if (this.rowHeight < LABEL_ROW) {
      context.fillStyle = this.theme.muted;
      let free = -9;
      for (const tick of this.yTicks()) {
        const y = Math.min(Math.max(this.toY(tick), top + 6), top + height - 4);
        if (y - free < 13) continue;
        free = y;
        context.fillText(tick === 0 ? "row 0" : formatCount(tick), left - 8, y);
      }
      return;
    }
    const every = Math.max(1, Math.ceil(LABEL_HEIGHT / this.rowHeight - 0.01));
    const last = Math.min(this.order.length, Math.ceil(this.y[1]));
    // The marked rows are named first, and what lies too close to them is not.
    const marks = [...new Set([this.rowOf[this.state.selected] ?? -1, this.rowOf[this.state.hover] ?? -1])].filter((y) => y >= 0);
    if (marks.length === 2 && Math.abs(marks[0] - marks[1]) < every) marks.pop();
    for (let y = Math.max(0, Math.floor(this.y[0])); y < last; y++) {
      const py = this.toY(y + 0.5);
      if (py < top + 4 || py > top + height - 3) continue;
      const row = this.order[y];
      const marked = marks.includes(y);
      if (!marked && (y % every || marks.some((mark) => Math.abs(mark - y) < every))) continue;
      const nested = this.snap.t.root[row] !== row;
      context.fillStyle = marked ? this.theme.ink : this.theme.muted;
      const text = this.snap.text("name", row);
      const room = left - 14 - (nested ? 10 : 0);
      const shown = fitTail(context, context.measureText(text).width <= room ? text : bareName(text), room);
      context.fillText((nested ? "↳ " : "") + shown, left - 8, py);
    }
  }

  /** @param {import("./plot.js").Point} at */
  hit(at) {
    const { birth, death } = this.snap.t;
    const x = this.fromX(at.x);
    const slack = 2 / (this.area.width / (this.x[1] - this.x[0]));
    const middle = this.fromY(at.y);
    // Rows thinner than a pixel share it: look through those under the pointer, nearest first.
    const reach = Math.max(0.5, 1.5 / this.rowHeight);
    const from = Math.max(0, Math.floor(middle - (reach > 0.5 ? reach : 0)));
    const to = Math.min(this.order.length - 1, Math.floor(middle + (reach > 0.5 ? reach : 0)));
    let best = -1;
    let distance = Infinity;
    for (let y = from; y <= to; y++) {
      const row = this.order[y];
      const away = Math.abs(y + 0.5 - middle);
      if (x >= birth[row] - slack && x <= death[row] + 1 + slack && away < distance) {
        best = row;
        distance = away;
      }
    }
    return best;
  }

  describe() {
    const { snap } = this;
    const { birth, last_read, death, size, root } = snap.t;
    const lines = [`live ranges: ${this.note.textContent}, sorted by ${this.state.sort}`, "name  op  birth..death  bytes"];
    for (const row of this.order.subarray(0, TWIN_ROWS)) {
      const read = Math.max(last_read[row], birth[row]);
      lines.push(
        `${root[row] === row ? "" : "  view "}${snap.text("name", row)}  ${snap.text("op", row)}  ` +
          `${birth[row]}..${death[row]}${death[row] > read ? ` (last read ${read}, extended)` : ""}  ${snap.t.flags[row] & FLAG_UNKNOWN ? "size unknown" : size[row]}`,
      );
    }
    if (this.order.length > TWIN_ROWS) lines.push(`… ${formatCount(this.order.length - TWIN_ROWS)} more`);
    return lines.join("\n");
  }
}
