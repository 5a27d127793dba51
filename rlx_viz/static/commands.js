// Owns the command list: thunks before and after the passes side by side, what each pass did, and the profile.

import { NONE } from "./data.js";
import { el, lastParts } from "./dom.js";
import { countOf, formatBytes, formatCount, formatExact } from "./format.js";
import { decisionsOf, verdictText } from "./graphs.js";
import { ListView, LongList, stepInList } from "./listview.js";
import { TWIN_ROWS } from "./plot.js";

const ROW = 19;
const PLACES = ["", "gpu", "host"];

export class CommandsView extends ListView {
  /** @param {import("./store.js").Store} store @param {((sanitize: boolean) => void) | undefined} run */
  constructor(store, run) {
    super(store, { name: "commands", title: "Commands" });
    this.ran = el("span", { class: "rlx-note", role: "status" });
    if (run) {
      this.tools.append(this.ran,
        el("button", { type: "button", class: "rlx-toggle", title: "Run on the planned arena with random inputs, and time each thunk", onclick: () => run(false) }, "Run"),
        el("button", { type: "button", class: "rlx-toggle", title: "Run once with free bytes poisoned and guards checked", onclick: () => run(true) }, "Sanitise"));
    }
    const height = () => Math.round(ROW * (store.state.present ? 1.45 : 1));
    this.before = new LongList({ label: "Thunks before passes", height, row: (index) => this.beforeRow(index) });
    this.after = new LongList({ label: "Thunks", height, row: (index) => this.afterRow(index) });
    this.empty = el("p", { class: "rlx-blank", hidden: true }, "This document has no commands. Make it again with this version to see them.");
    this.heads = [el("div", { class: "rlx-list-head" }), el("div", { class: "rlx-list-head" })];
    this.columns = el("div", { class: "rlx-twocol" },
      el("div", { class: "rlx-col-before" }, this.heads[0], this.before.element),
      el("div", { class: "rlx-col-after" }, this.heads[1], this.after.element));
    this.content.append(this.empty, this.columns);
    this.after.element.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.step(event));
    this.before.element.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.stepBefore(event));
    /** Row of the list before passes that was chosen last. */
    this.beforeAt = -1;
    /** Commands of each tensor. @type {Map<number, number>} */
    this.ofNode = new Map();
    /** Row of the list before passes that each command came from. */
    this.origin = new Int32Array(0);
    this.slowest = 0;
    this.marked = -1;
  }

  /** @returns {Record<string, any>} */
  get table() { return this.snap.table("commands")?.columns ?? {}; }
  /** @returns {Record<string, any>} */
  get tableBefore() { return this.snap.table("commands_before")?.columns ?? {}; }
  get profile() { return this.snap.table("profile")?.columns; }

  build() {
    const { snap } = this;
    const rows = snap.tables.commands?.rows ?? 0;
    const before = snap.tables.commands_before?.rows ?? 0;
    this.empty.hidden = rows > 0;
    this.columns.hidden = rows === 0;
    this.ofNode = new Map();
    for (let at = rows - 1; at >= 0; at--) this.ofNode.set(this.table.node[at], at);
    this.origin = new Int32Array(rows).fill(-1);
    for (let at = 0; at < before; at++) {
      const first = this.tableBefore.first[at];
      if (first !== NONE) for (let k = first; k < first + this.tableBefore.count[at] && k < rows; k++) if (this.origin[k] < 0) this.origin[k] = at;
    }
    const { profile } = this;
    this.slowest = profile ? profile.us.reduce((/** @type {number} */ most, /** @type {number} */ us) => Math.max(most, us), 0) : 0;
    const total = profile ? profile.us.reduce((/** @type {number} */ sum, /** @type {number} */ us) => sum + us, 0) : 0;
    const decisions = decisionsOf(snap);
    const refused = decisions.list("passes", false).length;
    const applied = decisions.list("passes", true).length;
    this.note.textContent = rows ? [
      before ? `${formatCount(before)} → ${countOf(rows, "thunk")}` : countOf(rows, "thunk"),
      applied || refused ? `passes: ${formatCount(applied)} applied, ${formatCount(refused)} refused` : "",
      profile ? `${timeText(total)} measured` : "",
    ].filter(Boolean).join(" · ") : "";
    this.element.dataset.profiled = profile ? "1" : "0";
    this.columns.dataset.before = before ? "1" : "0";
    this.heads[0].replaceChildren(el("span", {}, "before passes"), el("span", {}, "becomes"));
    this.heads[1].replaceChildren(el("span", {}, before ? "after passes" : "thunks", before ? el("span", { class: "rlx-narrow" }, ` · ${formatCount(before)} before them: widen the view`) : null),
      el("span", {}, el("span", { class: "rlx-rw" }, profile ? "reads · writes · " : "reads · writes"), profile ? "µs · GB/s" : ""));
    this.before.show(before);
    this.after.show(rows);
    if (this.state.command >= rows) this.store.set({ command: -1 });
  }

  /** @param {number} index */
  afterRow(index) {
    const { table, snap, profile } = this;
    const node = table.node[index];
    const on = index === this.state.command;
    const us = profile?.us[index] ?? 0;
    const moved = table.read[index] + table.written[index];
    const bar = profile && this.slowest > 0 ? el("i", { class: "rlx-time", "aria-hidden": "true" }) : null;
    if (bar) bar.style.width = `${(us / this.slowest) * 100}%`;
    const place = PLACES[table.where[index]] ?? "";
    return el("div", {
      class: `rlx-row${on ? " rlx-on" : ""}${this.outside(node) ? " rlx-outside" : ""}`, role: "option", "aria-selected": String(on), "data-command": index, "data-node": node,
      title: [snap.string(table.label[index]), node < snap.n ? snap.text("name", node) : "", place ? `runs on ${place}` : "",
        `reads ${formatExact(table.read[index])}, writes ${formatExact(table.written[index])}`,
        table.scratch[index] > 0 ? `scratch ${formatExact(table.scratch[index])}` : ""].filter(Boolean).join("\n"),
      onclick: () => this.choose(index),
      onpointerenter: () => this.store.set({ hover: node < snap.n ? node : -1 }),
      onpointerleave: () => this.store.set({ hover: -1 }),
    },
    bar, el("span", { class: "rlx-index" }, index), el("span", { class: "rlx-label" }, snap.string(table.label[index])),
    place === "host" && this.snap.meta.target !== "cpu" ? el("em", {}, "host") : null,
    el("span", { class: "rlx-what" }, node < snap.n ? lastParts(snap.text("name", node), 2) : ""),
    el("span", { class: "rlx-num rlx-rw" }, `${formatBytes(table.read[index])} · ${formatBytes(table.written[index])}`),
    profile ? el("span", { class: "rlx-num rlx-us" }, `${us < 10 ? us.toFixed(1) : formatCount(Math.round(us))}`) : null,
    profile ? el("span", { class: "rlx-num rlx-rate" }, us > 0 ? rate(moved, us) : "–") : null);
  }

  /** The steps in view do not hold it, or the search does not keep it. @param {number} node */
  outside(node) {
    const { x, match } = this.state;
    if (node >= this.snap.n) return false;
    const step = this.snap.step[node];
    return (x !== null && (step < x[0] || step >= x[1])) || (match !== null && !match[node]);
  }

  /** @param {number} index */
  beforeRow(index) {
    const { tableBefore, snap } = this;
    const node = tableBefore.node[index];
    const first = tableBefore.first[index];
    const count = tableBefore.count[index];
    const decisions = decisionsOf(snap);
    const verdicts = decisions.passes.of(index).map((at) => decisions.read(at));
    const applied = verdicts.find((verdict) => verdict.applied);
    const refused = verdicts.find((verdict) => !verdict.applied);
    const gone = first === NONE || count === 0;
    const on = gone ? index === this.beforeAt && this.holdsBefore(index) : this.holdsBefore(index);
    return el("div", {
      class: `rlx-row${on ? " rlx-on" : ""}${gone ? " rlx-gone" : ""}${this.outside(node) ? " rlx-outside" : ""}`, role: "option", "aria-selected": String(on), "data-before": index, "data-node": node,
      title: [snap.string(tableBefore.label[index]), node < snap.n ? snap.text("name", node) : "",
        gone ? "merged into another thunk or dropped" : `thunk${count > 1 ? "s" : ""} ${first}${count > 1 ? `–${first + count - 1}` : ""} after passes`,
        ...verdicts.map(verdictText)].filter(Boolean).join("\n"),
      onclick: () => {
        this.beforeAt = index;
        if (gone) this.store.set({ selected: node < snap.n ? node : -1 });
        else this.choose(first);
        this.before.fill(true);
      },
      onpointerenter: () => this.store.set({ hover: node < snap.n ? node : -1 }),
      onpointerleave: () => this.store.set({ hover: -1 }),
    },
    el("span", { class: "rlx-index" }, index),
    el("b", { class: `rlx-verdict${applied ? " rlx-applied" : refused ? " rlx-refused" : ""}` }, applied ? "✓" : refused ? "×" : ""),
    el("span", { class: "rlx-label" }, snap.string(tableBefore.label[index])),
    el("span", { class: "rlx-what" }, applied ? applied.rule : refused ? `${refused.rule}: ${refused.reason}` : node < snap.n ? lastParts(snap.text("name", node), 2) : ""),
    el("span", { class: "rlx-num" }, gone ? "" : `→ ${first}`));
  }

  /** @param {number} index */
  choose(index) {
    const node = this.table.node[index];
    if (index === this.state.command) this.store.set({ command: -1 });
    else this.store.set({ command: index, ...(node < this.snap.n ? { selected: node, source: -1, reveal: this.state.reveal + 1 } : {}) });
  }

  /** @param {KeyboardEvent} event */
  step(event) {
    const next = stepInList(event, this.state.command, this.snap?.tables.commands?.rows ?? 0);
    if (next >= 0 && next !== this.state.command) this.choose(next);
  }

  /** What is selected is that of a row before passes: one of its thunks, or its tensor where it became none. @param {number} index */
  holdsBefore(index) {
    const { first, count, node } = this.tableBefore;
    const { command, selected } = this.state;
    if (first[index] === NONE || !count[index]) return selected >= 0 ? node[index] === selected : node[index] >= this.snap.n;
    return command >= first[index] && command < first[index] + count[index];
  }

  /** @param {KeyboardEvent} event */
  stepBefore(event) {
    const rows = this.snap?.tables.commands_before?.rows ?? 0;
    const { first, count, node } = this.tableBefore;
    const held = this.beforeAt >= 0 && this.beforeAt < rows && this.holdsBefore(this.beforeAt) ? this.beforeAt : this.origin[this.state.command] ?? -1;
    const next = stepInList(event, held, rows);
    if (next < 0 || next === held) return;
    this.beforeAt = next;
    if (first[next] === NONE || !count[next]) this.store.set({ selected: node[next] < this.snap.n ? node[next] : -1, source: -1 });
    else if (first[next] !== this.state.command) this.choose(first[next]);
    this.store.flush();
    this.before.reveal(next);
    this.before.fill(true);
  }

  /** @param {Set<string>} changed */
  mark(changed) {
    const { state } = this;
    this.ran.textContent = this.ran.title = state.run?.text ?? "";
    this.ran.classList.toggle("rlx-none", state.run !== null && !state.run.ok);
    if (changed.has("selected") && !changed.has("command")) {
      const at = this.ofNode.get(state.selected) ?? -1;
      const held = state.command >= 0 && this.table.node?.[state.command] === state.selected;
      if (!held && at !== state.command) this.store.set({ command: at });
    }
    const brushed = changed.has("match") || (!state.moving && (changed.has("x") || changed.has("moving")));
    if (brushed) {
      this.before.fill(true);
      this.after.fill(true);
    }
    if (!changed.has("command") && !changed.has("present")) return;
    if (state.command >= 0 && state.command < (this.snap.tables.commands?.rows ?? 0)) {
      this.after.reveal(state.command);
      if (this.origin[state.command] >= 0) this.before.reveal(this.origin[state.command]);
    }
    this.before.fill(true);
    this.after.fill(true);
  }

  describe() {
    const { snap, table, tableBefore, profile } = this;
    const rows = snap.tables.commands?.rows ?? 0;
    if (!rows) return "commands: this document has none";
    const lines = [`commands: ${this.note.textContent}`, `index  thunk  tensor  where  reads  writes${profile ? "  µs  GB/s" : ""}`];
    for (let at = 0; at < Math.min(rows, TWIN_ROWS); at++) {
      const node = table.node[at];
      lines.push([at, snap.string(table.label[at]), node < snap.n ? snap.text("name", node) : "none", PLACES[table.where[at]] || "nowhere", table.read[at], table.written[at],
        ...(profile ? [profile.us[at].toFixed(1), rate(table.read[at] + table.written[at], profile.us[at])] : [])].join("  "));
    }
    if (rows > TWIN_ROWS) lines.push(`… ${formatCount(rows - TWIN_ROWS)} more`);
    const before = snap.tables.commands_before?.rows ?? 0;
    const decisions = decisionsOf(snap);
    lines.push(`before passes: ${formatCount(before)}`);
    for (let at = 0; at < Math.min(before, TWIN_ROWS); at++) {
      const first = tableBefore.first[at];
      const gone = first === NONE || !tableBefore.count[at];
      lines.push([`before ${at}`, snap.string(tableBefore.label[at]), gone ? "merged" : `→ ${first}${tableBefore.count[at] > 1 ? `..${first + tableBefore.count[at] - 1}` : ""}`,
        ...decisions.passes.of(at).map((one) => verdictText(decisions.read(one)))].join("  "));
    }
    if (before > TWIN_ROWS) lines.push(`… ${formatCount(before - TWIN_ROWS)} more`);
    return lines.join("\n");
  }

  close() {
    super.close();
    this.before.close();
    this.after.close();
  }
}

/** Decimal gigabytes a second, as devices are rated. @param {number} bytes @param {number} us */
function rate(bytes, us) {
  const value = us > 0 ? bytes / us / 1000 : 0;
  return value < 10 ? value.toFixed(1) : formatCount(Math.round(value));
}

/** "12.3 ms". @param {number} us */
export function timeText(us) {
  if (us < 1000) return `${us < 10 ? us.toFixed(1) : Math.round(us)} µs`;
  return us < 1e6 ? `${(us / 1000).toFixed(us < 1e4 ? 2 : 1)} ms` : `${(us / 1e6).toFixed(2)} s`;
}
