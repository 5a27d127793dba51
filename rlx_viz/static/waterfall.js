// Owns the savings: from nothing shared to the number to allocate, one bar a change, summing exactly; beside each what it
// saves alone, and of traffic and dispatches.

import { NONE } from "./data.js";
import { el } from "./dom.js";
import { formatBytes, formatCount, formatExact, formatShare, toBig } from "./format.js";
import { ListView } from "./listview.js";

/**
 * `alone`: bytes that this plan takes less with it than without it, all else equal; undefined where nobody tried.
 * @typedef {{label: string, kind: number, option: string, bytes: number, traffic: number, dispatches: number, alone: number | undefined, from: number, to: number}} Bar
 */

const LAST = "kernels' scratch";

export class WaterfallView extends ListView {
  /**
   * @param {import("./store.js").Store} store @param {((name: string, value: unknown) => void) | undefined} request
   * @param {(name: string) => void} reveal  shows an option's control
   * @param {((labels: string[]) => void) | undefined} reorder  asks for the changes in another order
   */
  constructor(store, request, reveal, reorder) {
    super(store, { name: "waterfall", title: "Savings" });
    this.request = request;
    this.reveal = reveal;
    this.reorder = reorder;
    this.dragged = -1;
    /** @type {Bar[]} */
    this.bars = [];
  }

  build() {
    const { snap } = this;
    const table = snap.table("savings");
    if (!table) {
      this.bars = [];
      this.note.textContent = "";
      this.content.replaceChildren(el("p", { class: "rlx-blank" },
        this.request ? "Working out what each rule saves… Very large graphs wait until asked: explorer.work_out()." : "This document does not say what each rule saves. rlx-viz report --whatif works it out."));
      return;
    }
    const alone = aloneOf(snap);
    const { label, kind, option, bytes, traffic, dispatches } = table.columns;
    let sum = 0;
    this.bars = Array.from({ length: table.rows }, (_, at) => {
      const from = kind[at] === 1 ? sum : 0;
      sum = kind[at] === 1 ? sum + bytes[at] : bytes[at];
      const name = option[at] === NONE ? "" : snap.string(option[at]);
      return { label: snap.string(label[at]), kind: kind[at], option: name, bytes: bytes[at], traffic: traffic?.[at] ?? 0, dispatches: dispatches?.[at] ?? 0,
        alone: kind[at] === 1 && name ? alone.get(name) : undefined, from, to: sum };
    });
    const start = this.bars.find((bar) => bar.kind === 0);
    const end = this.bars.find((bar) => bar.kind === 2);
    const steps = this.bars.filter((bar) => bar.kind === 1);
    const exact = start && end ? start.bytes + steps.reduce((total, bar) => total + bar.bytes, 0) - end.bytes : 0;
    this.note.textContent = start && end
      ? `${formatBytes(start.bytes)} → ${formatBytes(end.bytes)}${exact ? `, off by ${formatExact(exact)}` : ", sums exactly"}` : "";
    const most = Math.max(1, ...this.bars.map((bar) => Math.max(bar.from, bar.to)));
    const head = el("div", { class: "rlx-fall-row rlx-fall-head" }, el("span", {}, "change"), el("span", {}, ""),
      el("span", { title: "On top of the changes above it; the sum is exact. The order matters: drag a row, or Alt+↑ and Alt+↓." }, "in this order"),
      el("span", { title: "This plan without it, all else equal" }, "alone"),
      el("span", { title: "Intermediate values written in one run" }, "traffic"), el("span", { title: "Commands of one run" }, "dispatches"));
    this.content.replaceChildren(el("div", { class: "rlx-fall-box" }, head, el("ol", { class: "rlx-fall" }, ...this.bars.map((bar, at) => this.row(bar, at, most, start?.bytes ?? 0))),
      el("p", { class: "rlx-hint rlx-fall-hint" }, this.reorder ? "Each row is told on top of those above it: drag rows, or move one with Alt+↑ and Alt+↓, to tell it in another order."
        : "Each row is told on top of those above it; with a kernel rows can be dragged into another order.")));
  }

  /** The option's state in this document. @param {string} name */
  option(name) {
    return (this.snap.meta.options ?? []).find((/** @type {any} */ one) => one.name === name);
  }

  /** Whether a row's place is the reader's to choose. @param {Bar} bar */
  movable(bar) {
    return Boolean(this.reorder && bar.kind === 1 && bar.label !== LAST && bar.label !== "legalised" && bar.label !== "shared weights"
      && !(this.option(bar.option)?.stage === "passes"));
  }

  /** Put one change before or behind another. @param {number} from @param {number} to */
  move(from, to) {
    const rows = this.bars.filter((bar) => this.movable(bar));
    const a = rows.indexOf(this.bars[from]);
    const b = rows.indexOf(this.bars[to]);
    if (a < 0 || b < 0 || a === b) return;
    const labels = rows.map((bar) => bar.label);
    labels.splice(b, 0, ...labels.splice(a, 1));
    this.note.textContent = "working out the other order…";
    this.reorder?.(labels);
  }

  /** @param {Bar} bar @param {number} at @param {number} most @param {number} start */
  row(bar, at, most, start) {
    const low = (Math.min(bar.from, bar.to) / most) * 100;
    const wide = (Math.abs(bar.to - bar.from) / most) * 100;
    const piece = el("i", { class: `rlx-fall-bar ${bar.kind !== 1 ? "rlx-total" : bar.bytes > 0 ? "rlx-more-bytes" : "rlx-less"}`, "aria-hidden": "true" });
    piece.style.left = `${low}%`;
    piece.style.width = `max(${wide}%, ${bar.bytes ? 2 : 0}px)`;
    const option = bar.option ? this.option(bar.option) : undefined;
    const live = Boolean(this.request && option);
    const flag = option?.type === "bool";
    const share = bar.kind === 1 && start ? formatShare(toBig(Math.abs(bar.bytes)), toBig(start)) : "";
    const state = !option ? "" : flag ? (option.value ? "on" : "off") : String(option.value);
    const movable = this.movable(bar);
    const row = el("li", { class: bar.bytes === 0 && !bar.traffic && !bar.dispatches ? "rlx-zero" : null, draggable: movable ? "true" : null }, el("button", {
      type: "button", class: "rlx-fall-row", "data-saving": at, "data-option": bar.option || null, disabled: (bar.option && live) || movable ? null : true,
      title: [bar.label, formatExact(bar.bytes), share ? `${share} of the start` : "", bar.option ? `option ${bar.option}${state ? `, ${state}` : ""}` : "", option?.help ?? "",
        live && flag ? `Click to switch it ${option.value ? "off" : "on"}.` : live ? "Click to choose another value." : bar.option && !this.request ? "Open it with a kernel to switch the option." : ""].filter(Boolean).join("\n"),
      onclick: () => (!live ? undefined : flag ? this.request?.(bar.option, !option.value) : this.reveal(bar.option)),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
        if (!event.altKey || !by || !movable) return;
        event.preventDefault();
        event.stopPropagation();
        this.move(at, at + by);
      },
    },
    el("span", { class: "rlx-fall-name" }, bar.label, live ? el("em", {}, state) : null),
    el("span", { class: "rlx-fall-track" }, piece),
    el("b", {}, bar.kind === 1 ? signedBytes(bar.bytes) : formatBytes(bar.bytes)),
    el("span", { class: "rlx-count", "data-alone": bar.alone ?? null }, bar.kind !== 1 ? "" : bar.alone === undefined ? "–" : signedBytes(-bar.alone)),
    el("span", { class: "rlx-count" }, bar.kind !== 1 ? formatBytes(bar.traffic) : bar.traffic ? signedBytes(bar.traffic) : "–"),
    el("span", { class: "rlx-count" }, bar.kind !== 1 ? formatCount(bar.dispatches) : bar.dispatches ? `${bar.dispatches > 0 ? "+" : "−"}${formatCount(Math.abs(bar.dispatches))}` : "–")));
    if (movable) {
      row.addEventListener("dragstart", (/** @type {DragEvent} */ event) => {
        this.dragged = at;
        event.dataTransfer?.setData("text/plain", bar.label);
      });
      row.addEventListener("dragover", (/** @type {DragEvent} */ event) => {
        if (this.dragged >= 0) event.preventDefault();
      });
      row.addEventListener("drop", (/** @type {DragEvent} */ event) => {
        event.preventDefault();
        const from = this.dragged;
        this.dragged = -1;
        if (from >= 0) this.move(from, at);
      });
    }
    return row;
  }

  describe() {
    if (!this.bars.length) return "savings: not in this document";
    return [`savings: ${this.note.textContent}`, ...this.bars.map((bar) =>
      [["start", "step", "end"][bar.kind], bar.label, bar.bytes, ...(bar.option ? [`option ${bar.option}`] : []), ...(bar.alone === undefined ? [] : [`alone ${-bar.alone}`]),
        ...(bar.traffic ? [`traffic ${bar.traffic}`] : []), ...(bar.dispatches ? [`dispatches ${bar.dispatches}`] : [])].join("  "))].join("\n");
  }
}

/** Bytes that each option in force saves alone: what flipping it would cost. @param {import("./data.js").Snapshot} snap @returns {Map<string, number>} */
function aloneOf(snap) {
  const table = snap.table("counterfactuals");
  const found = new Map();
  for (let at = 0; table && at < table.rows; at += 1) found.set(snap.string(table.columns.option[at]), -table.columns.saved[at]);
  return found;
}

/** @param {number} bytes */
function signedBytes(bytes) {
  return bytes > 0 ? `+${formatBytes(bytes)}` : bytes < 0 ? `−${formatBytes(-bytes)}` : "0 B";
}
