// Owns the snapshot in the browser: typed arrays laid over the packed buffer, and look-ups on them.
// The writer is rlx_viz/columns.py.

const ARRAYS = {
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  i4: Int32Array,
  f4: Float32Array,
  f8: Float64Array,
};

const TENSOR_COLUMNS =
  "name op shape source dtype kind space family rule flags birth death last_read offset size guard root".split(" ");

/** In a u4 column: points at nothing. */
export const NONE = 0xffffffff;
/** Columns of the late tables that point into the message's own strings. @type {Record<string, string[]>} */
const LATE_STRINGS = { savings: ["label", "option"], counterfactuals: ["option", "value"] };

export const FLAG_OUTPUT = 1;
export const FLAG_OPAQUE = 2;
export const FLAG_UNKNOWN = 4;
export const FLAG_STATIC = 8;

const BIDI = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Text whose bidirectional controls, which could make a name read as another, show as "⟨U+202E⟩". @param {string} text */
export function visible(text) {
  return text.replace(BIDI, (mark) => `⟨U+${mark.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** The same for every string in plain data. @param {any} value @returns {any} */
function visibleAll(value) {
  if (typeof value === "string") return visible(value);
  if (Array.isArray(value)) return value.map(visibleAll);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [visible(key), visibleAll(one)]));
}

/** Rows of a table grouped by a key column: the rows of key k are items[start[k] … start[k + 1]). */
export class Groups {
  /** @param {ArrayLike<number>} keys @param {number} count @param {(row: number) => boolean} [keep] */
  constructor(keys, count, keep = () => true) {
    this.start = new Uint32Array(count + 1);
    for (let row = 0; row < keys.length; row++) {
      if (keys[row] < count && keep(row)) this.start[keys[row] + 1] += 1;
    }
    for (let key = 0; key < count; key++) this.start[key + 1] += this.start[key];
    this.items = new Uint32Array(this.start[count]);
    const next = this.start.slice(0, count);
    for (let row = 0; row < keys.length; row++) {
      if (keys[row] < count && keep(row)) this.items[next[keys[row]]++] = row;
    }
  }

  /** @param {number} key @returns {Uint32Array} */
  of(key) {
    return this.items.subarray(this.start[key], this.start[key + 1]);
  }
}

/** @typedef {{rows: number, columns: Record<string, any>}} Table */

/** @param {any} envelope @param {ArrayBuffer} buffer @returns {Record<string, Table>} */
function readTables(envelope, buffer) {
  /** @type {Record<string, Table>} */
  const tables = {};
  for (const [table, spec] of Object.entries(/** @type {any} */ (envelope.tables))) {
    /** @type {Record<string, any>} */
    const columns = {};
    for (const [name, place] of Object.entries(/** @type {any} */ (spec.columns))) {
      const Kind = ARRAYS[/** @type {keyof typeof ARRAYS} */ (place.dtype)];
      if (!Kind) throw new Error(`table ${table}, column ${name}: this page does not read ${place.dtype}`);
      columns[name] = new Kind(buffer, place.offset, spec.rows);
    }
    tables[table] = { rows: spec.rows, columns };
  }
  return tables;
}

export class Snapshot {
  /** @param {any} envelope @param {ArrayBuffer} buffer  starts on an 8-byte boundary */
  constructor(envelope, buffer) {
    if (envelope?.schema !== "rlx-viz-snapshot" || envelope.version !== 1) {
      throw new Error(`this page reads rlx-viz-snapshot version 1, got ${envelope?.schema} ${envelope?.version}`);
    }
    /** @type {any} */
    this.meta = visibleAll(envelope.meta);
    /** @type {string[]} */
    this.strings = envelope.strings.map(visible);
    /** @type {Record<string, Table>} */
    this.tables = readTables(envelope, buffer);
    this.n = this.tables.tensors?.rows ?? 0;
    /** @type {Int32Array | undefined} */
    this.rowOfStep = undefined;
    // A column this page knows and the writer did not fill reads as zeros.
    const filled = this.tables.tensors?.columns ?? {};
    /** @type {Record<string, any>} */
    this.t = Object.fromEntries(TENSOR_COLUMNS.map((name) => [name, filled[name] ?? new Uint32Array(this.n)]));
    /** Step of each row: its own number, unless the document is a sample of a larger one. */
    this.step = filled.step ?? Uint32Array.from({ length: this.n }, (_, row) => row);
    let last = 0;
    for (let i = 0; i < this.n; i++) if (this.t.death[i] >= last) last = this.t.death[i] + 1;
    /** Number of steps on the shared axis. */
    this.steps = Math.max(this.tables.occupancy?.rows ?? 0, last, 1);
    const edges = this.tables.edges?.columns ?? { src: new Uint32Array(0), dst: new Uint32Array(0) };
    this.edges = edges;
    this.producerEdges = new Groups(edges.dst, this.n);
    this.consumerEdges = new Groups(edges.src, this.n);
    this.viewRows = new Groups(this.t.root, this.n, (row) => this.t.root[row] !== row);
    this.extensions = this.tables.extensions?.columns;
    this.extensionRows = new Groups(this.extensions?.node ?? [], this.n);
    this.arenaSpace = this.meta.spaces?.indexOf("arena") ?? 0;
    this.weightsSpace = this.meta.spaces?.indexOf("weights") ?? 1;
  }

  /** A table the document may lack: its columns and rows, or null. @param {string} name @returns {Table | null} */
  table(name) {
    const table = this.tables[name];
    return table && table.rows ? table : null;
  }

  /**
   * Take over tables that were worked out after the document: savings and counterfactuals.
   * @param {any} envelope @param {ArrayBuffer} buffer
   */
  addLate(envelope, buffer) {
    const shift = this.strings.length;
    this.strings = this.strings.concat(envelope.strings.map(visible));
    for (const [name, table] of Object.entries(readTables(envelope, buffer))) {
      for (const column of LATE_STRINGS[name] ?? []) {
        const ids = table.columns[column];
        if (ids) table.columns[column] = ids.map((/** @type {number} */ id) => (id === NONE ? NONE : id + shift));
      }
      this.tables[name] = table;
    }
  }

  /** Row made at a step, -1 for none. @param {number} step */
  rowAt(step) {
    if (!this.rowOfStep) {
      this.rowOfStep = new Int32Array(this.steps).fill(-1);
      for (let row = this.n - 1; row >= 0; row--) if (this.step[row] < this.steps) this.rowOfStep[this.step[row]] = row;
    }
    return this.rowOfStep[step] ?? -1;
  }

  /** @param {number} id @returns {string} "" for NONE */
  string(id) {
    return id === NONE ? "" : this.strings[id] ?? "";
  }

  /** @param {string} column @param {number} row */
  text(column, row) {
    return this.strings[this.t[column][row]] ?? "";
  }

  /** Text of an index into one of meta's name lists: dtypes, kinds, spaces, families. @param {string} list @param {number} index */
  label(list, index) {
    return this.meta[list]?.[index] ?? "";
  }

  /** @param {number} index */
  rule(index) {
    return this.meta.rules?.[index] ?? { name: "", doc: "" };
  }

  /** @param {number} row @returns {number[]} */
  producers(row) {
    return [...new Set(Array.from(this.producerEdges.of(row), (edge) => this.edges.src[edge]))];
  }

  /** @param {number} row @returns {number[]} */
  consumers(row) {
    return [...new Set(Array.from(this.consumerEdges.of(row), (edge) => this.edges.dst[edge]))];
  }

  /** Rows with an arena slot that are live at `step`, largest first. @param {number} step */
  liveAt(step) {
    const { birth, death, space, size } = this.t;
    const rows = [];
    for (let i = 0; i < this.n; i++) {
      if (birth[i] <= step && death[i] >= step && space[i] === this.arenaSpace && size[i] > 0) rows.push(i);
    }
    return rows.sort((a, b) => size[b] - size[a] || a - b);
  }

  /** How many earlier rows have the row's name: names may repeat. @param {number} row */
  ordinal(row) {
    const { name } = this.t;
    let count = 0;
    for (let i = 0; i < row; i++) if (name[i] === name[row]) count += 1;
    return count;
  }

  /** The row with that name and that many of the same name before it, the last of them when there are fewer; -1 for none. @param {string} name @param {number} nth */
  rowOf(name, nth) {
    let found = -1;
    for (let i = 0, left = nth; i < this.n && left >= 0; i++) {
      if (this.text("name", i) !== name) continue;
      found = i;
      left -= 1;
    }
    return found;
  }

  /** First row of each name. */
  rowsByName() {
    const rows = new Map();
    for (let i = this.n - 1; i >= 0; i--) rows.set(this.text("name", i), i);
    return rows;
  }
}

/** @param {string} header @param {ArrayBuffer} buffer */
export function unpackSnapshot(header, buffer) {
  return new Snapshot(JSON.parse(header), buffer);
}
