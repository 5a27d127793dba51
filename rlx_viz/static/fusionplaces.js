// Owns where the fusion graph's boxes stand: panels, columns, folded modules, and the lines between boxes.
// What they stand for is in graphs.js, how they look in fusionink.js; positions come from Python.

import { el } from "./dom.js";
import { decisionsOf, fusionOf } from "./graphs.js";
import { Plot } from "./plot.js";
import { makeRects, pushRect } from "./raster.js";
import { FADED, schemeOf } from "./scheme.js";

/** Above this many ops modules are folded until asked otherwise. */
const FOLD_ABOVE = 600;
const NODE_WIDE = 128;
const NODE_TALL = 44;
const GROUP_WIDE = 210;
export const GAP = 0.8;
const MOST_COLUMNS = 16;
/** Paint of a module's box. */
export const GROUP_PAINT = 200;
export const GROUP_FADED = 201;

/** @typedef {{graph: import("./graphs.js").Drawn, left: number, low: number, stretch: number, width: number, title: string, nodes: number[], place: Int32Array}} Panel */

export class FusionPlaces extends Plot {
  /** @param {import("./store.js").Store} store @param {{name: string, title: string, label: string, wheelAllowed: () => boolean}} options */
  constructor(store, options) {
    super(store, options);
    this.lazy = true;
    /** @type {Panel[]} */
    this.panels = [];
    this.rects = makeRects(0);
    /** Panel and node of each rectangle. */
    this.panelOf = new Uint8Array(0);
    this.nodeOf = new Uint32Array(0);
    /** Which of the columns each rectangle stands in. */
    this.columnOf = new Uint8Array(0);
    /** @type {{a: Uint32Array, b: Uint32Array, bytes: Float64Array, inner: Uint8Array}} */
    this.lines = { a: new Uint32Array(0), b: new Uint32Array(0), bytes: new Float64Array(0), inner: new Uint8Array(0) };
    /** @type {Set<number>} */
    this.refusedAt = new Set();
    /** Modules with something that the search keeps. @type {Uint8Array | undefined} */
    this.groupMatch = undefined;
    this.width = 1;
    /** Layers of the graph, and of each of the columns it is set in. */
    this.depth = 1;
    this.layers = 1;
    this.breaks = 1;
    this.wrapped = "";
    this.empty = el("p", { class: "rlx-blank", hidden: true }, "");
    this.body.append(this.empty);
  }

  get inputs() { return ["snap", "graph", "collapse", "module", "colour", "theme", "match", "hidden"]; }
  get frontKeys() { return [...super.frontKeys, "hoverSource", "hoverGroup", "source"]; }
  /** @returns {"graphX"} */
  get xKey() { return "graphX"; }
  get yKey() { return /** @type {const} */ ("graphY"); }
  get upward() { return false; }
  get xLeast() { return Math.min(this.area.width / (NODE_WIDE * 1.6), this.fullX[1] - this.fullX[0]); }
  get yLeast() { return Math.min(this.area.height / (NODE_TALL * 2), this.fullY()[1] - this.fullY()[0]); }
  /** @returns {[number, number]} */
  get fullX() {
    // Far out, nodes stay a few times as wide as they are high.
    const tall = this.area.height / this.fullY()[1];
    const node = Math.min(this.folded ? GROUP_WIDE : NODE_WIDE * 1.15, Math.max(tall * (this.folded ? 7 : 5), 9)) * this.type;
    const wide = Math.max(this.width, this.area.width / node);
    return [(this.width - wide) / 2, (this.width + wide) / 2];
  }
  /** @returns {[number, number]} */
  fullY() {
    const tall = Math.max(this.layers, this.area.height / (NODE_TALL * this.type));
    return [0, tall];
  }
  /** @param {number} _width @param {number} _height */
  margins(_width, _height) { return { left: 6, top: this.panels.length > 1 ? 20 * this.type : 4, right: 6, bottom: 4 }; }

  get data() { return fusionOf(this.snap); }
  /** Modules are shown as nodes. */
  get folded() {
    if (!this.snap || !this.data.groups || this.state.module >= 0) return false;
    return this.state.collapse === "on" || (this.state.collapse === "auto" && (this.data.source?.n ?? 0) > FOLD_ABOVE);
  }

  build() {
    const { data, state } = this;
    this.groupMatch = undefined;
    const { source, fused, groups } = data;
    const one = fused ?? source;
    this.empty.hidden = Boolean(one);
    this.empty.textContent = this.snap.meta.sampled
      ? "This page shows a sample of a large plan, without its graph. rlx-viz report writes a page with everything."
      : "This document has no graph before fusion. Make it again with this version to see one.";
    const folded = this.folded;
    this.panels = [];
    if (folded && groups) this.panels = [this.panel(groups, "")];
    else if (data.same || !source || !fused) {
      if (one) this.panels = [this.panel(one, "")];
    } else {
      if (state.graph !== "fused") this.panels.push(this.panel(source, "model"));
      if (state.graph !== "overlay") this.panels.push(this.panel(fused, "fused"));
    }
    this.depth = Math.max(1, ...this.panels.map((panel) => this.span(panel).layers));
    this.wrap(folded);
    this.refusedAt = new Set();
    const decisions = decisionsOf(this.snap);
    for (const at of decisions.list("fusion", false)) this.refusedAt.add(decisions.read(at).anchor);
    this.place();
    this.wire();
    this.heads(folded);
  }

  /**
   * A deep graph is set in columns, like text, as many as make its nodes largest.
   * @param {boolean} folded
   */
  wrap(folded) {
    const across = this.panels.reduce((sum, panel) => sum + panel.width, 0) + (this.panels.length - 1) * GAP;
    const wide = folded ? GROUP_WIDE : NODE_WIDE;
    let best = 0;
    this.breaks = 1;
    for (let columns = 1; columns <= MOST_COLUMNS && columns <= this.depth; columns++) {
      const tall = this.area.height / Math.ceil(this.depth / columns + 1);
      const room = this.area.width / (columns * (across + GAP * this.panels.length));
      const score = Math.min(tall, NODE_TALL, Math.min(room, wide) / (folded ? 4.5 : 3.2));
      if (score > best * 1.08) {
        best = score;
        this.breaks = columns;
      }
    }
    this.layers = Math.max(1, Math.ceil(this.depth / this.breaks));
    let left = 0;
    for (const panel of this.panels) {
      panel.left = left - panel.low;
      left += this.breaks * (panel.width + GAP) + GAP;
    }
    this.width = Math.max(1, left - 2 * GAP);
    this.wrapped = this.shape();
  }

  /** What the number of columns depends on, coarsely. */
  shape() {
    return `${Math.round(Math.log2(this.area.width / this.area.height) * 3)} ${Math.round(Math.log2(this.area.height) * 4)}`;
  }

  /** @param {import("./graphs.js").Drawn} graph @param {string} title @returns {Panel} */
  panel(graph, title) {
    const { module } = this.state;
    const inside = new Set();
    if (module >= 0 && graph.kind === "fused" && !this.data.same) {
      this.data.group.forEach((group, node) => { if (group === module) inside.add(this.data.source?.row[node]); });
    }
    const nodes = [];
    let low = Infinity;
    let high = -Infinity;
    for (let node = 0; node < graph.n; node++) {
      if (!graph.shown[node]) continue;
      if (module >= 0 && graph.kind !== "groups" && !(graph.kind === "fused" && !this.data.same ? inside.has(node) : this.data.group[node] === module)) continue;
      nodes.push(node);
      low = Math.min(low, graph.x[node]);
      high = Math.max(high, graph.x[node]);
    }
    return { graph, left: 0, low: nodes.length ? low : 0, stretch: 1, width: nodes.length ? high - low + 1 : 1, title, nodes, place: new Int32Array(graph.n).fill(-1) };
  }

  /** First layer and number of layers of a panel. @param {Panel} panel */
  span(panel) {
    let low = Infinity;
    let high = -Infinity;
    for (const node of panel.nodes) {
      low = Math.min(low, panel.graph.layer[node]);
      high = Math.max(high, panel.graph.layer[node]);
    }
    return panel.nodes.length ? { low, layers: high - low + 1 } : { low: 0, layers: 1 };
  }

  /** Rectangles of every node; panels are stretched to the same height, so that equal parts lie near each other. */
  place() {
    const { state, snap } = this;
    const scheme = schemeOf(state, this.theme);
    const total = this.panels.reduce((sum, panel) => sum + panel.nodes.length, 0);
    const rects = makeRects(total);
    this.panelOf = new Uint8Array(total);
    this.nodeOf = new Uint32Array(total);
    this.columnOf = new Uint8Array(total);
    const matched = state.match;
    this.panels.forEach((panel, p) => {
      const { graph } = panel;
      const { low, layers } = this.span(panel);
      const stretch = panel.stretch = this.depth / layers;
      const stripe = graph.kind === "groups";
      for (const node of panel.nodes) {
        const row = graph.row[node];
        const deep = (graph.layer[node] - low + 0.5) * stretch;
        const column = Math.min(this.breaks - 1, Math.floor(deep / this.layers));
        const x = panel.left + graph.x[node] + column * (panel.width + GAP);
        const y = deep - column * this.layers;
        const family = graph.family(node);
        const index = state.colour === "family" || row < 0 ? Math.min(family, scheme.names.length - 1) : scheme.of(row);
        const outside = row >= 0 && state.x !== null && (snap.step[row] < state.x[0] || snap.step[row] >= state.x[1]);
        const dim = outside || (row >= 0 ? scheme.dim(row) : matched !== null && !stripe);
        panel.place[node] = rects.n;
        this.panelOf[rects.n] = p;
        this.nodeOf[rects.n] = node;
        this.columnOf[rects.n] = column;
        if (stripe) pushRect(rects, x + 0.05, x + 0.95, y - 0.42, y + 0.42, this.groupDim(node) ? GROUP_FADED : GROUP_PAINT, 0, rects.n);
        else pushRect(rects, x + 0.06, x + 0.94, y - 0.3, y + 0.3, 1 + index + (dim ? FADED : 0), scheme.overlay(index, dim), rects.n, scheme.patterns[index]);
      }
    });
    this.rects = rects;
  }

  /** Nothing in a module is kept by the search. @param {number} group */
  groupDim(group) {
    const { match } = this.state;
    if (!match) return false;
    this.groupMatch ??= this.matchedGroups();
    return !this.groupMatch[group];
  }

  matchedGroups() {
    const { match } = this.state;
    const flags = new Uint8Array(this.data.groups?.n ?? 0);
    const rows = this.data.source?.row ?? new Int32Array(0);
    for (let node = 0; node < rows.length; node++) if (match?.[rows[node]] && this.data.group[node] >= 0) flags[this.data.group[node]] = 1;
    return flags;
  }

  wire() {
    /** @type {number[]} */
    const a = [];
    /** @type {number[]} */
    const b = [];
    /** @type {number[]} */
    const bytes = [];
    /** @type {number[]} */
    const inner = [];
    for (const { graph, place } of this.panels) {
      for (let edge = 0; edge < graph.src.length; edge++) {
        const from = place[graph.src[edge]] ?? -1;
        const to = place[graph.dst[edge]] ?? -1;
        if (from < 0 || to < 0) continue;
        a.push(from);
        b.push(to);
        bytes.push(graph.kind === "groups" ? graph.bytes[edge] : graph.bytes[graph.src[edge]]);
        inner.push(graph.kind === "source" && graph.row[graph.src[edge]] >= 0 && graph.row[graph.src[edge]] === graph.row[graph.dst[edge]] ? 1 : 0);
      }
    }
    this.lines = { a: Uint32Array.from(a), b: Uint32Array.from(b), bytes: Float64Array.from(bytes), inner: Uint8Array.from(inner) };
  }

  /** What stands around the picture. @param {boolean} _folded */
  heads(_folded) {}
}
