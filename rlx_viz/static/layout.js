// Owns where the views stand: two columns of open views, splitters between them, and the bar that opens them.

import { el } from "./dom.js";

/** @typedef {{name: string, title: string, key: string, column: 0 | 1}} Place */

/** @type {Place[]} */
export const PLACES_OF_VIEWS = [
  { name: "occupancy", title: "Occupancy", key: "1", column: 0 },
  { name: "gantt", title: "Live ranges", key: "2", column: 0 },
  { name: "arena", title: "Arena", key: "3", column: 0 },
  { name: "fusion", title: "Fusion", key: "4", column: 1 },
  { name: "commands", title: "Commands", key: "5", column: 1 },
  { name: "waterfall", title: "Savings", key: "6", column: 1 },
  { name: "compare", title: "Compare", key: "7", column: 1 },
  { name: "caches", title: "Cache", key: "8", column: 1 },
];

/** Share of a part that nobody resized. */
const EVEN = 50;

/** Names of the open views, in their order. @param {string} open */
export function openViews(open) {
  const names = open.split(" ");
  return PLACES_OF_VIEWS.filter((place) => names.includes(place.name)).map((place) => place.name);
}

/** @param {string} open @param {string} name */
export function flipView(open, name) {
  const names = openViews(open);
  const next = names.includes(name) ? names.filter((one) => one !== name) : [...names, name];
  return openViews(next.join(" ")).join(" ");
}

export class Layout {
  /** @param {import("./store.js").Store} store @param {Record<string, HTMLElement>} elements */
  constructor(store, elements) {
    this.store = store;
    this.elements = elements;
    this.columns = [el("div", { class: "rlx-views" }), el("div", { class: "rlx-views" })];
    this.middle = splitter(store, "Width of the memory views against the others", false,
      { name: "memory", element: this.columns[0] }, { name: "others", element: this.columns[1] });
    this.element = el("div", { class: "rlx-stage" }, this.columns[0], this.middle, this.columns[1]);
    this.tabs = PLACES_OF_VIEWS.map((place) => el("button", {
      type: "button", class: "rlx-toggle", "data-open": place.name, "aria-pressed": "false", title: `Show or hide ${place.title} (${place.key})`,
      onclick: () => store.set({ open: flipView(store.state.open, place.name), maximised: "" }),
    }, place.title));
    this.bar = el("nav", { class: "rlx-tabs", "aria-label": "Views" }, ...this.tabs);
    this.blank = el("p", { class: "rlx-blank rlx-no-views" }, "All views are closed. Open one above, or press 1 to 8.");
    this.element.append(this.blank);
    this.shown = "";
    this.stop = store.on((changed) => {
      if (changed.has("open") || changed.has("maximised")) this.arrange();
      if (changed.has("sizes")) this.share();
      if (changed.has("snap")) this.offer();
    });
    this.arrange();
  }

  /** A model's document has no cache to show. */
  offer() {
    const { snap } = this.store.state;
    for (const tab of this.tabs) if (tab.dataset.open === "caches") tab.hidden = !snap?.table("cache_entries");
  }

  /** Give every part its share of the space. */
  share() {
    const sizes = sizesOf(this.store.state.sizes);
    const parts = { memory: this.columns[0], others: this.columns[1], ...this.elements };
    // Occupancy keeps its height.
    for (const [name, element] of Object.entries(parts)) element.style.flexGrow = name === "occupancy" ? "0" : String(sizes.get(name) ?? EVEN);
    for (const bar of this.element.querySelectorAll("[data-share]")) {
      const [a, b] = String(bar.dataset.share).split(" ").map((name) => sizes.get(name) ?? EVEN);
      bar.setAttribute("aria-valuenow", String(Math.round((a * 100) / (a + b))));
    }
  }

  arrange() {
    const { open, maximised } = this.store.state;
    const names = maximised ? [maximised] : openViews(open);
    for (const tab of this.tabs) tab.setAttribute("aria-pressed", String(openViews(open).includes(String(tab.dataset.open))));
    const shown = names.join(" ");
    if (shown === this.shown && this.columns[0].isConnected) return;
    this.shown = shown;
    this.columns.forEach((column, at) => {
      const here = PLACES_OF_VIEWS.filter((place) => place.column === at && names.includes(place.name))
        .map((place) => ({ name: place.name, element: this.elements[place.name] }));
      column.hidden = here.length === 0;
      /** @type {HTMLElement[]} */
      const children = [];
      here.forEach((view, k) => {
        // Occupancy keeps its height: no handle after it.
        if (k > 0 && here[k - 1].name !== "occupancy") {
          children.push(splitter(this.store, `Height of ${title(here[k - 1].element)} against ${title(view.element)}`, true, here[k - 1], view));
        }
        children.push(view.element);
      });
      // Moved only when the set changes: moving an element takes its focus.
      const focused = document.activeElement;
      column.replaceChildren(...children);
      if (focused instanceof HTMLElement && column.contains(focused)) focused.focus();
    });
    this.share();
    this.middle.hidden = this.columns.some((column) => column.hidden);
    this.blank.hidden = names.length > 0;
  }

  close() {
    this.stop();
  }
}

/** @param {HTMLElement} view */
function title(view) {
  return view.getAttribute("aria-label") ?? "";
}

/** Where handles were put, by name: shares of the stage, pixels of the panel. @param {string} sizes @returns {Map<string, number>} */
export function sizesOf(sizes) {
  /** @type {Map<string, number>} */
  const found = new Map();
  for (const part of sizes.split(" ")) {
    const [name, value] = part.split(":");
    if (name && Number.isFinite(Number(value)) && Number(value) > 0) found.set(name, Number(value));
  }
  return found;
}

/** @param {string} sizes @param {Record<string, number | null>} changes  null: as at first @returns {string} */
function resized(sizes, changes) {
  const found = sizesOf(sizes);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) found.delete(name);
    else found.set(name, Math.round(value * 10) / 10);
  }
  return [...found].sort().map(([name, value]) => `${name}:${value}`).join(" ");
}

/** @typedef {{name: string, element: HTMLElement}} Side */

/**
 * A handle that shares the space of two neighbours; arrows move it, a double click evens them.
 * @param {import("./store.js").Store} store @param {string} label @param {boolean} rows @param {Side} before @param {Side} after
 */
function splitter(store, label, rows, before, after) {
  const bar = el("div", {
    class: `rlx-splitter ${rows ? "rlx-row-splitter" : "rlx-column-splitter"}`, role: "separator", tabindex: 0,
    "aria-orientation": rows ? "horizontal" : "vertical", "aria-label": label, "aria-valuemin": 10, "aria-valuemax": 90,
  });
  const weight = (/** @type {Side} */ side) => sizesOf(store.state.sizes).get(side.name) ?? EVEN;
  const share = () => (weight(before) * 100) / (weight(before) + weight(after));
  const set = (/** @type {number} */ value) => {
    const total = weight(before) + weight(after);
    const kept = Math.min(90, Math.max(10, value));
    store.set({ sizes: resized(store.state.sizes, { [before.name]: (total * kept) / 100, [after.name]: (total * (100 - kept)) / 100 }) });
  };
  bar.dataset.share = `${before.name} ${after.name}`;
  bar.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => bar.setPointerCapture(event.pointerId));
  bar.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (!bar.hasPointerCapture(event.pointerId)) return;
    const a = before.element.getBoundingClientRect();
    const b = after.element.getBoundingClientRect();
    set(rows ? ((event.clientY - a.top) / (b.bottom - a.top)) * 100 : ((event.clientX - a.left) / (b.right - a.left)) * 100);
  });
  bar.addEventListener("dblclick", () => set(50));
  bar.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const [less, more] = rows ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
    if (event.key !== less && event.key !== more) return;
    event.preventDefault();
    event.stopPropagation();
    set(share() + (event.key === less ? -4 : 4));
  });
  return bar;
}

/** A handle that sets the side panel's width. @param {import("./store.js").Store} store @param {HTMLElement} root @param {HTMLElement} panel */
export function panelSplitter(store, root, panel) {
  const bar = el("div", {
    class: "rlx-splitter rlx-column-splitter", role: "separator", tabindex: 0, "aria-orientation": "vertical",
    "aria-label": "Width of the details", "aria-valuemin": 160, "aria-valuemax": 700, "aria-valuenow": 292,
  });
  const set = (/** @type {number} */ width) => store.set({
    sizes: resized(store.state.sizes, { panel: Math.round(Math.min(Math.max(160, root.clientWidth * 0.6), Math.max(160, width))) }),
  });
  store.on((changed, state) => {
    if (!changed.has("sizes")) return;
    const width = sizesOf(state.sizes).get("panel");
    if (width === undefined) root.style.removeProperty("--panel");
    else root.style.setProperty("--panel", `${width}px`);
    bar.setAttribute("aria-valuenow", String(width ?? 292));
  });
  bar.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => bar.setPointerCapture(event.pointerId));
  bar.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (bar.hasPointerCapture(event.pointerId)) set(panel.getBoundingClientRect().right - event.clientX);
  });
  bar.addEventListener("dblclick", () => store.set({ sizes: resized(store.state.sizes, { panel: null }) }));
  bar.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    event.stopPropagation();
    const now = sizesOf(store.state.sizes).get("panel") ?? panel.getBoundingClientRect().width; // the picture may be a frame behind
    set(now + (event.key === "ArrowLeft" ? 20 : -20));
  });
  return bar;
}
