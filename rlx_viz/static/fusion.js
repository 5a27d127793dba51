// Owns the fusion view: its controls, its pointer, its refusals, its text twin. Where boxes stand is in fusionplaces.js,
// how they are drawn in fusionink.js.

import { bareName, el, lastParts, swatch, wrappingName } from "./dom.js";
import { countOf, formatBytes, formatCount } from "./format.js";
import { FusionInk } from "./fusionink.js";
import { decisionsOf, verdictText } from "./graphs.js";
import { TWIN_ROWS } from "./plot.js";
import { markOf, schemeOf } from "./scheme.js";

export const GRAPHS = { both: "side by side", overlay: "overlaid", fused: "fused only" };
const LISTED = 300;

export class FusionView extends FusionInk {
  /** @param {import("./store.js").Store} store @param {() => boolean} wheelAllowed */
  constructor(store, wheelAllowed) {
    super(store, {
      name: "fusion", title: "Fusion", wheelAllowed,
      label: "Fusion graph: the model's ops and the kernels they became. Arrow keys pan, plus and minus zoom, Backspace leaves a module.",
    });
    this.mode = el("select", { "aria-label": "Graphs", title: "Source and fused graph (g)", onchange: () => store.set({ graph: this.mode.value, graphX: null, graphY: null }) },
      ...Object.entries(GRAPHS).map(([key, label]) => el("option", { value: key }, label)));
    this.fold = el("button", { type: "button", class: "rlx-toggle", title: "Fold ops into the model's modules (o)", "aria-pressed": "false", onclick: () => this.flipFold() }, "Modules");
    this.back = el("button", { type: "button", class: "rlx-toggle", hidden: true, title: "All modules (Backspace)", onclick: () => this.leave() }, "‹ all");
    this.refusals = el("details", { class: "rlx-remark rlx-refusals" }, el("summary", {}, ""), el("ul", {}));
    this.refusals.addEventListener("toggle", () => this.listRefusals());
    this.tools.append(this.back, this.refusals, this.fold, this.mode);
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

  /** @param {boolean} folded */
  heads(folded) {
    const { data, state, snap } = this;
    const counters = snap.meta.counters ?? {};
    const ops = data.source ? data.source.shown.reduce((sum, one) => sum + one, 0) : 0;
    const kernels = data.fused ? data.fused.shown.reduce((sum, one) => sum + one, 0) : 0;
    /** @type {string[]} */
    const parts = [];
    /** In a module, what is in it. @param {string} kind @param {number} all */
    const here = (kind, all) => (state.module < 0 ? all : this.panels.find((panel) => panel.graph.kind === kind)?.nodes.length ?? 0);
    if (state.module >= 0) parts.push(data.groups?.name(state.module) || "module");
    if (snap.meta.sampled && !snap.table("source") && !snap.meta.source_is_tensors) parts.push("a sample, without the graph before fusion");
    else if (data.same) parts.push(countOf(state.module < 0 ? kernels : this.panels[0]?.nodes.length ?? 0, "op"), "fusion changed nothing");
    else if (state.graph === "fused" && state.module >= 0) parts.push(countOf(here("fused", kernels), "kernel"));
    else parts.push(`${countOf(here("source", ops), "op")} → ${formatCount(here("fused", kernels))}`);
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
