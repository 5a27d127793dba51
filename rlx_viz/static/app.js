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
import { hiddenNames, hiddenOf, History, KEPT, restoreView, saveView } from "./memory.js";
import { OccupancyView } from "./occupancy.js";
import { OptionsView } from "./options.js";
import { Store } from "./store.js";
import { SummaryView } from "./summary.js";
import { Tooltip } from "./tooltip.js";
import { clampRange, moveByKey } from "./viewport.js";
import { WaterfallView } from "./waterfall.js";

const TWIN_DELAY = 60;
const REST_DELAY = 350;
/** What the text twins state; the rest only changes how pictures look. */
const TWIN_KEYS = ["snap", "sort", "views", "statics", "space", "open", "graph", "collapse", "module", "base", "other", "late", "maximised"];
/** With Ctrl or Cmd these would still work on a notebook's cells: run, move, choose all, undo. */
const CELL_KEYS = /^(Enter|Arrow\w+|Home|End|[ayz])$/i;
const MODIFIERS = ["Shift", "Control", "Alt", "Meta"];
/** Wide enough for the fusion graph beside the memory views from the start. */
const WIDE = 1280;

/**
 * One change asked of the planner; see rlx_viz/explorer.
 * @typedef {{option: string, value: unknown} | {preset: string} | {reset: true} | {undo: true} | {redo: true} | {pin: boolean} | {order: string[]}} PlanRequest
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
 * @property {() => boolean} [pending]  a request was not answered yet
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
  const root = el("div", { class: "rlx-viz", "data-host": api.host, "data-ready": "0",
    // A click on what has no keys of its own stays here: in a notebook the keys would go to its cells.
    tabindex: api.host === "jupyter" ? -1 : null });
  const active = () => api.host === "report" || root.contains(document.activeElement);
  const history = new History({
    restore: (saved) => restore(restoreView(saved, store.state, usual)),
    plan: (direction) => api.request?.(direction === "undo" ? { undo: true } : { redo: true }),
  });
  const send = api.request && ((/** @type {PlanRequest} */ request) => {
    if (loaded) history.note(saveView(store.state, usual)); // what has not come to rest yet is the step before
    history.asked = "";
    sentAt = history.past.length;
    api.request?.(request);
  });
  const flip = send && ((/** @type {string} */ option, /** @type {unknown} */ value) => send({ option, value }));
  const reorder = api.request && ((/** @type {string[]} */ labels) => api.request?.({ order: labels }));
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
  const waterfall = new WaterfallView(store, flip, (name) => options.reveal(name), reorder);
  const compare = new CompareView(store, active, { pin });
  const caches = new CachesView(store);
  const views = { occupancy, gantt, arena, fusion, commands, waterfall, compare, caches };
  const all = Object.values(views);
  /** @type {import("./plot.js").Plot[]} */
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
  /** @type {import("./memory.js").Usual} */
  const usual = { open: store.state.open, theme: api.theme() };
  let loaded = false;
  /** Steps there were when the planner was asked last. */
  let sentAt = 0;
  /** Python's selection for a document that is still on its way. @type {{rev: number, row: number} | null} */
  let arriving = null;
  /** An error that was closed, until there is another. */
  let closedError = "";
  /** What the alert says. */
  let alertText = "";
  /** The pinned plan that Python knows of. */
  let baselineText = "{}";
  /** The plot that was used last. @type {import("./plot.js").Plot | undefined} */
  let recent;
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
    showError(state);
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

  /** Written only when it changes: an alert is read out each time. @param {import("./store.js").State} state */
  function showError(state) {
    const ran = state.run !== null && !state.run.ok && state.run.text === state.error;
    const text = state.error && `${ran ? "run" : "plan"} ${state.error}`;
    if (text === alertText) return;
    alertText = text;
    alert.hidden = !text;
    const head = ran ? "The run failed. " : "Not re-planned. ";
    const close = el("button", { type: "button", class: "rlx-icon", title: "Close (Escape)", "aria-label": "Close the message", onclick: closeError }, "×");
    close.style.float = "right";
    alert.replaceChildren(...(text ? [close, el("b", {}, head), state.error, ran ? "" : " · The picture is the last good plan."] : []));
  }

  function closeError() {
    const inside = alert.contains(document.activeElement);
    closedError = store.state.error;
    store.set({ error: "" });
    store.flush();
    if (inside) (recent?.element.isConnected ? recent.over : controls.search).focus();
  }

  /** What the page around says; a message that was closed stays closed until it goes. */
  function statusNow() {
    const status = api.status?.() ?? {};
    if (status.error !== closedError) closedError = "";
    return closedError ? { ...status, error: "" } : status;
  }

  /** Python moved: its option steps take their place among ours, and its baseline is the one compared with. */
  function onStatus() {
    const status = statusNow();
    store.set(status);
    if (status.history && loaded) history.counted(status.history);
    followBaseline(status.baseline);
  }

  /** @param {any} baseline */
  function followBaseline(baseline) {
    const text = JSON.stringify(baseline ?? {});
    if (text === baselineText || !store.state.snap) return;
    const { snap, base } = store.state;
    const same = text !== "{}" && isPlan(snap, baseline);
    if (text === "{}") store.set({ base: null });
    else if (same) store.set({ base: snap });
    // Of plans that are not on screen there is no document: wait until it is, unless this page pinned it itself.
    else if (!base || baselineText !== "{}") return;
    baselineText = text;
  }

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
      const snap = await api.snapshot();
      const before = store.state.snap;
      let selected = store.state.selected;
      if (arriving?.rev === api.rev()) selected = Math.min(arriving.row, snap.n - 1);
      else if (before && selected >= 0) selected = snap.rowOf(before.text("name", selected), before.ordinal(selected));
      else selected = Math.min(api.selection?.() ?? -1, snap.n - 1);
      arriving = null;
      const hidden = hiddenNames(store.state);
      if (loaded) history.note(saveView(store.state, usual));
      api.late?.(snap);
      const command = before === null ? -1 : store.state.command;
      store.set({ snap, rev: api.rev(), selected, hover: -1, hoverSource: -1, hoverGroup: -1, hoverOther: -1, source: -1, command,
        match: null, error: statusNow().error ?? "", other: (await api.other?.()) ?? null });
      store.set({ hidden: hiddenOf(store.state, hidden) });
      if (!loaded) {
        if (root.clientWidth >= WIDE && (snap.table("layout") || snap.table("groups"))) usual.open = flipView(usual.open, "fusion");
        if (snap.table("cache_entries")) usual.open = flipView(usual.open, "caches");
        if (store.state.other) usual.open = flipView(usual.open, "compare");
        store.set({ open: usual.open });
        const saved = api.savedView?.();
        if (saved && Object.keys(saved).length) {
          const patch = restoreView(saved, store.state, usual);
          if (patch.selected < 0) delete patch.selected;
          restore(patch);
        }
        const counts = statusNow().history;
        if (counts) history.counted(counts);
      }
      followBaseline(statusNow().baseline);
      root.dataset.empty = snap.n ? "0" : "1";
      message.textContent = snap.n ? "" : "This graph has no tensors: there is nothing to place.";
      store.flush();
      store.flush();
      loaded = true;
      // What the new plan itself moved (a zoom past its end, a selection it lacks) is no step of its own.
      clearTimeout(restTimer);
      history.now = saveView(store.state, usual);
      if (before) api.saveView?.(history.now);
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
    const space = spaceOf(snap, slot);
    if (space && space !== store.state.space) {
      store.set({ space, offsets: null });
      store.flush(); // the map's height is that of its space
    }
    const pad = Math.max(4, (death[selected] - birth[selected]) * 0.6);
    const row = gantt.rowOf[selected] ?? -1;
    const room = Math.max(size[slot] * 1.5, 256);
    store.set({
      x: clampRange([birth[selected] - pad, death[selected] + 1 + pad], [0, snap.steps]),
      rows: row < 0 ? store.state.rows : clampRange([row - 8, row + 9], gantt.fullY()),
      offsets: space ? clampRange([offset[slot] - room, offset[slot] + size[slot] + room], arena.fullY()) : store.state.offsets,
    });
    const members = fusion.asleep ? [] : fusion.data.membersOf(selected);
    if (!members.length) return;
    fusion.reveal(members[members.length - 1]);
    showBothHalves(selected, members);
  }

  /** Widen what the fusion graph shows until a tensor's ops and its kernel are both in it. @param {number} row @param {ArrayLike<number>} members */
  function showBothHalves(row, members) {
    const { graphX, graphY } = store.state;
    const { rects, panels, data } = fusion;
    if (data.same || panels.length < 2 || !graphX || !graphY) return;
    const places = panels.flatMap(({ graph, place }) => Array.from(graph.kind === "fused" ? [row] : members, (node) => place[node] ?? -1)).filter((at) => at >= 0);
    if (!places.length) return;
    const left = Math.min(...places.map((at) => rects.x0[at])) - 0.3;
    const right = Math.max(...places.map((at) => rects.x1[at])) + 0.3;
    const top = Math.min(...places.map((at) => rects.y0[at])) - 0.3;
    const bottom = Math.max(...places.map((at) => rects.y1[at])) + 0.3;
    store.set({
      graphX: holding(graphX, left, right, fusion.fullX),
      graphY: holding(graphY, top, bottom, fusion.fullY()),
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
      offsets: offsets && spaceOf(snap, slot) === store.state.space ? bringInside(offsets, offset[slot], offset[slot] + size[slot], arena.fullY()) : offsets,
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

  /** Look inside the module under the pointer, else inside that of the selected op or tensor. */
  function enterModule() {
    if (fusion.asleep || !fusion.folded) return;
    const { state } = store;
    const { data } = fusion;
    const node = state.source >= 0 ? state.source : state.selected >= 0 ? data.membersOf(state.selected).at(-1) ?? -1 : -1;
    const group = state.hoverGroup >= 0 ? state.hoverGroup : node >= 0 ? data.group[node] ?? -1 : -1;
    if (group >= 0) store.set({ module: group, graphX: null, graphY: null, hoverGroup: -1 });
    spoken.textContent = group >= 0 ? `module ${data.groups?.name(group) ?? ""}` : "no module: select a tensor of one first";
  }

  /** @param {"undo" | "redo"} direction */
  function goBack(direction) {
    clearTimeout(restTimer);
    // What has not come to rest yet is a step too.
    if (direction === "undo") history.note(saveView(store.state, usual));
    const { past, future } = history;
    const next = (direction === "undo" ? past : future).at(-1);
    if (api.pending?.() && (!next || "plan" in next || (direction === "undo" && past.length <= sentAt))) {
      spoken.textContent = `nothing to ${direction} until the last change is planned`;
      return;
    }
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
      if (store.state.error) {
        closeError();
        return;
      }
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
    if (event.key === "Enter" && (target === root || target === fusion.over)) keys.Enter = enterModule;
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    } else if (target === root && !pageScrolls(event)) {
      // Nothing has the focus: the plot that was used last, or the first.
      const seen = plots.filter((plot) => plot.element.isConnected && plot.body.clientWidth > 0);
      const plot = recent && seen.includes(recent) ? recent : seen[0];
      if (plot && moveByKey(plot, event)) event.preventDefault();
    }
  });
  for (const kind of ["focusin", "pointerdown"]) {
    root.addEventListener(kind, (/** @type {Event} */ event) => {
      recent = plots.find((plot) => plot.body.contains(/** @type {Node} */ (event.target))) ?? recent;
    });
  }
  // A notebook has keys of its own, some of which destroy cells.
  if (api.host === "jupyter") {
    for (const kind of ["keydown", "keypress", "keyup"]) {
      root.addEventListener(kind, (/** @type {KeyboardEvent} */ event) => {
        if (MODIFIERS.includes(event.key)) return;
        if ((event.ctrlKey || event.metaKey) && !event.altKey && !CELL_KEYS.test(event.key)) return;
        event.stopPropagation();
      });
    }
  }
  // A report is the whole page: its keys work before anything has the focus.
  const onPage = (/** @type {KeyboardEvent} */ event) => {
    if (event.target !== document.body) return;
    const { key, ctrlKey, metaKey, altKey, shiftKey } = event;
    const handled = !root.dispatchEvent(new KeyboardEvent("keydown", { key, ctrlKey, metaKey, altKey, shiftKey, cancelable: true }));
    if (handled) event.preventDefault();
  };
  if (api.host === "report") document.addEventListener("keydown", onPage);

  const stops = [
    api.onTheme?.(() => {
      usual.theme = api.theme();
      store.set({ theme: usual.theme });
    }),
    api.onDocument?.(load),
    api.onStatus?.(onStatus),
    api.onSelection?.(() => {
      if (store.state.snap && api.rev() !== store.state.rev) arriving = { rev: api.rev(), row: api.selection?.() ?? -1 };
      else store.set({ selected: Math.min(api.selection?.() ?? -1, (store.state.snap?.n ?? 0) - 1) });
    }),
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
  store.set({ theme: usual.theme, ...statusNow() });
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

/** The map in which a row has its bytes, "" for none. @param {import("./data.js").Snapshot} snap @param {number} slot */
function spaceOf(snap, slot) {
  const { size, space } = snap.t;
  if (!(size[slot] > 0)) return "";
  return space[slot] === snap.arenaSpace ? "arena" : space[slot] === snap.weightsSpace ? "weights" : "";
}

/** A document is that of the pinned plan, as far as its numbers and options tell. @param {import("./data.js").Snapshot} snap @param {any} baseline */
function isPlan(snap, baseline) {
  const { headline = {}, options = {} } = baseline;
  return Object.entries(snap.meta.headline ?? {}).every(([key, value]) => headline[key] === undefined || String(headline[key]) === String(value))
    && (snap.meta.options ?? []).every((/** @type {any} */ one) => !(one.name in options) || String(options[one.name]) === String(one.value));
}

/** The page around a small explorer moves up and down by these keys. @param {KeyboardEvent} event */
function pageScrolls(event) {
  const page = document.scrollingElement;
  return /^Arrow(Up|Down)$/.test(event.key) && page !== null && page.scrollHeight > page.clientHeight + 1;
}

/** @param {[number, number] | null} range */
function rangeText(range) {
  return range ? range.map((value) => Number(value.toFixed(2))).join("..") : "";
}

/** A range of the same span around low … high, a wider one where they need it. @param {[number, number]} range @param {number} low @param {number} high @param {[number, number]} full */
function holding(range, low, high, full) {
  const half = Math.max(range[1] - range[0], high - low) / 2;
  return clampRange([(low + high) / 2 - half, (low + high) / 2 + half], full);
}

/** @param {[number, number]} range @param {number} low @param {number} high @param {[number, number]} full */
function bringInside(range, low, high, full) {
  if (low < range[1] && high > range[0] && (low >= range[0] || high <= range[1])) return range;
  const span = range[1] - range[0];
  const middle = (low + high) / 2;
  return clampRange([middle - span / 2, middle + span / 2], full);
}
