// Owns the list of keys and gestures.

import { el } from "./dom.js";

const KEYS = [
  ["drag", "pan"],
  ["wheel", "zoom · Ctrl: steps only · Shift: the other axis only"],
  ["Shift + drag", "zoom to a box: the steps of every view"],
  ["double click, 0", "show everything"],
  ["← → ↑ ↓", "pan · in a list: choose the next · on a splitter: move it"],
  ["+ −", "zoom steps"],
  ["[ ]", "zoom rows, bytes or layers"],
  ["1 … 8", "show or hide a view (8: of a compile cache)"],
  ["m, double click on a title", "fill the space with one view"],
  ["j k", "next, previous tensor"],
  ["f", "zoom to the selected tensor"],
  ["p", "zoom to the peak"],
  ["/", "search · Enter: next match · Shift + Enter: previous"],
  ["v", "views"],
  ["w", "weights"],
  ["h", "arena: slots, then each heat"],
  ["g", "fusion: side by side, overlaid, fused only"],
  ["o", "fusion: fold into modules, or unfold"],
  ["Enter", "fusion: look inside the module pointed at, or the selection's"],
  ["Backspace", "fusion: leave a module"],
  ["b", "pin this plan as the baseline, or unpin"],
  ["u, Ctrl + Z", "undo"],
  ["r, Ctrl + Shift + Z", "redo"],
  ["t", "text"],
  ["e", "larger type, for a room"],
  ["d", "light or dark"],
  ["Escape", "close a message, clear"],
  ["?", "this list"],
];

export class Help {
  constructor() {
    const list = el("dl", { class: "rlx-pairs rlx-keys" });
    for (const [key, what] of KEYS) list.append(el("dt", {}, el("kbd", {}, key)), el("dd", {}, what));
    this.element = el("dialog", { class: "rlx-help", "aria-label": "Keys" },
      el("h2", {}, "Keys", el("button", { type: "button", class: "rlx-icon", "aria-label": "Close", onclick: () => this.element.close() }, "×")), list,
      el("p", { class: "rlx-hint" }, "Search: conv, /conv_\\d+/, op:matmul, dtype:f16, kind:view, rule:outputs, module:encoder, source:layer1, size>1MiB, life>10, step:42; words combine, − excludes."));
    this.element.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      if (event.target === this.element) this.element.close();
    });
  }

  toggle() {
    if (this.element.open) this.element.close();
    else this.element.showModal();
  }
}
