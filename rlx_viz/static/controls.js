// Owns the bar of controls, the colour legend and the option toggles.

import { FLAG_STATIC } from "./data.js";
import { el, swatch } from "./dom.js";
import { countOf, formatCount } from "./format.js";
import { THEMES } from "./palette.js";
import { runQuery } from "./query.js";
import { markOf, schemeOf } from "./scheme.js";

const SORTS = { birth: "birth", size: "size", lifetime: "lifetime", offset: "offset", module: "module" };
const COLOURS = { family: "op family", dtype: "dtype", kind: "kind", module: "module", rule: "death rule" };

export class Controls {
  /** @param {import("./store.js").Store} store @param {{help: () => void}} actions */
  constructor(store, actions) {
    this.store = store;
    this.search = el("input", {
      type: "search", class: "rlx-search", "aria-label": "Search tensors", spellcheck: "false", autocomplete: "off",
      placeholder: "Search: text, op:, module:, size>1K",
      oninput: () => store.set({ query: this.search.value }),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1);
        if (event.key === "Escape" && this.search.value) {
          this.search.value = "";
          store.set({ query: "" });
          event.stopPropagation();
        }
      },
    });
    this.found = el("output", { class: "rlx-found", "aria-live": "polite" });
    this.model = el("span", { class: "rlx-model" });
    this.sort = choice("Sort", SORTS, "birth", (value) => store.set({ sort: value, rows: null }));
    this.colour = choice("Colour", COLOURS, "family", (value) => store.set({ colour: value, hidden: new Set() }));
    this.views = toggle("Views", "Show views under the buffer they alias (v)", () => store.set({ views: !store.state.views, rows: null }));
    this.statics = toggle("Weights", "Show weights among the live ranges and their region in the map (w)", () => flipWeights(store));
    this.text = toggle("Text", "Show every view as text (t)", () => store.set({ text: !store.state.text }));
    this.theme = el("button", { type: "button", class: "rlx-icon", title: "Light or dark (d)", "aria-label": "Switch between light and dark",
      onclick: () => store.set({ theme: store.state.theme === "dark" ? "light" : "dark" }) }, "◐");
    this.help = el("button", { type: "button", class: "rlx-icon", title: "Keys (?)", "aria-label": "List the keys", onclick: actions.help }, "?");
    this.present = el("button", { type: "button", class: "rlx-icon", title: "Larger type, for a room (e)", "aria-label": "Presentation mode", "aria-pressed": "false",
      onclick: () => store.set({ present: !store.state.present }) }, "A");
    this.element = el("header", { class: "rlx-bar" }, this.model,
      el("span", { class: "rlx-search-box" }, this.search, this.found),
      el("span", { class: "rlx-tools" }, this.colour.element, this.sort.element, this.views, this.statics, this.text, this.present, this.theme, this.help));
    this.stop = store.on((changed, state) => this.update(changed, state));
  }

  /** @param {Set<string>} changed @param {import("./store.js").State} state */
  update(changed, state) {
    if (!state.snap) return;
    if (changed.has("snap")) {
      const model = state.snap.meta.model ?? {};
      this.model.replaceChildren(el("b", {}, model.name || "model"), el("span", { class: "rlx-count" }, ` ${countOf(model.nodes ?? state.snap.n, "node")}`));
      this.model.title = `${model.name ?? ""}  ${model.hash ?? ""}`;
    }
    if (changed.has("query") || changed.has("snap")) this.match(state);
    this.sort.select.value = state.sort;
    this.colour.select.value = state.colour;
    press(this.views, state.views);
    press(this.statics, state.statics || state.space === "weights");
    press(this.text, state.text);
    press(this.present, state.present);
    if (this.search.value !== state.query) this.search.value = state.query;
    this.found.textContent = this.found.title = foundText(state);
    this.found.classList.toggle("rlx-wrong", Boolean(state.queryError));
    this.found.classList.toggle("rlx-none", Boolean(state.queryError) || (state.match !== null && !state.matches));
  }

  /** @param {import("./store.js").State} state */
  match(state) {
    const snap = /** @type {import("./data.js").Snapshot} */ (state.snap);
    try {
      const match = runQuery(snap, state.query);
      const matches = match ? match.reduce((sum, flag) => sum + flag, 0) : 0;
      this.store.set({ match, matches, queryError: "" });
    } catch (error) {
      this.store.set({ match: null, matches: 0, queryError: /** @type {Error} */ (error).message });
    }
  }

  /** Select the next or previous match. @param {number} direction */
  next(direction) {
    this.store.flush(); // Enter may come before the frame that runs the query
    const { match, selected, snap } = this.store.state;
    if (!match || !snap) return;
    for (let k = 1; k <= snap.n; k++) {
      const row = (((selected + direction * k) % snap.n) + snap.n) % snap.n;
      if (match[row]) {
        this.store.set({ selected: row, reveal: (this.store.state.reveal ?? 0) + 1 });
        return;
      }
    }
  }

  close() {
    this.stop();
  }
}

/** @param {import("./store.js").State} state */
function foundText(state) {
  if (state.queryError) return state.queryError;
  if (!state.match) return "";
  if (!state.matches) return "no match";
  return [`${formatCount(state.matches)} of ${formatCount(state.match.length)}`, ...foldedTexts(state)].join(" · ");
}

/** Matches that have no row among the live ranges until they are unfolded. @param {import("./store.js").State} state */
function foldedTexts(state) {
  const snap = /** @type {import("./data.js").Snapshot} */ (state.snap);
  const { root, space, flags } = snap.t;
  let weights = 0;
  let views = 0;
  for (let row = 0; row < snap.n; row++) {
    if (!state.match?.[row]) continue;
    const top = root[row];
    if (!state.statics && (space[top] === snap.weightsSpace || flags[top] & FLAG_STATIC)) weights += 1;
    else if (!state.views && top !== row) views += 1;
  }
  return [
    weights ? `${formatCount(weights)} in folded weights` : "",
    views ? `${formatCount(views)} in folded views` : "",
  ].filter(Boolean);
}

/** @param {import("./store.js").Store} store */
export function flipWeights(store) {
  const on = !(store.state.statics || store.state.space === "weights");
  store.set({ statics: on, space: on ? "weights" : "arena", rows: null, offsets: null });
}

/** @param {string} name @param {Record<string, string>} options @param {string} value @param {(value: string) => void} change */
function choice(name, options, value, change) {
  const select = el("select", { "aria-label": name, onchange: () => change(select.value) },
    ...Object.entries(options).map(([key, label]) => el("option", { value: key }, label)));
  select.value = value;
  return { select, element: el("label", { class: "rlx-choice" }, el("span", {}, name), select) };
}

/** @param {string} name @param {string} title @param {() => void} click */
function toggle(name, title, click) {
  return el("button", { type: "button", class: "rlx-toggle", title, "aria-pressed": "false", onclick: click }, name);
}

/** @param {HTMLElement} button @param {boolean} on */
function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

/** Colour keys that dim what they stand for. @param {import("./store.js").Store} store @param {HTMLElement} place @returns {() => void} */
export function attachLegend(store, place) {
  return store.on((changed, state) => {
    if (!state.snap || !["snap", "colour", "theme", "hidden"].some((key) => changed.has(key))) return;
    const scheme = schemeOf(state, THEMES[state.theme]);
    const keys = scheme.names.map((name, i) => {
      if (!scheme.counts[i]) return null;
      const button = el("button", {
        type: "button", class: "rlx-key", "data-key": name, "aria-pressed": String(!state.hidden.has(i)),
        title: `${countOf(scheme.counts[i], "tensor")}. ${scheme.docs[i]} Click to fade.`.replace("  ", " "),
        onclick: () => {
          const hidden = new Set(store.state.hidden);
          if (!hidden.delete(i)) hidden.add(i);
          store.set({ hidden });
        },
      }, swatch(...markOf(scheme, i)), name);
      return button;
    });
    const focused = place.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset.key : "";
    place.replaceChildren(...keys.filter(Boolean),
      el("span", { class: "rlx-key", title: "Steps that a rule added after the last read" }, el("i", { class: "rlx-swatch rlx-hatched" }), "kept longer"));
    for (const key of place.querySelectorAll("button")) if (focused && key.dataset.key === focused) key.focus();
  });
}
