// Owns why a tensor is where it is: who reads it last, what it is an alias of, what a lower offset meets,
// which option would free it, and what fusion and the passes said.

import { Groups } from "./data.js";
import { formatBytes, formatCount } from "./format.js";
import { decisionsOf, fusionOf } from "./graphs.js";

/** @typedef {{option: string, value: string, saved: number, allocate: number, death: number}} Freeing */
/** @typedef {{on: number[], text: string}} Blocked */

/** The row that reads this one, or a view of it, last; -1 for none. @param {import("./data.js").Snapshot} snap @param {number} row */
export function lastReader(snap, row) {
  let last = -1;
  const { root, last_read } = snap.t;
  const family = root[row] === row ? [row, ...snap.viewRows.of(row)] : [row];
  for (const one of family) {
    for (const edge of snap.consumerEdges.of(one)) {
      const reader = snap.edges.dst[edge];
      if (root[reader] === root[row] && snap.t.size[reader] === 0) continue; // a view reads nothing
      if (snap.step[reader] <= last_read[row] && (last < 0 || snap.step[reader] > snap.step[last])) last = reader;
    }
  }
  return last;
}

/** From the row to the buffer it is a view of, both included. @param {import("./data.js").Snapshot} snap @param {number} row @returns {number[]} */
export function aliasChain(snap, row) {
  const { root } = snap.t;
  const chain = [row];
  while (chain[chain.length - 1] !== root[row] && chain.length < 50) {
    const at = chain[chain.length - 1];
    const next = snap.producers(at).find((one) => root[one] === root[row] && !chain.includes(one));
    chain.push(next ?? root[row]);
  }
  return chain;
}

/** Option changes under which the row would die earlier. @param {import("./data.js").Snapshot} snap @param {number} row @returns {Freeing[]} */
export function freeingOf(snap, row) {
  const table = snap.table("counterfactuals")?.columns;
  const nodes = snap.table("counterfactual_nodes")?.columns;
  if (!table || !nodes) return [];
  let index = freeings.get(nodes);
  if (!index) freeings.set(nodes, (index = new Groups(nodes.node, snap.n)));
  return Array.from(index.of(row), (at) => {
    const which = nodes.row[at];
    return {
      option: snap.string(table.option[which]), value: snap.string(table.value[which]), saved: table.saved[which],
      allocate: table.allocate[which], death: nodes.death[at],
    };
  }).sort((a, b) => b.saved - a.saved);
}

/** @type {WeakMap<object, Groups>} */
const freeings = new WeakMap();

/** What keeps a slot from a lower offset; null for what has no slot. @param {import("./data.js").Snapshot} snap @param {number} row @returns {Blocked | null} */
export function blockedBy(snap, row) {
  const { birth, death, offset, size, guard, space, root } = snap.t;
  const slot = size[row] > 0 ? row : root[row];
  if (!(size[slot] > 0) || space[slot] !== snap.arenaSpace) return null;
  if (offset[slot] === 0) return { on: [], text: "It lies at the bottom." };
  const below = [];
  for (let other = 0; other < snap.n; other++) {
    if (other === slot || root[other] === root[slot] || space[other] !== snap.arenaSpace || !(size[other] > 0)) continue;
    if (birth[other] > death[slot] || death[other] < birth[slot] || offset[other] >= offset[slot]) continue;
    below.push(other);
  }
  const end = (/** @type {number} */ other) => offset[other] + size[other] + guard[other];
  below.sort((a, b) => offset[a] - offset[b]);
  let top = 0;
  let gap = 0;
  let gapAt = 0;
  for (const other of [...below, slot]) {
    if (offset[other] - top > gap) {
      gap = offset[other] - top;
      gapAt = top;
    }
    top = Math.max(top, other === slot ? top : end(other));
  }
  const on = below.filter((other) => end(other) === top).slice(0, 6);
  const need = size[slot] + guard[slot];
  const room = gap === 0 ? "no byte below is free all that time"
    : gap < need ? `the largest gap below is ${formatBytes(gap)}, it needs ${formatBytes(need)}`
      : `a gap of ${formatBytes(gap)} from ${formatCount(gapAt)} would hold it now; others were placed there when it was`;
  const count = `${formatCount(below.length)} ${below.length === 1 ? "slot" : "slots"} lower at the same time`;
  return { on, text: `${count}; ${room}.` };
}

/** What fusion and the passes said about a row. @param {import("./data.js").Snapshot} snap @param {number} row */
export function verdictsOf(snap, row) {
  const decisions = decisionsOf(snap);
  const found = new Set();
  for (const node of fusionOf(snap).membersOf(row)) for (const at of decisions.fusion.of(node)) found.add(at);
  const before = snap.table("commands_before")?.columns;
  if (before) for (let at = 0; at < before.node.length; at++) if (before.node[at] === row) for (const one of decisions.passes.of(at)) found.add(one);
  return [...found].sort((a, b) => a - b).map((at) => decisions.read(at));
}

/** First thunk that makes the row, -1 for none. @param {import("./data.js").Snapshot} snap @param {number} row */
export function thunkOf(snap, row) {
  const nodes = snap.table("commands")?.columns.node;
  return nodes ? nodes.indexOf(row) : -1;
}
