// Owns the notebook side: the widget's traits as the explorer's api, one request at a time.

import { mount } from "./app.js";
import { unpackSnapshot } from "./data.js";

/** Widget bytes start anywhere in their message; typed arrays want an aligned copy. @param {DataView} view */
function aligned(view) {
  return /** @type {ArrayBuffer} */ (view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

/** @param {any} model @param {string} event @param {() => void} listener */
function listen(model, event, listener) {
  model.on(event, listener);
  return () => model.off(event, listener);
}

function pageIsDark() {
  const lab = document.body.dataset.jpThemeLight;
  if (lab !== undefined) return lab === "false";
  const vscode = document.body.dataset.vscodeThemeKind ?? "";
  return vscode.includes("dark") || (!vscode && window.matchMedia("(prefers-color-scheme: dark)").matches);
}

/**
 * Sends one option change at a time; while it runs, later changes of an option replace earlier ones.
 * @param {any} model
 */
function makeRequester(model) {
  /** @type {Map<string, unknown>} */
  const waiting = new Map();
  let sequence = model.get("done");
  let sent = 0;
  const next = () => {
    const first = waiting.entries().next();
    if (first.done || sent > model.get("done")) return;
    const [option, value] = first.value;
    waiting.delete(option);
    sent = sequence = Math.max(sequence, model.get("done")) + 1;
    model.set("request", { option, value, seq: sent });
    model.save_changes();
  };
  model.on("change:done", next);
  return (/** @type {string} */ name, /** @type {unknown} */ value) => {
    waiting.delete(name);
    waiting.set(name, value);
    next();
  };
}

/** @param {{model: any, el: HTMLElement}} context */
function render({ model, el }) {
  return mount(el, {
    host: "jupyter",
    snapshot: () => unpackSnapshot(model.get("header"), aligned(model.get("buffer"))),
    rev: () => model.get("rev"),
    theme: () => (pageIsDark() ? "dark" : "light"),
    onTheme: (listener) => {
      const observer = new MutationObserver(listener);
      observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
      return () => observer.disconnect();
    },
    onDocument: (listener) => listen(model, "change:rev", listener),
    onStatus: (listener) => {
      const stops = [listen(model, "change:busy", listener), listen(model, "change:error", listener)];
      return () => stops.forEach((stop) => stop());
    },
    status: () => ({ busy: model.get("busy"), error: model.get("error") }),
    request: makeRequester(model),
    selection: () => model.get("selection"),
    select: (row) => {
      if (model.get("selection") === row) return;
      model.set("selection", row);
      model.save_changes();
    },
    onSelection: (listener) => listen(model, "change:selection", listener),
  });
}

export default { render };
