// Owns the picture of a compile cache: what happened to each entry, resident bytes, and a table of the entries.

import { NONE } from "./data.js";
import { el, fitTail, swatch } from "./dom.js";
import { countOf, formatBytes, formatCount, formatExact, formatTick, roundTicks } from "./format.js";
import { ListView } from "./listview.js";
import { coloursFor, mixColours, THEMES } from "./palette.js";
import { TWIN_ROWS } from "./plot.js";

const CACHE_FACE = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';
const CACHE_LEFT = 124;
const CACHE_RIGHT = 10;
const CACHE_CURVE = 64;
const CACHE_AXIS = 18;
const CACHE_LANE = 30;
/** Lanes beyond these are in the table and the text only. */
const MOST_CACHE_LANES = 48;
const MOST_CACHE_ROWS = 400;
/** Marks with enough area for their colour to be seen; the others are drawn in ink. */
const CACHE_SOLID = new Set(["miss", "hit", "share", "upload", "disk_hit"]);
const CACHE_STARTS = new Set(["miss"]);
const CACHE_ENDS = new Set(["evict", "clear"]);

/** @typedef {{at: number, seconds: number, kind: string, entry: number, key: number, resident: number, rows: number, padding: number}} Happening */

export class CachesView extends ListView {
  /** @param {import("./store.js").Store} store */
  constructor(store) {
    super(store, { name: "caches", title: "Cache" });
    /** By the clock, or one step an event. */
    this.clock = false;
    this.at = -1;
    this.slimBelow = 720;
    /** @type {Happening[]} */
    this.events = [];
    /** @type {string[]} */
    this.kinds = [];
    /** @type {Record<string, string>} */
    this.colour = {};
    this.width = CACHE_LEFT + 60;
    this.lane = CACHE_LANE;
    this.by = el("button", { type: "button", class: "rlx-toggle", "aria-pressed": "false", title: "Place events by the clock instead of one after another",
      onclick: () => { this.clock = !this.clock; this.by.setAttribute("aria-pressed", String(this.clock)); this.draw(); } }, "By time");
    this.tools.append(this.by);
    this.legend = el("div", { class: "rlx-legend" });
    this.note.after(this.legend);
    this.canvas = el("canvas", {
      tabindex: 0, role: "img", "aria-label": "Cache: events of each entry and resident bytes. Left and right step through events.",
      onpointermove: (/** @type {PointerEvent} */ event) => this.point(event), onpointerleave: () => this.choose(-1),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.step(event),
    });
    this.said = el("p", { class: "rlx-cache-said", "aria-live": "polite" });
    this.table = el("table", { class: "rlx-cache-table" });
    this.place = el("div", { class: "rlx-cache-picture" }, this.canvas);
    this.whole = el("div", { class: "rlx-cache" }, this.place, this.said, el("div", { class: "rlx-scroll", tabindex: 0, "aria-label": "Entries of the cache" }, this.table));
    this.sized = new ResizeObserver(() => this.draw());
    this.sized.observe(this.place);
  }

  get inputs() { return ["snap", "theme", "present"]; }
  get theme() { return THEMES[this.state.theme]; }
  get meta() { return this.snap.meta.cache ?? { kinds: [], states: [] }; }

  build() {
    const entries = this.snap.table("cache_entries");
    if (!entries) {
      this.events = [];
      this.note.textContent = "";
      this.legend.replaceChildren();
      this.by.hidden = true;
      this.content.replaceChildren(el("p", { class: "rlx-blank" }, "This document is of a model, not of a compile cache. explore(cache) shows one."));
      return;
    }
    const { meta } = this;
    const c = this.snap.tables.cache_events?.columns ?? {};
    this.kinds = meta.kinds.map((/** @type {any} */ kind) => kind.name);
    this.events = Array.from({ length: c.kind?.length ?? 0 }, (_, at) => ({
      at, seconds: c.seconds[at], kind: this.kinds[c.kind[at]], entry: c.entry[at] === NONE ? -1 : c.entry[at], key: c.key[at],
      resident: c.resident[at], rows: c.rows[at], padding: c.padding[at],
    }));
    this.note.textContent = [`${formatCount(meta.compiled)} of ${countOf(entries.rows, meta.ranges ? "bucket" : "key")} compiled`,
      countOf(meta.hits, "hit"), `${formatCount(meta.misses)} compiled in all`, countOf(meta.evictions, "eviction"),
      `${formatBytes(meta.resident)} of weights resident`].join(" · ");
    const used = this.kinds.filter((kind) => this.events.some((event) => event.kind === kind));
    this.colour = Object.fromEntries(coloursFor(this.kinds.map((kind) => `event ${kind}`), this.theme).map((one, i) => [this.kinds[i], one]));
    this.legend.replaceChildren(...used.map((kind) => el("span", { class: "rlx-key", title: meta.kinds[this.kinds.indexOf(kind)].doc },
      swatch(this.colour[kind]), `${CACHE_GLYPHS[kind] ?? ""} ${kind.replace("_", " ")}`)));
    this.by.hidden = this.events.length === 0;
    this.fill(entries);
    if (this.whole.parentElement !== this.content) this.content.replaceChildren(this.whole);
    this.choose(-1);
    this.draw();
  }

  /** @param {number} row */
  entryName(row) {
    const { start, end } = this.snap.tables.cache_entries.columns;
    return end[row] - start[row] > 1 || this.meta.ranges ? `${formatExactInt(start[row])} … ${formatExactInt(end[row] - 1)}` : `key ${formatExactInt(start[row])}`;
  }

  /** @param {import("./data.js").Table} entries */
  fill(entries) {
    const { hits, misses, evictions, resident, arena, state, rows, padding } = entries.columns;
    const cells = (/** @type {number} */ row) => [this.entryName(row), this.meta.states[state[row]], hits[row], misses[row], evictions[row],
      formatBytes(resident[row]), formatBytes(arena[row]), rows[row] ? `${Math.round((100 * padding[row]) / rows[row])}%` : "–"];
    const head = [this.meta.ranges ? "bucket" : "key", "state", "hits", "compiled", "evicted", "own weights", "arena", "padding"];
    const shown = Math.min(entries.rows, MOST_CACHE_ROWS);
    this.table.replaceChildren(
      el("thead", {}, el("tr", {}, head.map((text, i) => el("th", { scope: "col", title: CACHE_TITLES[i] ?? null }, text)))),
      el("tbody", {}, Array.from({ length: shown }, (_, row) => el("tr", { "data-entry": row, class: state[row] ? null : "rlx-cold" },
        cells(row).map((text, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, typeof text === "number" ? formatCount(text) : text)))),
      entries.rows > shown ? el("tr", {}, el("td", { colspan: 8 }, `… ${formatCount(entries.rows - shown)} more`)) : null));
  }

  // --- the picture ------------------------------------------------------------------------------

  get lanes() { return Math.min(this.snap.tables.cache_entries?.rows ?? 0, MOST_CACHE_LANES); }
  get span() { return this.clock ? Math.max(this.events.at(-1)?.seconds ?? 0, 1e-6) : Math.max(this.events.length, 1); }

  /** @param {Happening} event */
  toX(event) { return CACHE_LEFT + ((this.clock ? event.seconds : event.at + 0.5) / this.span) * (this.width - CACHE_LEFT - CACHE_RIGHT); }
  /** @param {number} entry */
  toLane(entry) { return CACHE_CURVE + 14 + (entry + 0.5) * this.lane; }

  draw() {
    if (!this.snap || this.asleep || !this.snap.table("cache_entries")) return;
    const type = this.state.present ? 1.45 : 1;
    this.width = Math.max(this.place.clientWidth, CACHE_LEFT + 60);
    this.lane = Math.max(11, Math.min(CACHE_LANE * type, (this.place.clientHeight - CACHE_CURVE - 14 - CACHE_AXIS) / Math.max(this.lanes, 1)));
    const height = Math.round(CACHE_CURVE + 14 + this.lanes * this.lane + CACHE_AXIS);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(height * ratio);
    Object.assign(this.canvas.style, { width: `${this.width}px`, height: `${height}px` });
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = CACHE_FACE.replace("11px", `${11 * type}px`);
    context.textBaseline = "middle";
    this.paintCurve(context);
    this.paintLanes(context);
    this.paintAxis(context, height);
    if (this.at >= 0) {
      context.strokeStyle = this.theme.accent;
      context.strokeRect(Math.round(this.toX(this.events[this.at])) + 0.5, 2, 0.01, height - CACHE_AXIS - 4);
    }
  }

  /** Resident bytes, a step an event. @param {CanvasRenderingContext2D} context */
  paintCurve(context) {
    const most = Math.max(1, ...this.events.map((event) => event.resident));
    const toY = (/** @type {number} */ bytes) => CACHE_CURVE - (bytes / (most * 1.1)) * (CACHE_CURVE - 8);
    context.textAlign = "right";
    for (const tick of roundTicks(0, most * 1.1, 3, true)) {
      context.fillStyle = this.theme.faint;
      context.fillRect(CACHE_LEFT, Math.round(toY(tick)), this.width - CACHE_LEFT - CACHE_RIGHT, 1);
      context.fillStyle = this.theme.muted;
      context.fillText(formatTick(tick), CACHE_LEFT - 8, Math.max(toY(tick), 7));
    }
    context.beginPath();
    context.moveTo(CACHE_LEFT, toY(0));
    let now = 0;
    for (const event of this.events) {
      const x = this.toX(event);
      context.lineTo(x, toY(now));
      now = event.resident;
      context.lineTo(x, toY(now));
    }
    context.lineTo(this.width - CACHE_RIGHT, toY(now));
    context.strokeStyle = this.theme.ink;
    context.stroke();
    context.lineTo(this.width - CACHE_RIGHT, toY(0));
    context.fillStyle = mixColours(this.theme.colours.blue, this.theme.ground, 0.25);
    context.fill();
  }

  /** Where each entry was compiled, and what happened to it. @param {CanvasRenderingContext2D} context */
  paintLanes(context) {
    const { theme, lanes } = this;
    const half = Math.min(this.lane / 2 - 1, 8);
    const since = new Float64Array(lanes).fill(-1);
    const bar = (/** @type {number} */ entry, /** @type {number} */ end) => {
      context.fillStyle = theme.line;
      context.fillRect(since[entry], this.toLane(entry) - half, Math.max(end - since[entry], 1), 2 * half);
      since[entry] = -1;
    };
    for (const event of this.events) {
      if (event.entry < 0 || event.entry >= lanes) continue;
      if (CACHE_STARTS.has(event.kind) || (since[event.entry] < 0 && !CACHE_ENDS.has(event.kind))) since[event.entry] = since[event.entry] < 0 ? (CACHE_STARTS.has(event.kind) ? this.toX(event) : CACHE_LEFT) : since[event.entry];
      else if (CACHE_ENDS.has(event.kind)) bar(event.entry, this.toX(event));
    }
    for (let entry = 0; entry < lanes; entry++) if (since[entry] >= 0) bar(entry, this.width - CACHE_RIGHT);
    context.textAlign = "right";
    for (let entry = 0; entry < lanes; entry++) {
      context.fillStyle = theme.muted;
      context.fillText(fitTail(context, this.entryName(entry), CACHE_LEFT - 12), CACHE_LEFT - 8, this.toLane(entry));
    }
    context.textAlign = "center";
    for (const event of this.events) {
      if (event.entry < 0 || event.entry >= lanes) continue;
      context.fillStyle = CACHE_SOLID.has(event.kind) ? this.colour[event.kind] : theme.ink;
      if (event.kind === "hit") context.fillRect(Math.round(this.toX(event)), this.toLane(event.entry) - half / 2, 1.5, half);
      else context.fillText(CACHE_GLYPHS[event.kind] ?? "•", this.toX(event), this.toLane(event.entry) + 0.5);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} height */
  paintAxis(context, height) {
    const y = height - CACHE_AXIS / 2;
    context.fillStyle = this.theme.muted;
    context.textAlign = "right";
    context.fillText(this.clock ? "seconds" : "event", CACHE_LEFT - 8, y);
    for (const tick of roundTicks(0, this.span, Math.max(2, (this.width - CACHE_LEFT) / 110), false)) {
      const x = CACHE_LEFT + (tick / this.span) * (this.width - CACHE_LEFT - CACHE_RIGHT);
      context.textAlign = x > this.width - 40 ? "right" : "center";
      context.fillText(this.clock ? String(Number(tick.toPrecision(4))) : formatCount(tick), Math.min(x, this.width - 2), y);
    }
  }

  // --- pointing ---------------------------------------------------------------------------------

  /** @param {PointerEvent} pointer */
  point(pointer) {
    const box = this.canvas.getBoundingClientRect();
    const x = pointer.clientX - box.left;
    const y = pointer.clientY - box.top;
    const lane = Math.floor((y - CACHE_CURVE - 14) / this.lane);
    let best = -1;
    let least = 40;
    for (const event of this.events) {
      const off = Math.abs(this.toX(event) - x) + (lane >= 0 && lane < this.lanes && event.entry !== lane ? 30 : 0);
      if (off < least) [best, least] = [event.at, off];
    }
    this.choose(best);
  }

  /** @param {KeyboardEvent} event */
  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.events.length) return;
    event.preventDefault();
    event.stopPropagation();
    this.choose(this.at < 0 ? (by > 0 ? 0 : this.events.length - 1) : Math.min(Math.max(this.at + by, 0), this.events.length - 1));
  }

  /** @param {number} at */
  choose(at) {
    const event = this.events[at];
    this.said.textContent = event ? this.sentence(event) : "Point at an event, or step through them with ← and →.";
    for (const row of this.table.querySelectorAll("tr[data-entry]")) row.classList.toggle("rlx-on", Boolean(event) && Number(row.dataset.entry) === event.entry);
    if (at === this.at) return;
    this.at = event ? at : -1;
    this.draw();
  }

  /** @param {Happening} event */
  sentence(event) {
    const kind = this.meta.kinds[this.kinds.indexOf(event.kind)];
    return [`event ${formatCount(event.at + (this.meta.earlier ?? 0))} at ${event.seconds.toFixed(3)} s`, `${event.kind.replace("_", " ")} of key ${formatExactInt(event.key)}`,
      event.entry >= 0 ? this.entryName(event.entry) : "", event.rows ? `${formatCount(event.padding)} of ${formatCount(event.rows)} rows padding` : "",
      `${formatBytes(event.resident)} resident (${formatExact(event.resident)})`, kind?.doc ?? ""].filter(Boolean).join(" · ");
  }

  describe() {
    const entries = this.snap.table("cache_entries");
    if (!entries) return "cache: not in this document";
    const { hits, misses, evictions, resident, state, rows, padding } = entries.columns;
    const lines = [`cache: ${this.note.textContent}`];
    for (let row = 0; row < Math.min(entries.rows, TWIN_ROWS); row++) {
      lines.push([this.entryName(row), this.meta.states[state[row]], `hits ${hits[row]}`, `compiled ${misses[row]}`, `evicted ${evictions[row]}`,
        `resident ${resident[row]}`, `padding ${padding[row]} of ${rows[row]} rows`].join("  "));
    }
    if (entries.rows > TWIN_ROWS) lines.push(`… ${formatCount(entries.rows - TWIN_ROWS)} more`);
    const told = this.events.filter((event) => event.kind !== "hit");
    for (const event of told.slice(0, TWIN_ROWS)) lines.push(`${event.kind}  key ${event.key}  resident ${event.resident}`);
    if (told.length > TWIN_ROWS) lines.push(`… ${formatCount(told.length - TWIN_ROWS)} more`);
    return lines.join("\n");
  }

  close() {
    this.sized.disconnect();
    super.close();
  }
}

/** A mark of each kind, so that no colour is needed to tell them apart. @type {Record<string, string>} */
const CACHE_GLYPHS = { miss: "■", hit: "|", share: "▼", upload: "▲", note: "+", run: "○", evict: "×", clear: "–", disk_hit: "◆", disk_miss: "◇" };
const CACHE_TITLES = ["What it is compiled for is its last key", "donor: others stand on its weights", "Times it was found compiled", "Times it was compiled", "Times it was dropped for room",
  "Weights of its own; 0 where it shares", "Its arena, which it never shares", "Share of the rows of padded runs that were padding"];

/** Digits as they are: a key is a name. @param {number} value */
function formatExactInt(value) {
  return String(value);
}
