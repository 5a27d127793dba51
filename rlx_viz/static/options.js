// Owns the planner's options: toggles that re-plan with a live kernel, a plain list in a report.

import { el } from "./dom.js";

export class OptionsView {
  /** @param {import("./store.js").Store} store @param {((name: string, value: unknown) => void) | undefined} request */
  constructor(store, request) {
    this.request = request;
    /** Folded groups that the user opened. @type {Set<string>} */
    this.opened = new Set();
    this.body = el("div", { class: "rlx-option-list" });
    this.count = el("span", { class: "rlx-count" });
    this.element = el("details", { class: "rlx-options", "data-panel": "options" },
      el("summary", {}, el("h2", {}, "Options", this.count)), this.body);
    this.element.open = Boolean(request);
    this.stop = store.on((changed, state) => {
      // A failed re-plan puts the controls back to the plan on screen.
      if (state.snap && (changed.has("snap") || changed.has("error"))) this.build(state.snap);
    });
  }

  /** @param {import("./data.js").Snapshot} snap */
  build(snap) {
    /** @type {any[]} */
    const options = snap.meta.options ?? [];
    this.element.hidden = options.length === 0;
    const changed = options.filter((option) => option.changed).length;
    this.count.textContent = changed ? ` ${changed} changed` : "";
    const active = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.option : "";
    const children = [];
    /** Groups in the order of their first option, whose members need not follow each other. @type {Map<string, any[]>} */
    const groups = new Map();
    for (const option of options) {
      const name = option.group ?? "";
      groups.set(name, [...(groups.get(name) ?? []), option]);
    }
    for (const [name, members] of groups) {
      const rows = members.map((option) => this.row(option));
      const at = name.indexOf(": ");
      if (at < 0) {
        if (name) children.push(el("h3", {}, name));
        children.push(...rows);
      } else { // a group of a stage with many: folded until asked for, or until something in it changed
        const count = members.filter((option) => option.changed).length;
        const group = el("details", { class: "rlx-option-group", "data-group": name },
          el("summary", {}, el("h3", {}, name.slice(at + 2), el("span", { class: "rlx-count" }, count ? ` ${count} changed` : ` ${members.length}`))), ...rows);
        group.open = this.opened.has(name) || count > 0;
        group.addEventListener("toggle", () => (group.open ? this.opened.add(name) : this.opened.delete(name)));
        children.push(group);
      }
    }
    this.body.replaceChildren(...children);
    if (active) {
      for (const control of this.body.querySelectorAll("[data-option]")) if (control.dataset.option === active) control.focus();
    }
  }

  /** @param {any} option */
  row(option) {
    const send = (/** @type {unknown} */ value) => this.request?.(option.name, value);
    /** @type {any} */
    let control;
    const common = { "data-option": option.name, disabled: !this.request, "aria-label": option.name };
    if (option.type === "bool") {
      control = el("input", { ...common, type: "checkbox", onchange: () => send(control.checked) });
      control.checked = Boolean(option.value);
    } else if (option.type === "choice") {
      control = el("select", { ...common, onchange: () => send(control.value) },
        ...(option.choices ?? []).map((/** @type {string} */ one) => el("option", { value: one }, one)));
      control.value = option.value;
      control.title = option.value;
    } else {
      control = el("input", { ...common, type: "number", value: option.value, onchange: () => {
        if (control.value !== "") send(Number(control.value));
      } });
    }
    return el("label", { class: `rlx-option${option.changed ? " rlx-changed" : ""}`, title: option.help ?? "" },
      option.type === "bool" ? control : null, el("span", {}, option.name),
      option.changed ? el("em", {}, `default ${option.type === "bool" ? (option.default ? "on" : "off") : option.default}`) : null,
      option.type === "bool" ? null : control);
  }

  close() {
    this.stop();
  }
}
