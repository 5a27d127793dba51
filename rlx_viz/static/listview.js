// Owns what the views made of elements share: heading, text twin, and lists that only make the rows in sight.

import { el } from "./dom.js";
import { isOpen } from "./store.js";

export class ListView {
  /** @param {import("./store.js").Store} store @param {{name: string, title: string}} options */
  constructor(store, options) {
    this.store = store;
    this.name = options.name;
    this.title = options.title;
    this.drawn = 0;
    this.axis = false;
    this.stale = true;
    /** Below this width the header takes two lines. */
    this.slimBelow = 560;
    this.note = el("span", { class: "rlx-note" });
    this.tools = el("span", { class: "rlx-view-tools" });
    this.grow = el("button", {
      class: "rlx-icon", type: "button", title: `Fill the space with ${options.title}`,
      "aria-label": `Maximise ${options.title}`, "aria-pressed": "false",
      onclick: () => store.set({ maximised: store.state.maximised === this.name ? "" : this.name }),
    }, "⤢");
    this.heading = el("h2", { title: "Double click to fill the space (m)", ondblclick: () => this.grow.click() }, options.title);
    this.content = el("div", { class: "rlx-list-body" });
    this.twin = el("pre", { class: "rlx-twin", "data-twin": options.name, "aria-label": `${options.title} as text` });
    this.body = el("div", { class: "rlx-plot rlx-list" }, this.content, this.twin);
    this.element = el("section", { class: `rlx-view rlx-view-${options.name}`, "aria-label": options.title, "data-view": options.name },
      el("header", {}, this.heading, this.note, this.tools, this.grow), this.body);
    this.resizing = new ResizeObserver(() => this.element.classList.toggle("rlx-slim", this.body.clientWidth < this.slimBelow));
    this.resizing.observe(this.body);
    this.stop = store.on((changed) => this.update(changed));
  }

  /** State keys that change the content. @returns {string[]} */
  get inputs() { return ["snap", "late"]; }
  build() {}
  /** @param {Set<string>} _changed */
  mark(_changed) {}
  describe() { return ""; }

  get state() { return this.store.state; }
  get snap() { return /** @type {import("./data.js").Snapshot} */ (this.store.state.snap); }
  get asleep() { return !isOpen(this.state, this.name); }

  /** @param {Set<string>} changed */
  update(changed) {
    if (!this.snap) return;
    if (this.inputs.some((key) => changed.has(key))) this.stale = true;
    if (changed.has("maximised")) this.grow.setAttribute("aria-pressed", String(this.state.maximised === this.name));
    if (this.asleep) return;
    const fresh = this.stale;
    if (fresh) {
      this.stale = false;
      this.build();
      this.writeTwin();
    }
    this.mark(fresh ? new Set([...changed, "selected", "command", "hover"]) : changed);
  }

  writeTwin() {
    this.twin.textContent = this.snap && !this.asleep ? this.describe() : "";
  }

  close() {
    this.resizing.disconnect();
    this.stop();
  }
}

/**
 * Where a key leads in a list, -1 for a key that does nothing there; the key goes no further.
 * @param {KeyboardEvent} event @param {number} at  -1 for nowhere yet @param {number} count
 */
export function stepInList(event, at, count) {
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity }[event.key];
  if (by === undefined || !count || event.ctrlKey || event.metaKey || event.altKey) return -1;
  event.preventDefault();
  event.stopPropagation();
  return Math.min(count - 1, Math.max(0, (at < 0 && by > 0 ? -1 : Math.max(at, 0)) + by));
}

/** A list of rows of one height, of which only those in sight exist. */
export class LongList {
  /** @param {{label: string, height: () => number, row: (index: number) => HTMLElement, move?: (index: number) => void}} options */
  constructor(options) {
    this.options = options;
    this.count = 0;
    this.first = -1;
    this.last = -1;
    this.sheet = el("div", { class: "rlx-sheet" });
    this.element = el("div", { class: "rlx-scroll", tabindex: 0, role: "listbox", "aria-label": options.label }, this.sheet);
    this.element.addEventListener("scroll", () => this.fill());
    this.resizing = new ResizeObserver(() => this.fill(true));
    this.resizing.observe(this.element);
  }

  /** @param {number} count */
  show(count) {
    this.count = count;
    this.element.setAttribute("aria-rowcount", String(count));
    this.fill(true);
  }

  /** Make the rows in sight. @param {boolean} [again] also those that exist */
  fill(again = false) {
    const height = this.options.height();
    this.sheet.style.height = `${this.count * height}px`;
    const first = Math.max(0, Math.floor(this.element.scrollTop / height) - 4);
    const last = Math.min(this.count, Math.ceil((this.element.scrollTop + this.element.clientHeight) / height) + 4);
    if (!again && first === this.first && last === this.last) return;
    this.first = first;
    this.last = last;
    const rows = [];
    for (let index = first; index < last; index++) {
      const row = this.options.row(index);
      row.style.top = `${index * height}px`;
      row.style.height = `${height}px`;
      rows.push(row);
    }
    this.sheet.replaceChildren(...rows);
  }

  /** Scroll, no further than needed, until a row is in sight. @param {number} index */
  reveal(index) {
    const height = this.options.height();
    const top = index * height;
    const { scrollTop, clientHeight } = this.element;
    if (top >= scrollTop && top + height <= scrollTop + clientHeight) return;
    this.element.scrollTop = Math.max(0, top - clientHeight / 2);
    this.fill();
  }

  close() {
    this.resizing.disconnect();
  }
}
