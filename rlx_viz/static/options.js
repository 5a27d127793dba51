// Owns the planner's options: toggles, presets and reset that re-plan with a live kernel, a plain list in a report.

import { el } from "./dom.js";

export class OptionsView {
  /** @param {import("./store.js").Store} store @param {((request: import("./app.js").PlanRequest) => void) | undefined} request */
  constructor(store, request) {
    this.request = request;
    /** Folded groups that the user opened. @type {Set<string>} */
    this.opened = new Set();
    this.body = el("div", { class: "rlx-option-list" });
    this.bar = el("div", { class: "rlx-option-bar" });
    this.filter = el("input", { type: "search", class: "rlx-option-filter", placeholder: "Find an option", "aria-label": "Find an option", oninput: () => this.sift() });
    this.count = el("span", { class: "rlx-count" });
    this.none = el("p", { class: "rlx-hint", hidden: true }, "No option matches.");
    this.element = el("details", { class: "rlx-options", "data-panel": "options" },
      el("summary", {}, el("h2", {}, "Options", this.count)), this.bar, this.none, this.body);
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
    this.fillBar(snap, changed);
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
        group.dataset.changed = String(count);
        group.addEventListener("toggle", () => {
          if (this.filter.value.trim()) return;
          if (group.open) this.opened.add(name);
          else this.opened.delete(name);
        });
        children.push(group);
      }
    }
    this.body.replaceChildren(...children);
    this.sift();
    if (active) {
      for (const control of this.body.querySelectorAll("[data-option]")) if (control.dataset.option === active) control.focus();
    }
  }

  /** Presets and reset with a kernel, the search box where there are many. @param {import("./data.js").Snapshot} snap @param {number} changed */
  fillBar(snap, changed) {
    /** @type {any[]} */
    const presets = snap.meta.presets ?? [];
    const many = (snap.meta.options ?? []).length > 12;
    const held = this.filter.value;
    const picker = this.request && presets.length
      ? el("select", { "aria-label": "Preset", title: presets.map((one) => `${one.name}: ${one.doc ?? one.help ?? ""}`).join("\n"), onchange: () => {
        if (picker.value) this.request?.({ preset: picker.value });
        picker.value = "";
      } }, el("option", { value: "" }, "preset…"), ...presets.map((one) => el("option", { value: one.name, title: one.doc ?? "" }, one.name)))
      : null;
    const reset = this.request
      ? el("button", { type: "button", class: "rlx-toggle", "data-reset": "", disabled: changed === 0, title: "Take every change back", onclick: () => this.request?.({ reset: true }) }, "Reset")
      : null;
    const parts = [many ? this.filter : null, picker, reset].filter(Boolean);
    this.bar.hidden = parts.length === 0;
    const typing = document.activeElement === this.filter;
    this.bar.replaceChildren(...parts);
    this.filter.value = held;
    if (typing) this.filter.focus();
  }

  /** Show an option's control and put the keyboard there. @param {string} name */
  reveal(name) {
    this.element.open = true;
    this.filter.value = "";
    this.sift();
    const control = [...this.body.querySelectorAll("[data-option]")].find((one) => one.dataset.option === name);
    const group = control?.closest("details");
    if (group) group.open = true;
    control?.scrollIntoView({ block: "center" });
    control?.focus();
  }

  /** Show the options that the box asks for. */
  sift() {
    const wanted = this.filter.value.trim().toLowerCase();
    for (const row of this.body.querySelectorAll(".rlx-option")) {
      row.hidden = wanted !== "" && !`${row.dataset.name} ${row.title}`.toLowerCase().includes(wanted);
    }
    // A heading stands over the rows up to the next heading or group.
    /** @type {any} */
    let heading = null;
    for (const one of this.body.children) {
      if (one.tagName === "H3") [heading, one.hidden] = [one, wanted !== ""];
      else if (one.tagName === "DETAILS") heading = null;
      else if (heading && !one.hidden) heading.hidden = false;
    }
    this.none.hidden = wanted === "" || [...this.body.querySelectorAll(".rlx-option")].some((row) => !row.hidden);
    for (const group of this.body.querySelectorAll(".rlx-option-group")) {
      const found = [...group.querySelectorAll(".rlx-option")].some((row) => !row.hidden);
      group.hidden = !found;
      if (wanted) group.open = found;
      else group.open = this.opened.has(group.dataset.group) || group.dataset.changed !== "0";
    }
  }

  /** @param {any} option */
  row(option) {
    const send = (/** @type {unknown} */ value) => this.request?.({ option: option.name, value });
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
        else control.value = option.value;
      } });
    }
    return el("label", { class: `rlx-option${option.changed ? " rlx-changed" : ""}`, "data-name": option.name, title: option.help ?? "" },
      option.type === "bool" ? control : null, el("span", {}, option.name),
      option.changed ? el("em", {}, `default ${option.type === "bool" ? (option.default ? "on" : "off") : option.default}`) : null,
      option.type === "bool" ? null : control);
  }

  close() {
    this.stop();
  }
}
