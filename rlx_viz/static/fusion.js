// Owns the fusion graph: source and fused graph beside or over each other, kernels outlined, modules folded.
// What it draws from is graphs.js; positions come from Python.

import { bareName, el, fitHead, fitTail, lastParts, swatch, wrappingName } from "./dom.js";
import { countOf, formatBytes, formatCount } from "./format.js";
import { decisionsOf, fusionOf, verdictText } from "./graphs.js";
import { inkOn, mixColours, toPixel } from "./palette.js";
import { Plot, TWIN_ROWS } from "./plot.js";
import { makeRects, pushRect } from "./raster.js";
import { FADED, markOf, schemeOf } from "./scheme.js";

export const GRAPHS = { both: "side by side", overlay: "overlaid", fused: "fused only" };
/** Above this many ops modules are folded until asked otherwise. */
const FOLD_ABOVE = 600;
const NODE_WIDE = 128;
const NODE_TALL = 44;
const GROUP_WIDE = 210;
const GAP = 0.8;
const MOST_COLUMNS = 16;
const MOST_LABELS = 700;
const MOST_EDGE_LABELS = 60;
const EDGES_WHILE_MOVING = 6000;
/** Layers past which an edge is drawn faintly. */
const LONG_EDGE = 14;
const LISTED = 300;
/** Paint of a module's box. */
const GROUP_PAINT = 200;
const GROUP_FADED = 201;

/** @typedef {{graph: import("./graphs.js").Drawn, left: number, low: number, stretch: number, width: number, title: string, nodes: number[], place: Int32Array}} Panel */

export class FusionView extends Plot {
  /** @param {import("./store.js").Store} store @param {() => boolean} wheelAllowed */
  constructor(store, wheelAllowed) {
    super(store, {
      name: "fusion", title: "Fusion", wheelAllowed,
      label: "Fusion graph: the model's ops and the kernels they became. Arrow keys pan, plus and minus zoom, Backspace leaves a module.",
    });
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
    this.empty = el("p", { class: "rlx-blank", hidden: true }, "This document has no graph before fusion. Make it again with this version to see one.");
    /** Edges and kernels lie under the nodes. */
    this.under = el("canvas", { class: "rlx-mid", "aria-hidden": "true" });
    this.below = /** @type {CanvasRenderingContext2D} */ (this.under.getContext("2d"));
    this.body.prepend(this.under);
    this.body.append(this.empty);
    /** @type {{x: number, y: number, bytes: number}[]} */
    this.edgeTexts = [];
    this.mode = el("select", { "aria-label": "Graphs", title: "Source and fused graph (g)", onchange: () => store.set({ graph: this.mode.value, graphX: null, graphY: null }) },
      ...Object.entries(GRAPHS).map(([key, label]) => el("option", { value: key }, label)));
    this.fold = el("button", { type: "button", class: "rlx-toggle", title: "Fold ops into the model's modules (o)", "aria-pressed": "false", onclick: () => this.flipFold() }, "Modules");
    this.back = el("button", { type: "button", class: "rlx-toggle", hidden: true, title: "All modules (Backspace)", onclick: () => this.leave() }, "‹ all");
    this.refusals = el("details", { class: "rlx-remark rlx-refusals" }, el("summary", {}, ""), el("ul", {}));
    this.refusals.addEventListener("toggle", () => this.listRefusals());
    this.tools.append(this.back, this.refusals, this.fold, this.mode);
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

  flipFold() {
    this.store.set({ collapse: this.folded ? "off" : "on", module: -1, graphX: null, graphY: null });
  }

  leave() {
    if (this.state.module >= 0) this.store.set({ module: -1, graphX: null, graphY: null, hoverGroup: -1 });
  }

  /** @param {Set<string>} changed */
  update(changed) {
    if (changed.has("snap") && this.snap && this.state.module >= (this.data.groups?.n ?? 0)) this.store.set({ module: -1 });
    // The steps in view dim what lies outside them, once they rest.
    if (!this.asleep && this.snap && this.rects.n && !this.state.moving && (changed.has("x") || changed.has("moving"))) {
      this.build();
      super.update(changed);
      this.draw(true);
      return;
    }
    super.update(changed);
  }

  build() {
    const { data, state } = this;
    this.groupMatch = undefined;
    const { source, fused, groups } = data;
    const one = fused ?? source;
    this.empty.hidden = Boolean(one);
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

  /** @param {boolean} folded */
  heads(folded) {
    const { data, state, snap } = this;
    const counters = snap.meta.counters ?? {};
    const ops = data.source ? data.source.shown.reduce((sum, one) => sum + one, 0) : 0;
    const kernels = data.fused ? data.fused.shown.reduce((sum, one) => sum + one, 0) : 0;
    const parts = [];
    if (state.module >= 0) parts.push(data.groups?.name(state.module) || "module");
    if (data.same) parts.push(countOf(kernels, "op"), "fusion changed nothing");
    else parts.push(`${countOf(ops, "op")} → ${formatCount(kernels)}`);
    if (!folded && (data.source?.ordered || data.fused?.ordered)) parts.push("too large for edges: in the order they run");
    if (folded) parts.push(countOf(data.groups?.n ?? 0, "module"));
    const hidden = (data.source?.n ?? 0) - ops;
    if (hidden > 0 && state.module < 0) parts.push(`${formatCount(hidden)} weights not drawn`);
    this.note.textContent = parts.join(" · ");
    this.note.title = counters.dispatches_source ? `${formatCount(counters.dispatches_source)} dispatches without fusion` : "";
    this.mode.value = state.graph;
    this.mode.hidden = folded || data.same;
    this.fold.hidden = !data.groups;
    this.fold.setAttribute("aria-pressed", String(folded));
    this.back.hidden = state.module < 0;
    const refused = decisionsOf(snap).list("fusion", false).length;
    this.refusals.hidden = !refused;
    this.refusals.firstChild.textContent = `${formatCount(refused)} refused`;
    this.element.dataset.folded = folded ? "1" : "0";
    this.element.dataset.nodes = String(this.rects.n);
    this.listRefusals();
  }

  /** Refused candidates, by reason. */
  listRefusals() {
    if (!this.refusals.open || !this.snap) return;
    const decisions = decisionsOf(this.snap);
    const refused = decisions.list("fusion", false);
    const items = refused.slice(0, LISTED).map((at) => {
      const verdict = decisions.read(at);
      return el("li", {}, el("button", { type: "button", title: verdict.doc, onclick: () => this.choose(verdict.anchor) },
        el("b", {}, verdict.rule), ` ${lastParts(this.data.source?.name(verdict.anchor) ?? "", 2)}`,
        el("div", { class: "rlx-hint" }, [verdict.reason, verdict.facts].filter(Boolean).join(" · "))));
    });
    if (refused.length > LISTED) items.push(el("li", { class: "rlx-hint" }, `… ${formatCount(refused.length - LISTED)} more in the text view`));
    this.refusals.lastChild.replaceChildren(...items);
  }

  /** Select a source node and bring it into view. @param {number} node */
  choose(node) {
    this.refusals.open = false;
    this.store.set({ source: node, selected: this.data.source?.row[node] ?? -1, reveal: this.store.state.reveal + 1 });
    this.reveal(node);
  }

  /** Unfold and pan until a source node is in view. @param {number} node */
  reveal(node) {
    const graph = this.data.source;
    if (!graph || node < 0 || node >= graph.n || this.asleep) return;
    /** @type {any} */
    const patch = {};
    if (this.folded || (this.state.module >= 0 && this.data.group[node] !== this.state.module)) {
      patch.module = this.data.group[node];
      if (patch.module < 0) patch.collapse = "off";
      this.store.set({ ...patch, graphX: null, graphY: null });
      this.store.flush();
    }
    const panel = this.panels.find((one) => one.graph.kind === "source" || this.data.same) ?? this.panels[0];
    const at = panel ? panel.place[panel.graph.kind === "fused" && !this.data.same ? graph.row[node] : node] ?? -1 : -1;
    if (at < 0) return;
    const wide = Math.min(this.xLeast * 2.2, this.fullX[1] - this.fullX[0]);
    const tall = Math.min(this.yLeast * 3, this.fullY()[1] - this.fullY()[0]);
    const x = (this.rects.x0[at] + this.rects.x1[at]) / 2;
    const y = (this.rects.y0[at] + this.rects.y1[at]) / 2;
    this.move({ graphX: inside(x, wide, this.fullX), graphY: inside(y, tall, this.fullY()) });
  }

  paint() {
    // Another shape of the view asks for another number of columns.
    if (this.rects.n && this.wrapped !== this.shape() && !this.state.graphX && !this.state.graphY) {
      this.wrap(this.folded);
      this.place();
    }
    const { kx, ox, ky, oy } = this.transform();
    const { table } = schemeOf(this.state, this.theme);
    table[GROUP_PAINT] = toPixel(mixColours(this.theme.muted, this.theme.ground, 0.16));
    table[GROUP_FADED] = toPixel(mixColours(this.theme.muted, this.theme.ground, 0.05));
    this.layer(this.under, this.below, this.body.clientWidth, this.body.clientHeight, () => this.clipped(this.below, () => {
      this.kernels(this.below);
      this.drawEdges(this.below);
    }));
    this.renderer.rects(this.rects, kx, ox, ky, oy, table);
  }

  stepTicks() { return []; }
  /** @param {CanvasRenderingContext2D} context */
  frameAndSteps(context) {
    if (this.panels.length < 2) return;
    context.fillStyle = this.theme.muted;
    context.textBaseline = "middle";
    context.textAlign = "left";
    let free = 0;
    for (const panel of this.panels) {
      const first = panel.nodes.length ? panel.place[panel.nodes[0]] : -1;
      if (first < 0) continue;
      let low = Infinity;
      for (const node of panel.nodes) low = Math.min(low, this.rects.x0[panel.place[node]]);
      const x = Math.max(this.toX(low), this.area.left, free);
      const text = `${panel.title} · ${countOf(panel.nodes.length, "op")}`;
      if (x > this.area.left + this.area.width - 40) continue;
      context.fillText(fitHead(context, text, this.area.left + this.area.width - x), x, 11 * this.type);
      free = x + context.measureText(text).width + 14;
    }
  }
  /** @param {CanvasRenderingContext2D} _context */
  peakBand(_context) {}

  /** Node boxes in pixels. @param {number} at */
  boxOf(at) {
    const { rects } = this;
    return { left: this.toX(rects.x0[at]), right: this.toX(rects.x1[at]), top: this.toY(rects.y0[at]), bottom: this.toY(rects.y1[at]) };
  }

  /** @param {CanvasRenderingContext2D} context */
  inscribe(context) {
    this.edgeLabels(context);
    if (!this.state.moving || this.rects.n < 3000) this.nodeTexts(context);
    this.refusedMarks(context);
  }

  /** Ops that became one kernel, joined by a band around them. @param {CanvasRenderingContext2D} context */
  kernels(context) {
    const { a, b, inner } = this.lines;
    if (this.data.same || this.panels[0]?.graph.kind !== "source") return;
    const wide = Math.abs(this.toX(0.88) - this.toX(0));
    if (this.toY(1) - this.toY(0) < 3) return;
    context.strokeStyle = this.theme.ink;
    context.lineWidth = 1.25;
    const panel = this.panels[0];
    /** @type {Map<number, number[]>} */
    const clusters = new Map();
    for (const node of panel.nodes) {
      const row = panel.graph.row[node];
      if (row < 0 || this.data.members.of(row).length < 2) continue;
      const at = panel.place[node];
      if (this.rects.y1[at] < this.y[0] || this.rects.y0[at] > this.y[1]) continue;
      const list = clusters.get(row);
      if (list) list.push(at);
      else clusters.set(row, [at]);
    }
    if (clusters.size > 4000) return;
    // First the band's edge, then its fill: what is left is an outline around the whole kernel.
    const room = Math.min(4, Math.max(0.8, (this.toY(0.4) - this.toY(0)) / 2 - 0.8), Math.max(0.8, (this.toX(0.12) - this.toX(0)) / 2 - 0.5));
    for (const [grow, colour] of /** @type {[number, string][]} */ ([[room, this.theme.ink], [room - Math.min(1.2, room / 2), mixColours(this.theme.accent, this.theme.ground, 0.12)]])) {
      context.fillStyle = context.strokeStyle = colour;
      context.lineWidth = Math.min(wide * 0.6, 26) + grow * 2;
      context.beginPath();
      for (let edge = 0; edge < a.length; edge++) {
        if (!inner[edge] || this.columnOf[a[edge]] !== this.columnOf[b[edge]] || this.rects.y0[b[edge]] < this.rects.y1[a[edge]]) continue;
        const from = this.boxOf(a[edge]);
        const to = this.boxOf(b[edge]);
        if (to.top < this.area.top || from.bottom > this.area.top + this.area.height) continue;
        context.moveTo((from.left + from.right) / 2, from.bottom);
        context.lineTo((to.left + to.right) / 2, to.top);
      }
      context.stroke();
      for (const list of clusters.values()) {
        for (const at of list) {
          const { left, right, top, bottom } = this.boxOf(at);
          context.fillRect(left - grow, top - grow, right - left + grow * 2, bottom - top + grow * 2);
        }
      }
    }
    context.lineWidth = 1;
  }

  /** @param {CanvasRenderingContext2D} context */
  drawEdges(context) {
    const { a, b, bytes, inner } = this.lines;
    const { rects } = this;
    this.edgeTexts = [];
    if (this.state.moving && a.length > EDGES_WHILE_MOVING) return;
    const [x0, x1] = this.x;
    const [y0, y1] = this.y;
    context.strokeStyle = this.theme.muted;
    context.lineWidth = this.folded ? 1.2 : 1;
    context.globalAlpha = a.length > 3000 ? 0.45 : 0.75;
    context.beginPath();
    // What leaves its column for another but the next is drawn faintly: it would cover all else.
    const far = new Path2D();
    const columnOf = this.columnOf;
    /** @type {{x: number, y: number, bytes: number}[]} */
    const labels = [];
    for (let edge = 0; edge < a.length; edge++) {
      const from = a[edge];
      const to = b[edge];
      if (rects.y1[from] > y1 ? rects.y0[to] > y1 : rects.y0[to] < y0 && rects.y1[from] < y0) continue;
      if ((rects.x1[from] < x0 && rects.x1[to] < x0) || (rects.x0[from] > x1 && rects.x0[to] > x1)) continue;
      const ax = this.toX((rects.x0[from] + rects.x1[from]) / 2);
      const ay = this.toY(rects.y1[from]);
      const bx = this.toX((rects.x0[to] + rects.x1[to]) / 2);
      const by = this.toY(rects.y0[to]);
      const tall = by - ay;
      const jump = this.breaks > 1 ? columnOf[to] - columnOf[from] : 0;
      if (jump > 1 || (jump === 1 && rects.y0[to] > rects.y1[from]) || rects.y0[to] - rects.y1[from] > LONG_EDGE) {
        far.moveTo(ax, ay);
        far.lineTo(bx, by);
        continue;
      }
      context.moveTo(ax, ay);
      // What skips layers in one column goes around it.
      const turns = rects.y0[to] < rects.y1[from] - 0.01;
      if (turns) {
        this.turn(context, ax, ay, bx, by);
        continue;
      }
      const skips = rects.y0[to] - rects.y1[from] > this.panels[this.panelOf[from]].stretch + 0.2 && Math.abs(rects.x0[from] - rects.x0[to]) < 0.5;
      const bow = skips ? (this.toX(1) - this.toX(0)) * 0.62 : 0;
      if (skips) context.bezierCurveTo(ax + bow, ay + Math.min(tall * 0.2, 40), bx + bow, by - Math.min(tall * 0.2, 40), bx, by);
      else context.lineTo(bx, by);
      if (tall > 14 * this.type && !inner[edge] && labels.length <= MOST_EDGE_LABELS && bytes[edge] > 0) {
        labels.push({ x: skips ? ax + bow * 0.75 : (ax + bx) / 2, y: (ay + by) / 2, bytes: bytes[edge] });
      }
    }
    context.stroke();
    context.globalAlpha = a.length > 600 ? 0.14 : 0.3;
    context.lineWidth = 1;
    context.stroke(far);
    context.globalAlpha = 1;
    this.edgeTexts = labels;
  }

  /** An edge to the next column: a tail here, a head there, and between them a line along the gap. @param {CanvasRenderingContext2D} context @param {number} ax @param {number} ay @param {number} bx @param {number} by */
  turn(context, ax, ay, bx, by) {
    const gap = this.toX(GAP) - this.toX(0);
    const rise = Math.min(8, (this.toY(0.2) - this.toY(0)));
    const side = bx - (this.toX(1) - this.toX(0)) * 0.5 - gap * 0.5;
    context.lineTo(ax, ay + rise);
    context.lineTo(side, ay + rise);
    context.lineTo(side, by - rise);
    context.lineTo(bx, by - rise);
    context.lineTo(bx, by);
  }

  /** Bytes on the edges, once few enough are in sight. @param {CanvasRenderingContext2D} context */
  edgeLabels(context) {
    const { area, edgeTexts: labels } = this;
    if (labels.length > MOST_EDGE_LABELS || this.state.moving) return;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = this.font(10);
    /** @type {number[][]} */
    const drawn = [];
    // Not over nodes either.
    for (let at = 0; at < this.rects.n; at++) {
      const { left, right, top, bottom } = this.boxOf(at);
      if (right > area.left && left < area.left + area.width && bottom > area.top && top < area.top + area.height) drawn.push([left, top, right, bottom]);
    }
    for (const { x, y, bytes: count } of labels) {
      const text = formatBytes(count);
      const half = context.measureText(text).width / 2 + 2;
      const box = [x - half, y - 6, x + half, y + 6];
      if (box[0] < area.left || box[2] > area.left + area.width) continue;
      if (drawn.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      drawn.push(box);
      context.fillStyle = this.theme.ground;
      context.globalAlpha = 0.9;
      context.fillRect(box[0], box[1], half * 2, 12);
      context.globalAlpha = 1;
      context.fillStyle = this.theme.muted;
      context.fillText(text, x, y + 0.5);
    }
    context.font = this.font();
  }

  /** @param {CanvasRenderingContext2D} context */
  nodeTexts(context) {
    const scheme = schemeOf(this.state, this.theme);
    const { rects, area } = this;
    context.textAlign = "center";
    context.textBaseline = "middle";
    let drawn = 0;
    for (let at = 0; at < rects.n && drawn < MOST_LABELS; at++) {
      const { left, right, top, bottom } = this.boxOf(at);
      if (right < area.left || left > area.left + area.width || bottom < area.top || top > area.top + area.height) continue;
      if (right - left < 26 || bottom - top < 9.5 * this.type) continue;
      drawn += 1;
      const { graph } = this.panels[this.panelOf[at]];
      const node = this.nodeOf[at];
      const room = right - left - 8;
      const middle = (left + right) / 2;
      if (graph.kind === "groups") {
        this.groupText(context, node, middle, top, bottom, room);
        continue;
      }
      const paint = rects.paint[at] - 1;
      const dim = paint >= FADED;
      context.fillStyle = dim ? this.theme.muted : inkOn(scheme.colours[paint]);
      if (!dim && scheme.patterns[paint]) this.plate(context, left, right, top, bottom, scheme.colours[paint]);
      const op = graph.op(node).replace(/^onnx\./, "");
      const two = bottom - top >= 26 * this.type;
      context.fillText(fitHead(context, op, room), middle, two ? (top + bottom) / 2 - 6 * this.type : (top + bottom) / 2 + 0.5);
      if (!two) continue;
      context.font = this.font(10);
      context.fillText(fitTail(context, lastParts(graph.name(node), 2), room), middle, (top + bottom) / 2 + 7 * this.type);
      context.font = this.font();
    }
  }

  /** Plain ground under a text on a pattern. @param {CanvasRenderingContext2D} context @param {number} left @param {number} right @param {number} top @param {number} bottom @param {string} colour */
  plate(context, left, right, top, bottom, colour) {
    const ink = context.fillStyle;
    context.fillStyle = colour;
    context.fillRect(left + 3, top + 2, right - left - 6, bottom - top - 4);
    context.fillStyle = ink;
  }

  /** @param {CanvasRenderingContext2D} context @param {number} group @param {number} middle @param {number} top @param {number} bottom @param {number} room */
  groupText(context, group, middle, top, bottom, room) {
    const count = this.snap.table("groups")?.columns.count[group] ?? 0;
    const kernels = this.data.kernels[group];
    context.fillStyle = this.groupDim(group) ? this.theme.muted : this.theme.ink;
    const name = this.data.groups?.name(group) ?? "";
    const counted = this.data.same ? countOf(count, "op") : `${formatCount(count)} → ${formatCount(kernels)}`;
    const two = bottom - top >= 26 * this.type;
    if (two) {
      context.fillText(fitTail(context, name, room), middle, (top + bottom) / 2 - 6 * this.type);
      context.fillStyle = this.theme.muted;
      context.fillText(fitHead(context, counted, room), middle, (top + bottom) / 2 + 8 * this.type);
    } else context.fillText(fitTail(context, name, room), middle, (top + bottom) / 2 + 0.5);
  }

  /** A cross on the ops where a rule was refused. @param {CanvasRenderingContext2D} context */
  refusedMarks(context) {
    const panel = this.panels.find((one) => one.graph.kind === "source" || (this.data.same && one.graph.kind === "fused"));
    if (!panel) return;
    const warn = this.state.theme === "dark" ? "#ffb454" : "#8a4b00";
    context.lineWidth = 1.6;
    for (const node of this.refusedAt) {
      const at = panel.place[node] ?? -1;
      if (at < 0) continue;
      const { right, left, top, bottom } = this.boxOf(at);
      if (right < this.area.left || left > this.area.left + this.area.width || bottom < this.area.top || top > this.area.top + this.area.height) continue;
      if (right - left < 10 || bottom - top < 5) {
        context.fillStyle = warn;
        context.fillRect(right - 1, top - 1, 3, 3);
        continue;
      }
      context.fillStyle = this.theme.ground;
      context.beginPath();
      context.arc(right, top, 5.5, 0, 7);
      context.fill();
      context.strokeStyle = warn;
      context.beginPath();
      context.moveTo(right - 3, top - 3);
      context.lineTo(right + 3, top + 3);
      context.moveTo(right + 3, top - 3);
      context.lineTo(right - 3, top + 3);
      context.stroke();
    }
    context.lineWidth = 1;
  }

  /** Rectangles of a tensor and of the ops in it. @param {number} row */
  rectsOf(row) {
    /** @type {number[]} */
    const found = [];
    if (row < 0) return found;
    for (const { graph, place } of this.panels) {
      if (graph.kind === "groups") {
        for (const node of this.data.membersOf(row)) if (this.data.group[node] >= 0) found.push(place[this.data.group[node]]);
      } else if (graph.kind === "fused" || this.data.same) found.push(place[row] ?? -1);
      else for (const node of this.data.membersOf(row)) found.push(place[node] ?? -1);
    }
    return [...new Set(found)].filter((at) => at >= 0);
  }

  /** @param {CanvasRenderingContext2D} context */
  decorate(context) {
    const { state, rects } = this;
    /** @param {number} at @param {string} colour @param {number} width @param {number[]} [dash] */
    const frame = (at, colour, width, dash) => this.outline(context, [rects.x0[at], rects.x1[at], rects.y0[at], rects.y1[at]], colour, width, dash);
    /** @param {number} row @param {string} colour @param {number} width */
    const mark = (row, colour, width) => {
      const found = this.rectsOf(row);
      if (this.panels.length > 1) this.connect(context, found, colour);
      for (const at of found) frame(at, colour, width);
    };
    if (state.selected >= 0) mark(state.selected, this.theme.accent, 2);
    if (state.source >= 0 && this.panels[0] && this.panels[0].graph.kind === "source") {
      const at = this.panels[0].place[state.source] ?? -1;
      if (at >= 0) frame(at, this.theme.accent, 3);
    }
    if (state.hover >= 0 && state.hover !== state.selected) mark(state.hover, this.theme.ink, 1.5);
    if (state.hoverGroup >= 0 && this.folded) {
      const at = this.panels[0].place[state.hoverGroup] ?? -1;
      if (at >= 0) frame(at, this.theme.ink, 1.5);
    }
  }

  /** Lines from ops to their kernel. @param {CanvasRenderingContext2D} context @param {number[]} found @param {string} colour */
  connect(context, found, colour) {
    const kernel = found.find((at) => this.panelOf[at] === 1);
    if (kernel === undefined) return;
    const to = this.boxOf(kernel);
    context.strokeStyle = colour;
    context.setLineDash([3, 3]);
    context.beginPath();
    for (const at of found) {
      if (at === kernel) continue;
      const from = this.boxOf(at);
      context.moveTo(from.right, (from.top + from.bottom) / 2);
      context.lineTo(to.left, (to.top + to.bottom) / 2);
    }
    context.stroke();
    context.setLineDash([]);
  }

  /** Nearest rectangle within three pixels. @param {import("./plot.js").Point} at */
  find(at) {
    const { rects } = this;
    const x = this.fromX(at.x);
    const y = this.fromY(at.y);
    const slackX = (3 * (this.x[1] - this.x[0])) / this.area.width;
    const slackY = (3 * (this.y[1] - this.y[0])) / this.area.height;
    let best = -1;
    let nearest = Infinity;
    for (let i = 0; i < rects.n; i++) {
      const outX = Math.max(rects.x0[i] - x, x - rects.x1[i], 0);
      if (outX > slackX) continue;
      const outY = Math.max(rects.y0[i] - y, y - rects.y1[i], 0);
      if (outY > slackY) continue;
      const distance = (outX / slackX) ** 2 + (outY / slackY) ** 2;
      if (distance < nearest) {
        nearest = distance;
        best = i;
      }
    }
    return best;
  }

  /** What a rectangle stands for. @param {number} found */
  subject(found) {
    if (found < 0) return { row: -1, source: -1, group: -1 };
    const { graph } = this.panels[this.panelOf[found]];
    const node = this.nodeOf[found];
    if (graph.kind === "groups") return { row: -1, source: -1, group: node };
    return { row: graph.row[node], source: graph.kind === "source" || this.data.same ? node : -1, group: -1 };
  }

  /** @param {import("./plot.js").Point | null} at */
  point(at) {
    this.pointer = at;
    const { row, source, group } = this.subject(at && this.inArea(at) ? this.find(at) : -1);
    this.store.set({ hover: row, hoverSource: source, hoverGroup: group, hoverStep: -1, hoverOther: -1, pointer: at ? this.name : "", at });
  }

  /** @param {import("./plot.js").Point} at */
  click(at) {
    if (!this.inArea(at)) return;
    const { row, source, group } = this.subject(this.find(at));
    if (group >= 0) this.store.set({ module: group, graphX: null, graphY: null, hoverGroup: -1 });
    else this.store.set({ selected: row, source });
  }

  /** @param {import("./store.js").State} state @returns {{key: string, parts: any[]} | null} */
  tip(state) {
    const { snap, data } = this;
    if (state.hoverGroup >= 0 && data.groups) {
      const group = state.hoverGroup;
      const columns = snap.table("groups")?.columns ?? {};
      const list = el("dl", { class: "rlx-pairs" });
      /** @param {string} name @param {string} value */
      const pair = (name, value) => list.append(el("dt", {}, name), el("dd", {}, value));
      pair("ops", formatCount(columns.count?.[group] ?? 0));
      if (!data.same) pair("become", countOf(data.kernels[group], "kernel"));
      let out = 0;
      for (let edge = 0; edge < data.groups.src.length; edge++) if (data.groups.src[edge] === group) out += data.groups.bytes[edge];
      pair("hands on", formatBytes(out));
      return { key: `g${group}`, parts: [el("div", { class: "rlx-name" }, wrappingName(data.groups.name(group))), list, el("div", { class: "rlx-hint" }, "Click to look inside.")] };
    }
    if (state.hoverSource < 0 || !data.source || data.same) return null;
    const node = state.hoverSource;
    const graph = data.source;
    const list = el("dl", { class: "rlx-pairs" });
    /** @param {string} name @param {string} value */
    const pair = (name, value) => list.append(el("dt", {}, name), el("dd", {}, value));
    const columns = snap.table("source")?.columns ?? {};
    pair("op", graph.op(node));
    pair("shape", snap.string(columns.shape?.[node] ?? 0));
    pair("bytes", formatBytes(graph.bytes[node]));
    const row = graph.row[node];
    const others = data.membersOf(row).length;
    pair("became", row < 0 ? "nothing: no output needs it" : others > 1 ? `${snap.text("op", row)}, with ${countOf(others - 1, "other op")}` : snap.text("op", row));
    const decisions = decisionsOf(snap);
    for (const at of decisions.fusion.of(node).slice(0, 5)) pair("fusion", verdictText({ ...decisions.read(at), ...(decisions.read(at).applied ? { facts: "" } : {}) }));
    if (snap.string(columns.source?.[node] ?? 0)) pair("source", snap.string(columns.source[node]));
    const scheme = schemeOf(state, this.theme);
    const index = row < 0 ? -1 : scheme.of(row);
    return { key: `n${node}`, parts: [el("div", { class: "rlx-name" }, index < 0 ? null : swatch(...markOf(scheme, index)), wrappingName(graph.name(node))), list] };
  }

  describe() {
    const { data, snap } = this;
    if (!this.panels.length) return "fusion: this document has no graph before fusion";
    const lines = [`fusion: ${this.note.textContent}, ${this.folded ? "modules folded" : data.same ? "one graph" : GRAPHS[/** @type {keyof typeof GRAPHS} */ (this.state.graph)]}`];
    if (this.folded && data.groups) {
      lines.push("module  ops  kernels");
      const counts = snap.table("groups")?.columns.count ?? [];
      for (let group = 0; group < Math.min(data.groups.n, TWIN_ROWS); group++) {
        lines.push(`${data.groups.name(group)}  ${counts[group]}  ${data.same ? counts[group] : data.kernels[group]}`);
      }
      if (data.groups.n > TWIN_ROWS) lines.push(`… ${formatCount(data.groups.n - TWIN_ROWS)} more`);
    } else {
      const panel = this.panels[0];
      lines.push("op  name  bytes  kernel");
      for (const node of panel.nodes.slice(0, TWIN_ROWS)) {
        const row = panel.graph.row[node];
        lines.push(`${panel.graph.op(node)}  ${bareName(panel.graph.name(node))}  ${panel.graph.bytes[node]}  ${row < 0 ? "none" : snap.text("name", row)}`);
      }
      if (panel.nodes.length > TWIN_ROWS) lines.push(`… ${formatCount(panel.nodes.length - TWIN_ROWS)} more`);
    }
    if (!data.same) {
      const kernels = Array.from({ length: snap.n }, (_, row) => row).filter((row) => data.members.of(row).length > 1);
      lines.push(`kernels of several ops: ${formatCount(kernels.length)}`);
      for (const row of kernels.slice(0, TWIN_ROWS)) {
        lines.push(`kernel ${snap.text("op", row)} ${snap.text("name", row)} = ${Array.from(data.members.of(row), (node) => data.source?.name(node)).join(" + ")}`);
      }
      if (kernels.length > TWIN_ROWS) lines.push(`… ${formatCount(kernels.length - TWIN_ROWS)} more`);
    }
    const decisions = decisionsOf(snap);
    const refused = decisions.list("fusion", false);
    lines.push(`refused: ${formatCount(refused.length)}`);
    for (const at of refused.slice(0, TWIN_ROWS)) {
      const verdict = decisions.read(at);
      lines.push(`refused ${verdict.rule} at ${data.source?.name(verdict.anchor) ?? verdict.anchor}: ${verdict.reason}${verdict.facts ? ` (${verdict.facts})` : ""}`);
    }
    if (refused.length > TWIN_ROWS) lines.push(`… ${formatCount(refused.length - TWIN_ROWS)} more`);
    return lines.join("\n");
  }
}

/** A range of `span` around `middle` inside `full`. @param {number} middle @param {number} span @param {[number, number]} full @returns {[number, number] | null} */
function inside(middle, span, full) {
  if (span >= (full[1] - full[0]) * 0.9999) return null;
  const low = Math.min(Math.max(middle - span / 2, full[0]), full[1] - span);
  return [low, low + span];
}
