// Owns how the fusion graph is drawn: boxes, kernels around ops, edges with bytes, names, refusals, selections.

import { el, fitHead, fitTail, lastParts } from "./dom.js";
import { countOf, formatBytes, formatCount } from "./format.js";
import { FusionPlaces, GAP, GROUP_FADED, GROUP_PAINT } from "./fusionplaces.js";
import { inkOn, mixColours, toPixel } from "./palette.js";
import { FADED, schemeOf } from "./scheme.js";

const MOST_LABELS = 700;
const MOST_EDGE_LABELS = 60;
const EDGES_WHILE_MOVING = 6000;
/** Layers past which an edge is drawn faintly. */
const LONG_EDGE = 14;

/** Box height, at usual type, below which it gets no name. */
const NAMED_TALL = 12.5;
const LEAST_LETTERS = 7;

export class FusionInk extends FusionPlaces {
  /** @param {import("./store.js").Store} store @param {{name: string, title: string, label: string, wheelAllowed: () => boolean}} options */
  constructor(store, options) {
    super(store, options);
    /** Edges and kernels lie under the nodes. */
    this.under = el("canvas", { class: "rlx-mid", "aria-hidden": "true" });
    this.below = /** @type {CanvasRenderingContext2D} */ (this.under.getContext("2d"));
    this.body.prepend(this.under);
    /** @type {{x: number, y: number, bytes: number}[]} */
    this.edgeTexts = [];
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
      if (right - left < 26 || bottom - top < NAMED_TALL * this.type) continue;
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
      const shown = fitHead(context, op, room);
      if (shown !== op && shown.length < LEAST_LETTERS) continue; // a stump says nothing
      context.fillText(shown, middle, two ? (top + bottom) / 2 - 6 * this.type : (top + bottom) / 2 + 0.5);
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
}
