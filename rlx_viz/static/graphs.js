// Owns the source and the fused graph as drawn: positions, edges, clusters, and the decisions about them.

import { Groups, NONE } from "./data.js";

/**
 * One graph of the fusion view. `row[i]` is the tensor a node became, -1 for none.
 * @typedef {object} Drawn
 * @property {"source" | "fused" | "groups"} kind
 * @property {number} n
 * @property {ArrayLike<number>} layer
 * @property {ArrayLike<number>} x
 * @property {boolean} [ordered]  in the order they run, without edges: the document is too large for positions
 * @property {Int32Array} row
 * @property {Uint8Array} shown  0: a parameter or constant, which has no place
 * @property {ArrayLike<number>} src
 * @property {ArrayLike<number>} dst
 * @property {ArrayLike<number>} bytes
 * @property {(node: number) => string} name
 * @property {(node: number) => string} op
 * @property {(node: number) => number} family
 */

/**
 * @typedef {object} Verdict
 * @property {number} at  row of the decisions table
 * @property {string} stage
 * @property {string} rule
 * @property {string} doc
 * @property {boolean} applied
 * @property {number} anchor
 * @property {string} reason
 * @property {string} facts
 * @property {number} bytes
 * @property {number} dispatches
 */

const BOUNDARY_OPS = /^(Param|Constant)\b/;

export class FusionData {
  /** @param {import("./data.js").Snapshot} snap */
  constructor(snap) {
    this.snap = snap;
    this.same = Boolean(snap.meta.source_is_tensors) || !snap.table("source");
    this.fused = fusedGraph(snap);
    this.source = this.same ? this.fused && { ...this.fused, kind: /** @type {const} */ ("source") } : sourceGraph(snap);
    this.groups = groupGraph(snap);
    this.group = sourceGroups(snap, this.source);
    /** Source nodes of each tensor row. */
    this.members = new Groups(this.source?.row ?? [], snap.n);
    /** Distinct tensors of each group: its kernels. */
    this.kernels = this.countKernels();
  }

  /** Source nodes that a fused row stands for. @param {number} row */
  membersOf(row) {
    return row >= 0 && row < this.snap.n ? this.members.of(row) : new Uint32Array(0);
  }

  countKernels() {
    const count = new Uint32Array(this.groups?.n ?? 0);
    const source = this.source;
    if (!source) return count;
    const seen = new Set();
    for (let node = 0; node < source.n; node++) {
      const group = this.group[node];
      if (group < 0 || group >= count.length || source.row[node] < 0) continue;
      const key = group * (this.snap.n + 1) + source.row[node];
      if (seen.has(key)) continue;
      seen.add(key);
      count[group] += 1;
    }
    return count;
  }
}

/** A place for each drawn node in the order they run, where a large document leaves positions out. @param {number} n @param {Uint8Array} shown */
function inOrder(n, shown) {
  const layer = new Uint32Array(n);
  let next = 0;
  for (let node = 0; node < n; node++) if (shown[node]) layer[node] = next++;
  return { layer, x: new Float32Array(n), ordered: true };
}

/**
 * Positions with what nothing feeds, inputs and caches, next to its first reader: all in the first layer they would
 * make a graph wider than it is deep.
 * @param {number} n @param {ArrayLike<number>} layer @param {ArrayLike<number>} x @param {ArrayLike<number>} src @param {ArrayLike<number>} dst @param {Uint8Array} shown
 */
function sinkInputs(n, layer, x, src, dst, shown) {
  const fed = new Uint8Array(n);
  const reader = new Float64Array(n).fill(Infinity);
  for (let edge = 0; edge < src.length; edge++) {
    if (!shown[src[edge]]) continue;
    fed[dst[edge]] = 1;
    reader[src[edge]] = Math.min(reader[src[edge]], layer[dst[edge]]);
  }
  const layers = Float64Array.from(layer);
  const places = Float64Array.from(x);
  /** Right-most place of each layer that is taken. @type {Map<number, number>} */
  const taken = new Map();
  let moved = 0;
  const moves = (/** @type {number} */ node) => shown[node] && !fed[node] && reader[node] < Infinity && reader[node] - 1 > layer[node];
  for (let node = 0; node < n; node++) if (shown[node] && !moves(node)) taken.set(layer[node], Math.max(taken.get(layer[node]) ?? -Infinity, x[node]));
  for (let node = 0; node < n; node++) {
    if (!moves(node)) continue;
    const to = reader[node] - 1;
    layers[node] = to;
    places[node] = (taken.get(to) ?? x[node] - 1) + 1;
    taken.set(to, places[node]);
    moved += 1;
  }
  if (!moved) return { layer, x };
  // The others stood where the wide first layer drew them: each layer is closed up around the middle.
  const order = Array.from({ length: n }, (_, node) => node).filter((node) => shown[node]).sort((a, b) => layers[a] - layers[b] || places[a] - places[b] || a - b);
  for (let from = 0, to = 0; from < order.length; from = to) {
    while (to < order.length && layers[order[to]] === layers[order[from]]) to += 1;
    for (let at = from; at < to; at++) places[order[at]] = at - from - (to - from - 1) / 2;
  }
  return { layer: layers, x: places };
}

/** @type {WeakMap<object, FusionData>} */
const fusions = new WeakMap();

/** @param {import("./data.js").Snapshot} snap @returns {FusionData} */
export function fusionOf(snap) {
  let data = fusions.get(snap);
  if (!data) fusions.set(snap, (data = new FusionData(snap)));
  return data;
}

/** @param {import("./data.js").Snapshot} snap @returns {Drawn | null} */
function fusedGraph(snap) {
  const layout = snap.table("layout")?.columns;
  if (!layout && !snap.table("source")) return null;
  const boundary = (/** @type {number} */ row) => BOUNDARY_OPS.test(snap.text("op", row));
  const shown = Uint8Array.from({ length: snap.n }, (_, row) => ((!layout || layout.x[row] === -1) && boundary(row) ? 0 : 1));
  const { src, dst } = layout ? snap.edges : { src: [], dst: [] };
  return {
    kind: "fused", n: snap.n, ...(layout ? sinkInputs(snap.n, layout.layer, layout.x, src, dst, shown) : inOrder(snap.n, shown)), shown, src, dst,
    row: Int32Array.from({ length: snap.n }, (_, row) => row),
    bytes: snap.t.size,
    name: (row) => snap.text("name", row),
    op: (row) => snap.text("op", row),
    family: (row) => snap.t.family[row],
  };
}

/** @param {import("./data.js").Snapshot} snap @returns {Drawn | null} */
function sourceGraph(snap) {
  const table = snap.table("source");
  if (!table) return null;
  const { name, op, family, fused, layer, x, bytes } = table.columns;
  const placed = Boolean(layer && x);
  const edges = (placed && snap.table("source_edges")?.columns) || { src: [], dst: [] };
  const row = Int32Array.from(fused, (/** @type {number} */ one) => (one === NONE || one >= snap.n ? -1 : one));
  const shown = Uint8Array.from({ length: table.rows }, (_, node) => ((!placed || x[node] === -1) && BOUNDARY_OPS.test(snap.string(op[node])) ? 0 : 1));
  return {
    kind: "source", n: table.rows, ...(placed ? sinkInputs(table.rows, layer, x, edges.src, edges.dst, shown) : inOrder(table.rows, shown)),
    row, shown, src: edges.src, dst: edges.dst, bytes: bytes ?? Float64Array.from(row, (one) => (one < 0 ? 0 : snap.t.size[one])),
    name: (node) => snap.string(name[node]),
    op: (node) => snap.string(op[node]),
    family: (node) => family[node],
  };
}

/** @param {import("./data.js").Snapshot} snap @returns {Drawn | null} */
function groupGraph(snap) {
  const table = snap.table("groups");
  if (!table) return null;
  const { name, layer, x } = table.columns;
  const edges = snap.table("group_edges")?.columns ?? { src: [], dst: [], bytes: [] };
  return {
    kind: "groups", n: table.rows, layer, x, src: edges.src, dst: edges.dst, bytes: edges.bytes,
    row: new Int32Array(table.rows).fill(-1), shown: new Uint8Array(table.rows).fill(1),
    name: (group) => snap.string(name[group]),
    op: () => "",
    family: () => 0,
  };
}

/** Group of each source node, -1 for none. @param {import("./data.js").Snapshot} snap @param {Drawn | null} source */
function sourceGroups(snap, source) {
  const of = new Int32Array(source?.n ?? 0).fill(-1);
  const given = snap.table("source")?.columns.group;
  const groups = snap.table("groups")?.columns;
  if (given) {
    for (let node = 0; node < of.length; node++) of[node] = given[node] === NONE ? -1 : given[node];
  } else if (groups && source) {
    for (let group = 0; group < groups.first.length; group++) {
      for (let node = groups.first[group]; node <= groups.last[group] && node < of.length; node++) if (source.shown[node]) of[node] = group;
    }
  }
  return of;
}

/** What was decided, by source node (fusion) and by command before the passes. */
export class Decisions {
  /** @param {import("./data.js").Snapshot} snap */
  constructor(snap) {
    this.snap = snap;
    const table = snap.table("decisions");
    this.columns = table?.columns;
    this.n = table?.rows ?? 0;
    /** @type {{stage: string, name: string, doc: string}[]} */
    this.rules = snap.meta.decision_rules ?? [];
    this.sources = snap.tables.source?.rows ?? snap.n;
    this.commands = snap.tables.commands_before?.rows ?? 0;
    const links = snap.table("decision_nodes")?.columns;
    /** Nodes of each decision, its anchor apart. */
    this.nodes = new Groups(links?.decision ?? [], this.n);
    this.links = links;
    this.fusion = this.index("fusion", this.sources);
    this.passes = this.index("passes", this.commands);
  }

  /** @param {number} at */
  stage(at) {
    return this.rules[this.columns?.rule[at]]?.stage ?? "fusion";
  }

  /** @param {string} stage @param {number} count */
  index(stage, count) {
    /** @type {number[]} */
    const keys = [];
    /** @type {number[]} */
    const items = [];
    for (let at = 0; at < this.n; at++) {
      if (this.stage(at) !== stage) continue;
      const about = new Set([this.columns?.anchor[at], ...Array.from(this.nodes.of(at), (link) => this.links?.node[link])]);
      for (const node of about) {
        keys.push(node);
        items.push(at);
      }
    }
    const groups = new Groups(keys, count);
    return { of: (/** @type {number} */ key) => (key >= 0 && key < count ? Array.from(groups.of(key), (place) => items[place]) : []) };
  }

  /** @param {number} at @returns {Verdict} */
  read(at) {
    const columns = /** @type {Record<string, any>} */ (this.columns);
    const rule = this.rules[columns.rule[at]] ?? { stage: "fusion", name: "?", doc: "" };
    const reason = this.snap.meta.reasons?.[columns.reason[at]] ?? { name: "", text: "" };
    return {
      at, stage: rule.stage, rule: rule.name, doc: rule.doc, applied: columns.verdict[at] === 1, anchor: columns.anchor[at],
      reason: reason.text || reason.name, facts: this.snap.string(columns.facts[at]), bytes: columns.bytes[at], dispatches: columns.dispatches[at],
    };
  }

  /** Verdicts of one stage, refused or applied. @param {string} stage @param {boolean} applied */
  list(stage, applied) {
    const rows = [];
    for (let at = 0; at < this.n; at++) {
      if (this.stage(at) === stage && (this.columns?.verdict[at] === 1) === applied) rows.push(at);
    }
    return rows;
  }
}

/** @type {WeakMap<object, Decisions>} */
const verdicts = new WeakMap();

/** @param {import("./data.js").Snapshot} snap @returns {Decisions} */
export function decisionsOf(snap) {
  let found = verdicts.get(snap);
  if (!found) verdicts.set(snap, (found = new Decisions(snap)));
  return found;
}

/** One verdict in words. @param {Verdict} verdict */
export function verdictText(verdict) {
  const what = verdict.applied ? "applied" : `refused: ${verdict.reason || "no reason given"}`;
  return `${verdict.rule} ${what}${verdict.facts ? ` (${verdict.facts})` : ""}`;
}
