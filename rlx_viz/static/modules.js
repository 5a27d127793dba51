// Owns which module of the user's model each tensor belongs to: from the source's groups, else from names.

import { NONE } from "./data.js";

/** @typedef {{names: string[], of: Int32Array}} ModuleIndex  `of[row]` is an index into names, -1 for none */

const MOST_MODULES = 400;
/** @type {WeakMap<object, ModuleIndex>} */
const indices = new WeakMap();

/** @param {import("./data.js").Snapshot} snap @returns {ModuleIndex} */
export function modulesOf(snap) {
  let index = indices.get(snap);
  if (!index) indices.set(snap, (index = fromGroups(snap) ?? fromNames(snap)));
  return index;
}

/** @param {import("./data.js").Snapshot} snap @returns {ModuleIndex | null} */
function fromGroups(snap) {
  const groups = snap.table("groups")?.columns;
  if (!groups) return null;
  const source = snap.table("source")?.columns;
  /** @type {Map<string, number>} */
  const places = new Map();
  /** @type {string[]} */
  const names = [];
  const place = Array.from(groups.name, (/** @type {number} */ id) => {
    const name = snap.string(id);
    let at = places.get(name);
    if (at === undefined) {
      at = names.length;
      names.push(name);
      places.set(name, at);
    }
    return at;
  });
  const of = new Int32Array(snap.n).fill(-1);
  if (source?.group && source.fused) {
    for (let node = 0; node < source.fused.length; node++) {
      const row = source.fused[node];
      if (row !== NONE && row < snap.n && source.group[node] !== NONE) of[row] = place[source.group[node]] ?? -1;
    }
  } else {
    for (let group = 0; group < place.length; group++) {
      for (let row = groups.first[group]; row <= groups.last[group] && row < snap.n; row++) of[row] = place[group];
    }
  }
  // What no module makes, a weight say, counts to the first module that reads it.
  for (let row = 0; row < snap.n; row++) {
    if (of[row] < 0) for (const edge of snap.consumerEdges.of(row)) of[row] = Math.max(of[row], of[snap.edges.dst[edge]]);
  }
  return { names, of };
}

/** @param {import("./data.js").Snapshot} snap @returns {ModuleIndex} */
function fromNames(snap) {
  const paths = Array.from({ length: snap.n }, (_, row) => snap.text("name", row).split(/[/.]/).filter(Boolean).slice(0, -1));
  let depth = 1;
  /** @param {number} levels */
  const count = (levels) => new Set(paths.map((path) => path.slice(0, levels).join("."))).size;
  while (depth < 6) {
    const next = count(depth + 1);
    if (next > MOST_MODULES || (depth > 1 && next === count(depth))) break;
    depth += 1;
  }
  /** @type {Map<string, number>} */
  const places = new Map();
  const of = new Int32Array(snap.n).fill(-1);
  paths.forEach((path, row) => {
    const name = path.slice(0, depth).join(".");
    if (!name) return;
    const at = places.get(name) ?? places.size;
    places.set(name, at);
    of[row] = at;
  });
  return { names: [...places.keys()], of };
}
