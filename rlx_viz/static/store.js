// Owns the one state all views share, and tells them, once per frame, what changed.

/**
 * @typedef {object} State
 * @property {import("./data.js").Snapshot | null} snap
 * @property {number} rev
 * @property {number} hover        row under the pointer, -1 for none
 * @property {number} hoverStep    step under the pointer, -1 for none
 * @property {string} pointer      name of the view under the pointer
 * @property {{x: number, y: number} | null} at  where in that view
 * @property {number} selected     selected row, -1 for none
 * @property {[number, number] | null} x        zoomed step range, null for everything
 * @property {[number, number] | null} rows     zoomed Gantt rows
 * @property {[number, number] | null} offsets  zoomed byte range of the arena map
 * @property {boolean} moving      the picture is being dragged or zoomed: draw fast, sharpen later
 * @property {string} query
 * @property {Uint8Array | null} match  1 for rows the query and the legend keep, null for all
 * @property {number} matches
 * @property {string} queryError
 * @property {Set<number>} hidden  legend entries switched off
 * @property {string} colour       family | dtype | kind | rule | module
 * @property {string} sort         birth | size | lifetime | offset | module
 * @property {boolean} views       show views under their root
 * @property {boolean} statics     show weights in the Gantt
 * @property {string} space        arena | weights
 * @property {string} theme        light | dark
 * @property {boolean} text        text twins instead of pictures
 * @property {string} maximised    name of the view that fills the space, "" for none
 * @property {number} focus        counts requests to zoom to the selection
 * @property {number} reveal       counts requests to bring the selection into view
 * @property {string} open         views on screen, by name, separated by spaces
 * @property {string} sizes        where handles were put: "name:share …", the panel in pixels
 * @property {boolean} present     larger type, for a room
 * @property {string} heat         off | occupancy | reuse | touched
 * @property {string} graph        both | overlay | fused
 * @property {string} collapse     auto | on | off: modules as nodes
 * @property {number} module       group whose ops are shown, -1 for all
 * @property {[number, number] | null} graphX  zoomed width of the fusion graph
 * @property {[number, number] | null} graphY  zoomed layers of the fusion graph
 * @property {number} hoverSource  source node under the pointer, -1 for none
 * @property {number} source       selected source node, -1 for none
 * @property {number} hoverGroup   module under the pointer, -1 for none
 * @property {number} command      selected thunk, -1 for none
 * @property {import("./data.js").Snapshot | null} base   pinned plan that the one on screen is compared with
 * @property {import("./data.js").Snapshot | null} other  plan that the one on screen is compared to; wins over a pinned one
 * @property {number} hoverOther   row under the pointer in the compared plan that is not on screen, -1 for none
 * @property {any} baseline        label, options and headline of the pinned plan, {} for none
 * @property {number} progress     share of the work done, -1 when idle
 * @property {string} progressText
 * @property {{text: string, ok: boolean, busy: boolean} | null} run  how the last run went
 * @property {{undo: number, redo: number}} history  steps of the planner's options each way
 * @property {number} late         counts tables that came after the document
 * @property {boolean} busy
 * @property {string} error
 */

/** @returns {State} */
export function initialState() {
  return {
    snap: null, rev: 0, hover: -1, hoverStep: -1, pointer: "", at: null, selected: -1, x: null, rows: null, offsets: null,
    moving: false, query: "", match: null, matches: 0, queryError: "", hidden: new Set(),
    colour: "family", sort: "birth", views: true, statics: false, space: "arena", theme: "light",
    text: false, maximised: "", focus: 0, reveal: 0, open: "occupancy gantt arena", sizes: "", present: false,
    heat: "off", graph: "both", collapse: "auto", module: -1, graphX: null, graphY: null, hoverSource: -1, source: -1,
    hoverGroup: -1, command: -1, base: null, other: null, hoverOther: -1, baseline: {}, late: 0,
    progress: -1, progressText: "", run: null, history: { undo: 0, redo: 0 }, busy: false, error: "",
  };
}

/** A view has a place on screen. @param {State} state @param {string} name */
export function isOpen(state, name) {
  return state.maximised === name || state.open.split(" ").includes(name);
}

export class Store {
  constructor() {
    /** @type {State} */
    this.state = initialState();
    /** @type {Set<(changed: Set<string>, state: State) => void>} */
    this.listeners = new Set();
    /** @type {Set<string>} */
    this.changed = new Set();
    this.frame = 0;
  }

  /** Change some keys; listeners hear of all changes of a frame together. @param {Partial<State>} patch */
  set(patch) {
    for (const [key, value] of Object.entries(patch)) {
      const state = /** @type {any} */ (this.state);
      if (Object.is(state[key], value)) continue;
      state[key] = value;
      this.changed.add(key);
    }
    if (this.changed.size && !this.frame) this.frame = requestAnimationFrame(() => this.flush());
  }

  /** Tell the listeners now. */
  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const changed = this.changed;
    this.changed = new Set();
    if (changed.size) for (const listener of this.listeners) listener(changed, this.state);
  }

  /** @param {(changed: Set<string>, state: State) => void} listener @returns {() => void} stops it */
  on(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.listeners.clear();
  }
}
