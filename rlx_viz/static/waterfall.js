// Owns the savings waterfall: from nothing reused to the number to allocate, one bar a rule, summing exactly.

import { NONE } from "./data.js";
import { el } from "./dom.js";
import { formatBytes, formatExact, formatShare, toBig } from "./format.js";
import { ListView } from "./listview.js";

/** @typedef {{label: string, kind: number, option: string, bytes: number, from: number, to: number}} Bar */

export class WaterfallView extends ListView {
  /**
   * @param {import("./store.js").Store} store @param {((name: string, value: unknown) => void) | undefined} request
   * @param {(name: string) => void} reveal  shows an option's control
   */
  constructor(store, request, reveal) {
    super(store, { name: "waterfall", title: "Savings" });
    this.request = request;
    this.reveal = reveal;
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
    const { label, kind, option, bytes } = table.columns;
    let sum = 0;
    this.bars = Array.from({ length: table.rows }, (_, at) => {
      const from = kind[at] === 1 ? sum : 0;
      sum = kind[at] === 1 ? sum + bytes[at] : bytes[at];
      return { label: snap.string(label[at]), kind: kind[at], option: option[at] === NONE ? "" : snap.string(option[at]), bytes: bytes[at], from, to: sum };
    });
    const start = this.bars.find((bar) => bar.kind === 0);
    const end = this.bars.find((bar) => bar.kind === 2);
    const steps = this.bars.filter((bar) => bar.kind === 1);
    const exact = start && end ? start.bytes + steps.reduce((total, bar) => total + bar.bytes, 0) - end.bytes : 0;
    this.note.textContent = start && end
      ? `${formatBytes(start.bytes)} → ${formatBytes(end.bytes)}${exact ? `, off by ${formatExact(exact)}` : ", sums exactly"}` : "";
    const most = Math.max(1, ...this.bars.map((bar) => Math.max(bar.from, bar.to)));
    this.content.replaceChildren(el("ol", { class: "rlx-fall" }, ...this.bars.map((bar, at) => this.row(bar, at, most, start?.bytes ?? 0))));
  }

  /** The option's state in this document. @param {string} name */
  option(name) {
    return (this.snap.meta.options ?? []).find((/** @type {any} */ one) => one.name === name);
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
    const text = bar.kind === 1 && bar.bytes > 0 ? `+${formatBytes(bar.bytes)}` : formatBytes(bar.bytes);
    const share = bar.kind === 1 && start ? formatShare(toBig(Math.abs(bar.bytes)), toBig(start)) : "";
    const state = !option ? "" : flag ? (option.value ? "on" : "off") : String(option.value);
    return el("li", { class: bar.bytes === 0 ? "rlx-zero" : null }, el("button", {
      type: "button", class: "rlx-fall-row", "data-saving": at, "data-option": bar.option || null, disabled: bar.option && live ? null : true,
      title: [bar.label, formatExact(bar.bytes), bar.option ? `option ${bar.option}${state ? `, ${state}` : ""}` : "", option?.help ?? "",
        live && flag ? `Click to switch it ${option.value ? "off" : "on"}.` : live ? "Click to choose another value." : bar.option && !this.request ? "Open it with a kernel to switch the option." : ""].filter(Boolean).join("\n"),
      onclick: () => (flag ? this.request?.(bar.option, !option.value) : this.reveal(bar.option)),
    },
    el("span", { class: "rlx-fall-name" }, bar.label, live ? el("em", {}, state) : null),
    el("span", { class: "rlx-fall-track" }, piece),
    el("b", {}, text), el("span", { class: "rlx-count" }, share)));
  }

  describe() {
    if (!this.bars.length) return "savings: not in this document";
    return [`savings: ${this.note.textContent}`, ...this.bars.map((bar) =>
      `${["start", "step", "end"][bar.kind]}  ${bar.label}  ${bar.bytes}${bar.option ? `  option ${bar.option}` : ""}`)].join("\n");
  }
}
