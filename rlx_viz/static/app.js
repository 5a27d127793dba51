// Owns the explorer: puts the views together, the keys, the splitter, the theme, and new plans.

import { ArenaView } from "./arena.js";
import { attachLegend, Controls, flipWeights } from "./controls.js";
import { DetailsView } from "./details.js";
import { el } from "./dom.js";
import { GanttView } from "./gantt.js";
import { Help } from "./help.js";
import { OccupancyView } from "./occupancy.js";
import { OptionsView } from "./options.js";
import { Store } from "./store.js";
import { SummaryView } from "./summary.js";
import { Tooltip } from "./tooltip.js";
import { clampRange } from "./viewport.js";

const TWIN_DELAY = 60;
/** What the text twins state; the rest only changes how pictures look. */
const TWIN_KEYS = ["snap", "sort", "views", "statics", "space"];

/**
 * What the explorer asks of the page around it.
 * @typedef {object} Api
 * @property {"report" | "jupyter"} host
 * @property {() => import("./data.js").Snapshot | Promise<import("./data.js").Snapshot>} snapshot
 * @property {() => number} rev
 * @property {() => "light" | "dark"} theme
 * @property {(listener: () => void) => (() => void)} [onTheme]
 * @property {(listener: () => void) => (() => void)} [onDocument]
 * @property {(listener: () => void) => (() => void)} [onStatus]
 * @property {() => {busy: boolean, error: string}} [status]
 * @property {(name: string, value: unknown) => void} [request]
 * @property {() => number} [selection]
 * @property {(row: number) => void} [select]
 * @property {(listener: () => void) => (() => void)} [onSelection]
 */

/**
 * Put the explorer into `place`; returns what takes it down again.
 * @param {HTMLElement} place @param {Api} api @returns {() => void}
 */
export function mount(place, api) {
  const store = new Store();
  const root = el("div", { class: "rlx-viz", "data-host": api.host, "data-ready": "0", "data-lm-suppress-shortcuts": "true" });
  const active = () => api.host === "report" || root.contains(document.activeElement);
  const help = new Help();
  const controls = new Controls(store, { help: () => help.toggle() });
  const summary = new SummaryView(store);
  const occupancy = new OccupancyView(store, active);
  const gantt = new GanttView(store, active);
  const arena = new ArenaView(store, active);
  const plots = [occupancy, gantt, arena];
  const details = new DetailsView(store);
  const options = new OptionsView(store, api.request);
  const tooltip = new Tooltip(store, root, { occupancy, gantt, arena });
  const legendStop = attachLegend(store, gantt.legend);
  const views = el("div", { class: "rlx-views" }, occupancy.element, gantt.element, makeSplitter(), arena.element);
  const panel = el("aside", { class: "rlx-panel", "aria-label": "Details" }, options.element, details.element);
  const message = el("div", { class: "rlx-message", role: "status" }, "Loading the plan…");
  const alert = el("div", { class: "rlx-alert", role: "alert", hidden: true });
  const progress = el("div", { class: "rlx-progress", "aria-hidden": "true" });
  const spoken = el("div", { class: "rlx-hidden", "aria-live": "polite" });
  root.append(progress, controls.element, alert, summary.element, el("div", { class: "rlx-main" }, views, panel),
    message, tooltip.element, help.element, spoken);
  place.append(root);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let twinTimer;

  const stop = store.on((changed, state) => {
    Object.assign(root.dataset, {
      theme: state.theme, rev: state.rev, hover: state.hover, step: state.hoverStep, selected: state.selected,
      matches: state.match ? state.matches : "", space: state.space, text: state.text ? "on" : "off",
      busy: state.busy ? "1" : "0", maximised: state.maximised, moving: state.moving ? "1" : "0",
      zoomX: rangeText(state.x), zoomRows: rangeText(state.rows), zoomOffsets: rangeText(state.offsets),
      drawn: plots.map((plot) => plot.drawn.toFixed(1)).join(" "),
    });
    alert.hidden = !state.error;
    alert.replaceChildren(el("b", {}, "Not re-planned. "), state.error, " · The picture is the last good plan.");
    if (changed.has("maximised")) {
      occupancy.axis = state.maximised === "occupancy";
      gantt.axis = state.maximised === "gantt";
    }
    if (changed.has("focus") && state.selected >= 0) focusSelected();
    if ((changed.has("selected") || changed.has("reveal")) && state.selected >= 0) revealSelected();
    if (changed.has("selected")) {
      api.select?.(state.selected);
      spoken.textContent = state.snap && state.selected >= 0 ? `selected ${state.snap.text("name", state.selected)}` : "";
    }
    if (TWIN_KEYS.some((key) => changed.has(key))) {
      clearTimeout(twinTimer);
      twinTimer = setTimeout(() => plots.forEach((plot) => plot.writeTwin()), TWIN_DELAY);
    }
  });

  const load = async () => {
    try {
      const before = store.state.snap;
      const snap = await api.snapshot();
      let selected = store.state.selected;
      if (before && selected >= 0) {
        const name = before.text("name", selected);
        if (snap.text("name", selected) !== name) selected = snap.rowsByName().get(name) ?? -1;
      } else selected = Math.min(api.selection?.() ?? -1, snap.n - 1);
      store.set({ snap, rev: api.rev(), selected, hover: -1, match: null, error: api.status?.().error ?? "" });
      root.dataset.empty = snap.n ? "0" : "1";
      message.textContent = snap.n ? "" : "This graph has no tensors: there is nothing to place.";
      store.flush();
      store.flush();
      root.dataset.ready = "1";
      if (!snap.n) plots.forEach((plot) => plot.writeTwin());
    } catch (error) {
      root.dataset.ready = "error";
      message.replaceChildren(el("b", {}, "The plan could not be shown. "), /** @type {Error} */ (error).message);
    }
  };

  /** Zoom every view to the selected tensor. */
  function focusSelected() {
    const { snap, selected } = store.state;
    if (!snap) return;
    const { birth, death, offset, size, root: roots } = snap.t;
    const slot = size[selected] > 0 ? selected : roots[selected];
    const pad = Math.max(4, (death[selected] - birth[selected]) * 0.6);
    const row = gantt.rowOf[selected] ?? -1;
    const room = Math.max(size[slot] * 1.5, 256);
    store.set({
      x: clampRange([birth[selected] - pad, death[selected] + 1 + pad], [0, snap.steps]),
      rows: row < 0 ? store.state.rows : clampRange([row - 8, row + 9], gantt.fullY()),
      offsets: size[slot] > 0 ? clampRange([offset[slot] - room, offset[slot] + size[slot] + room], arena.fullY()) : store.state.offsets,
    });
  }

  /** Pan, without zooming, until the selected tensor is inside each view. */
  function revealSelected() {
    const { snap, selected, x, rows, offsets } = store.state;
    if (!snap) return;
    const { birth, death, offset, size, root: roots } = snap.t;
    const row = gantt.rowOf[selected] ?? -1;
    const slot = size[selected] > 0 ? selected : roots[selected];
    store.set({
      x: x && bringInside(x, birth[selected], death[selected] + 1, [0, snap.steps]),
      rows: rows && row >= 0 ? bringInside(rows, row, row + 1, gantt.fullY()) : rows,
      offsets: offsets && size[slot] > 0 ? bringInside(offsets, offset[slot], offset[slot] + size[slot], arena.fullY()) : offsets,
    });
  }

  /** @param {number} direction */
  function stepSelection(direction) {
    const { order, rowOf } = gantt;
    if (!order.length) return;
    const at = store.state.selected >= 0 ? rowOf[store.state.selected] : direction > 0 ? -1 : order.length;
    const next = Math.min(Math.max(at + direction, 0), order.length - 1);
    store.set({ selected: order[next], reveal: store.state.reveal + 1 });
  }

  function makeSplitter() {
    let share = 50;
    const bar = el("div", {
      class: "rlx-splitter", role: "separator", tabindex: 0, "aria-orientation": "horizontal",
      "aria-label": "Height of live ranges against arena", "aria-valuemin": 15, "aria-valuemax": 85, "aria-valuenow": share,
    });
    const set = (/** @type {number} */ value) => {
      share = Math.min(85, Math.max(15, value));
      bar.setAttribute("aria-valuenow", String(Math.round(share)));
      gantt.element.style.flexGrow = String(share);
      arena.element.style.flexGrow = String(100 - share);
    };
    bar.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => bar.setPointerCapture(event.pointerId));
    bar.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      if (!bar.hasPointerCapture(event.pointerId)) return;
      const top = gantt.element.getBoundingClientRect().top;
      const bottom = arena.element.getBoundingClientRect().bottom;
      set(((event.clientY - top) / (bottom - top)) * 100);
    });
    bar.addEventListener("dblclick", () => set(50));
    bar.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
      event.preventDefault();
      set(share + (event.key === "ArrowUp" ? -4 : 4));
    });
    return bar;
  }

  root.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.key === "Escape" && !help.element.open) {
      if (store.state.selected >= 0) store.set({ selected: -1 });
      else if (store.state.maximised) store.set({ maximised: "" });
      else store.set({ query: "", hidden: new Set() });
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
    const { state } = store;
    const focused = plots.find((plot) => plot.element.contains(target))?.name ?? "gantt";
    /** @type {Record<string, () => void>} */
    const keys = {
      "?": () => help.toggle(),
      "/": () => controls.search.focus(),
      j: () => stepSelection(1),
      k: () => stepSelection(-1),
      f: () => store.set({ focus: state.focus + 1 }),
      p: () => summary.content.querySelector('[data-fact="peak"] button')?.click(),
      v: () => controls.views.click(),
      w: () => flipWeights(store),
      t: () => controls.text.click(),
      d: () => controls.theme.click(),
      m: () => store.set({ maximised: state.maximised ? "" : focused }),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  // A report is the whole page: its keys work before anything has the focus.
  const onPage = (/** @type {KeyboardEvent} */ event) => {
    if (event.target !== document.body) return;
    const { key, ctrlKey, metaKey, altKey } = event;
    const handled = !root.dispatchEvent(new KeyboardEvent("keydown", { key, ctrlKey, metaKey, altKey, cancelable: true }));
    if (handled) event.preventDefault();
  };
  if (api.host === "report") document.addEventListener("keydown", onPage);

  const stops = [
    api.onTheme?.(() => store.set({ theme: api.theme() })),
    api.onDocument?.(load),
    api.onStatus?.(() => store.set(api.status?.() ?? {})),
    api.onSelection?.(() => store.set({ selected: api.selection?.() ?? -1 })),
  ];
  store.set({ theme: api.theme() });
  root.dataset.theme = api.theme();
  load();

  return () => {
    clearTimeout(twinTimer);
    stops.forEach((one) => one?.());
    [...plots, details, options, controls, summary, tooltip].forEach((view) => view.close());
    legendStop();
    stop();
    store.close();
    document.removeEventListener("keydown", onPage);
    root.remove();
  };
}

/** @param {[number, number] | null} range */
function rangeText(range) {
  return range ? range.map((value) => Number(value.toFixed(2))).join("..") : "";
}

/** @param {[number, number]} range @param {number} low @param {number} high @param {[number, number]} full */
function bringInside(range, low, high, full) {
  if (low < range[1] && high > range[0] && (low >= range[0] || high <= range[1])) return range;
  const span = range[1] - range[0];
  const middle = (low + high) / 2;
  return clampRange([middle - span / 2, middle + span / 2], full);
}
