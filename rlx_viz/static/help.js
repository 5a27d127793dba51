// Owns the list of keys and gestures.

import { el } from "./dom.js";

const KEYS = [
  ["drag", "pan"],
  ["wheel", "zoom · Ctrl: steps only · Shift: the other axis only"],
  ["Shift + drag", "zoom to a box"],
  ["double click, 0", "show everything"],
  ["← → ↑ ↓", "pan"],
  ["+ −", "zoom steps"],
  ["[ ]", "zoom rows or bytes"],
  ["j k", "next, previous tensor"],
  ["f", "zoom to the selected tensor"],
  ["p", "zoom to the peak"],
  ["/", "search · Enter: next match"],
  ["v", "views"],
  ["w", "weights"],
  ["t", "text"],
  ["d", "light or dark"],
  ["m", "fill the space with one view"],
  ["Escape", "clear"],
  ["?", "this list"],
];

export class Help {
  constructor() {
    const list = el("dl", { class: "rlx-pairs" });
    for (const [key, what] of KEYS) list.append(el("dt", {}, el("kbd", {}, key)), el("dd", {}, what));
    this.element = el("dialog", { class: "rlx-help", "aria-label": "Keys" },
      el("h2", {}, "Keys", el("button", { type: "button", class: "rlx-icon", "aria-label": "Close", onclick: () => this.element.close() }, "×")), list,
      el("p", { class: "rlx-hint" }, "Search: conv, /conv_\\d+/, op:matmul, dtype:f16, kind:view, rule:outputs, source:layer1, size>1MiB, life>10, step:42; words combine, − excludes."));
    this.element.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      if (event.target === this.element) this.element.close();
    });
  }

  toggle() {
    if (this.element.open) this.element.close();
    else this.element.showModal();
  }
}
