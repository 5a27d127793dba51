// Owns the explorer: puts the views together, the keys, the theme, new plans, and what is kept of a view.

import { ArenaView } from "./arena.js";
import { CommandsView } from "./commands.js";
import { CompareView } from "./compare.js";
import { CachesView } from "./caches.js";
import { attachLegend, Controls, flipWeights } from "./controls.js";
import { DetailsView } from "./details.js";
import { el } from "./dom.js";
import { FusionView, GRAPHS } from "./fusion.js";
import { GanttView } from "./gantt.js";
import { HEATS } from "./heat.js";
import { Help } from "./help.js";
import { flipView, Layout, panelSplitter, PLACES_OF_VIEWS } from "./layout.js";
import { comparisonOf } from "./matching.js";
import { History, KEPT, restoreView, saveView } from "./memory.js";
import { OccupancyView } from "./occupancy.js";
import { OptionsView } from "./options.js";
import { Store } from "./store.js";
import { SummaryView } from "./summary.js";
import { Tooltip } from "./tooltip.js";
import { clampRange } from "./viewport.js";
import { WaterfallView } from "./waterfall.js";

const TWIN_DELAY = 60;
const REST_DELAY = 350;
/** What the text twins state; the rest only changes how pictures look. */
const TWIN_KEYS = ["snap", "sort", "views", "statics", "space", "open", "graph", "collapse", "module", "base", "other", "late"];
/** Wide enough for the fusion graph beside the memory views from the start. */
const WIDE = 1280;

/**
 * One change asked of the planner; see rlx_viz/explorer.
 * @typedef {{option: string, value: unknown} | {preset: string} | {reset: true} | {undo: true} | {redo: true} | {pin: boolean}} PlanRequest
 */

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
 * @property {() => any} [status]  busy, error, progress, progressText, baseline, history, run
 * @property {(request: PlanRequest) => void} [request]
 * @property {(sanitize: boolean) => void} [run]
 * @property {() => import("./data.js").Snapshot | null | Promise<import("./data.js").Snapshot | null>} [other]
 * @property {(listener: () => void) => (() => void)} [onOther]
 * @property {(snap: import("./data.js").Snapshot) => boolean} [late]  adds tables that came later, if there are any for it
 * @property {(listener: () => void) => (() => void)} [onLate]
 * @property {() => any} [savedView]
 * @property {(saved: any) => void} [saveView]
 * @property {(listener: () => void) => (() => void)} [onSavedView]
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
  const history = new History({
    restore: (saved) => restore(restoreView(saved, store.state, usual)),
    plan: (direction) => api.request?.(direction === "undo" ? { undo: true } : { redo: true }),
  });
  const send = api.request && ((/** @type {PlanRequest} */ request) => {
    if (!("pin" in request)) history.planned();
    api.request?.(request);
  });
  const flip = send && ((/** @type {string} */ option, /** @type {unknown} */ value) => send({ option, value }));
  const pin = () => {
    const { state } = store;
    const base = state.base === state.snap ? null : state.snap;
    store.set({ base, open: base && !state.open.includes("compare") ? flipView(state.open, "compare") : state.open });
    api.request?.({ pin: base !== null });
  };
  const help = new Help();
  const controls = new Controls(store, { help: () => help.toggle() });
  const summary = new SummaryView(store);
  const occupancy = new OccupancyView(store, active);
  const gantt = new GanttView(store, active);
  const arena = new ArenaView(store, active);
  const fusion = new FusionView(store, active);
  const commands = new CommandsView(store, api.run);
  const waterfall = new WaterfallView(store, flip, (name) => options.reveal(name));
  const compare = new CompareView(store, active, { pin });
  const caches = new CachesView(store);
  const views = { occupancy, gantt, arena, fusion, commands, waterfall, compare, caches };
  const all = Object.values(views);
  const plots = [occupancy, gantt, arena, fusion, ...compare.plots];
  const details = new DetailsView(store, flip, (node) => showSource(node));
  const options = new OptionsView(store, send);
  const tooltip = new Tooltip(store, root, Object.fromEntries(plots.map((plot) => [plot.name, plot])));
  const legendStop = attachLegend(store, gantt.legend);
  const layout = new Layout(store, Object.fromEntries(all.map((view) => [view.name, view.element])));
  controls.element.insertBefore(layout.bar, controls.element.querySelector(".rlx-search-box"));
  const panel = el("aside", { class: "rlx-panel", "aria-label": "Details" }, options.element, details.element);
  const message = el("div", { class: "rlx-message", role: "status" }, "Loading the plan…");
  const alert = el("div", { class: "rlx-alert", role: "alert", hidden: true });
  const progress = el("div", { class: "rlx-progress", "aria-hidden": "true" }, el("i"));
  const progressText = el("div", { class: "rlx-progress-text", role: "status", hidden: true });
  const spoken = el("div", { class: "rlx-hidden", "aria-live": "polite" });
  root.append(progress, controls.element, alert, summary.element, el("div", { class: "rlx-main" }, layout.element, panelSplitter(store, root, panel), panel),
    message, progressText, tooltip.element, help.element, spoken);
  place.append(root);
  let usual = store.state.open;
  let loaded = false;
  /** A view is being brought back: its selection must not move it. */
  let restoring = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let twinTimer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let restTimer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let spanTimer;

  const stop = store.on((changed, state) => {
    Object.assign(root.dataset, {
      theme: state.theme, rev: state.rev, hover: state.hover, step: state.hoverStep, selected: state.selected,
      matches: state.match ? state.matches : "", space: state.space, text: state.text ? "on" : "off",
      busy: state.busy ? "1" : "0", maximised: state.maximised, moving: state.moving ? "1" : "0",
      zoomX: rangeText(state.x), zoomRows: rangeText(state.rows), zoomOffsets: rangeText(state.offsets),
      zoomGraph: [rangeText(state.graphX), rangeText(state.graphY)].filter(Boolean).join(" "),
      open: state.open, present: state.present ? "on" : "off", heat: state.heat, graph: state.graph, module: state.module,
      source: state.source, command: state.command, sort: state.sort, colour: state.colour,
      pinned: state.base ? (state.base === state.snap ? "this" : "other") : "", compared: comparisonOf(state) ? "1" : "0",
      undo: history.past.length + state.history.undo ? "1" : "0", redo: history.future.length + state.history.redo ? "1" : "0",
      drawn: plots.map((plot) => plot.drawn.toFixed(1)).join(" "),
    });
    alert.hidden = !state.error;
    alert.replaceChildren(el("b", {}, "Not re-planned. "), state.error, " · The picture is the last good plan.");
    const working = state.busy || (state.run?.busy ?? false);
    progressText.hidden = !working || state.progress < 0 || !state.progressText;
    progressText.textContent = state.progressText + (state.progress > 0 ? ` · ${Math.round(state.progress * 100)}%` : "");
    root.dataset.progress = state.progress > 0 ? "known" : "";
    progress.firstElementChild.style.width = `${Math.max(0, state.progress) * 100}%`;
    if (changed.has("maximised") || changed.has("open")) {
      occupancy.axis = state.maximised === "occupancy";
      gantt.axis = state.maximised === "gantt" || !state.open.includes("arena");
    }
    if (changed.has("focus") && state.selected >= 0) focusSelected();
    if (!restoring && (changed.has("selected") || changed.has("reveal")) && state.selected >= 0) revealSelected();
    if (changed.has("selected")) {
      api.select?.(state.selected);
      spoken.textContent = state.snap && state.selected >= 0 ? `selected ${state.snap.text("name", state.selected)}` : "";
    }
    if (TWIN_KEYS.some((key) => changed.has(key))) {
      clearTimeout(twinTimer);
      twinTimer = setTimeout(() => all.forEach((view) => view.writeTwin()), TWIN_DELAY);
    }
    if (changed.has("command")) {
      clearTimeout(spanTimer);
      spanTimer = setTimeout(() => arena.writeTwin(), TWIN_DELAY);
    }
    if (loaded && KEPT.some((key) => changed.has(key))) {
      clearTimeout(restTimer);
      restTimer = setTimeout(rest, REST_DELAY);
    }
  });

  /** @param {any} patch */
  function restore(patch) {
    store.flush();
    restoring = true;
    store.set(patch);
    store.flush();
    restoring = false;
  }

  /** The view came to rest: keep it, and make it a step to come back to. */
  function rest() {
    const saved = saveView(store.state, usual);
    history.note(saved);
    api.saveView?.(saved);
    root.dataset.undo = history.past.length + store.state.history.undo ? "1" : "0";
  }

  const load = async () => {
    try {
      const before = store.state.snap;
      const snap = await api.snapshot();
      let selected = store.state.selected;
      if (before && selected >= 0) {
        const name = before.text("name", selected);
        if (snap.text("name", selected) !== name) selected = snap.rowsByName().get(name) ?? -1;
      } else selected = Math.min(api.selection?.() ?? -1, snap.n - 1);
      api.late?.(snap);
      const command = before === null ? -1 : store.state.command;
      store.set({ snap, rev: api.rev(), selected, hover: -1, hoverSource: -1, hoverGroup: -1, hoverOther: -1, source: -1, command,
        match: null, error: api.status?.().error ?? "", other: (await api.other?.()) ?? null });
      if (!loaded) {
        if (root.clientWidth >= WIDE && (snap.table("layout") || snap.table("groups"))) usual = flipView(usual, "fusion");
        if (snap.table("cache_entries")) usual = flipView(usual, "caches");
        store.set({ open: usual });
        const saved = api.savedView?.();
        if (saved) {
          const patch = restoreView(saved, store.state, usual);
          if (patch.selected < 0) delete patch.selected;
          restore(patch);
        } else if (store.state.other) store.set({ open: flipView(usual, "compare") });
      }
      root.dataset.empty = snap.n ? "0" : "1";
      message.textContent = snap.n ? "" : "This graph has no tensors: there is nothing to place.";
      store.flush();
      store.flush();
      loaded = true;
      history.now ??= saveView(store.state, usual);
      root.dataset.ready = "1";
      if (!snap.n) all.forEach((view) => view.writeTwin());
    } catch (error) {
      root.dataset.ready = "error";
      message.replaceChildren(el("b", {}, "The plan could not be shown. "), /** @type {Error} */ (error).message);
    }
  };

  /** Show a source node in the fusion graph. @param {number} node */
  function showSource(node) {
    const { open } = store.state;
    if (!open.split(" ").includes("fusion")) store.set({ open: flipView(open, "fusion") });
    if (store.state.maximised && store.state.maximised !== "fusion") store.set({ maximised: "" });
    store.set({ source: node });
    store.flush();
    fusion.reveal(node);
  }

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
    const members = fusion.asleep ? [] : fusion.data.membersOf(selected);
    if (members.length) fusion.reveal(members[members.length - 1]);
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

  function openNow() {
    const { maximised, open } = store.state;
    return maximised ? [maximised] : open.includes("gantt") ? ["gantt"] : open.split(" ").filter(Boolean);
  }

  /** @param {"undo" | "redo"} direction */
  function goBack(direction) {
    clearTimeout(restTimer);
    // What has not come to rest yet is a step too.
    if (direction === "undo") history.note(saveView(store.state, usual));
    const went = history.go(direction, store.state.history[direction]);
    spoken.textContent = went ? direction : `nothing to ${direction}`;
    store.flush();
    clearTimeout(restTimer);
    api.saveView?.(saveView(store.state, usual));
  }

  /** The next of a list, the first after the last. @param {string[]} list @param {string} value */
  const after = (list, value) => list[(list.indexOf(value) + 1) % list.length];

  root.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.key === "Escape" && !help.element.open) {
      const open = root.querySelector("details.rlx-remark[open]");
      if (open) open.open = false;
      else if (store.state.selected >= 0 || store.state.source >= 0) store.set({ selected: -1, source: -1, command: -1 });
      else if (store.state.maximised) store.set({ maximised: "" });
      else store.set({ query: "", hidden: new Set() });
      return;
    }
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
    if ((event.ctrlKey || event.metaKey) && !event.altKey && /^[zy]$/i.test(event.key)) {
      event.preventDefault();
      goBack(event.shiftKey || event.key.toLowerCase() === "y" ? "redo" : "undo");
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { state } = store;
    const focused = all.find((view) => view.element.contains(target))?.name ?? openNow()[0] ?? "gantt";
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
      e: () => store.set({ present: !state.present }),
      h: () => store.set({ heat: after(Object.keys(HEATS), state.heat) }),
      g: () => store.set({ graph: after(Object.keys(GRAPHS), state.graph), graphX: null, graphY: null }),
      o: () => { if (!fusion.asleep) fusion.flipFold(); },
      Backspace: () => fusion.leave(),
      b: pin,
      u: () => goBack("undo"),
      U: () => goBack("redo"),
      r: () => goBack("redo"),
    };
    for (const { key, name } of PLACES_OF_VIEWS) keys[key] = () => store.set({ open: flipView(state.open, name), maximised: "" });
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  // A report is the whole page: its keys work before anything has the focus.
  const onPage = (/** @type {KeyboardEvent} */ event) => {
    if (event.target !== document.body) return;
    const { key, ctrlKey, metaKey, altKey, shiftKey } = event;
    const handled = !root.dispatchEvent(new KeyboardEvent("keydown", { key, ctrlKey, metaKey, altKey, shiftKey, cancelable: true }));
    if (handled) event.preventDefault();
  };
  if (api.host === "report") document.addEventListener("keydown", onPage);

  const stops = [
    api.onTheme?.(() => store.set({ theme: api.theme() })),
    api.onDocument?.(load),
    api.onStatus?.(() => store.set(api.status?.() ?? {})),
    api.onSelection?.(() => store.set({ selected: Math.min(api.selection?.() ?? -1, (store.state.snap?.n ?? 0) - 1) })),
    api.onOther?.(async () => {
      const other = (await api.other?.()) ?? null;
      store.set({ other, open: other && !store.state.open.includes("compare") ? flipView(store.state.open, "compare") : store.state.open });
    }),
    api.onLate?.(() => {
      const { snap, late } = store.state;
      if (snap && api.late?.(snap)) store.set({ late: late + 1 });
    }),
    api.onSavedView?.(() => {
      const saved = api.savedView?.();
      if (loaded && saved && JSON.stringify(saved) !== JSON.stringify(saveView(store.state, usual))) restore(restoreView(saved, store.state, usual));
    }),
  ];
  store.set({ theme: api.theme(), ...(api.status?.() ?? {}) });
  root.dataset.theme = api.theme();
  load();

  return () => {
    clearTimeout(twinTimer);
    clearTimeout(restTimer);
    clearTimeout(spanTimer);
    stops.forEach((one) => one?.());
    [...all, details, options, controls, summary, tooltip, layout].forEach((view) => view.close());
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
