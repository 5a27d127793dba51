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

/** Options that a request changes. @param {any} request @returns {Record<string, unknown>} */
function optionsOf(request) {
  return request.options ?? ("option" in request ? { [request.option]: request.value } : {});
}

/**
 * Sends what the explorer asks for. Option changes that are not done yet go along with the next one, since Python
 * drops a request that a newer one overtook; those of another display of the same explorer too.
 * @param {any} model
 */
function makeRequester(model) {
  /** @type {Map<string, unknown>} */
  const open = new Map();
  let sequence = model.get("done");
  let answered = sequence;
  model.on("change:done", () => {
    answered = Math.max(answered, model.get("done")); // what was overtaken may be told of late
    if (answered >= sequence) open.clear();
  });
  const send = (/** @type {import("./app.js").PlanRequest} */ request) => {
    /** @type {Record<string, any>} */
    let message = { ...request };
    const held = model.get("request") ?? {};
    const last = held.seq ?? 0;
    if ("option" in request) {
      if (last > model.get("done")) for (const [name, value] of Object.entries(optionsOf(held))) open.set(name, value);
      open.delete(request.option);
      open.set(request.option, request.value);
      if (open.size > 1) message = { options: Object.fromEntries(open) };
    } else if (!("pin" in request) && !("order" in request)) open.clear();
    sequence = Math.max(sequence, last, model.get("done")) + 1;
    model.set("request", { ...message, seq: sequence });
    model.save_changes();
  };
  return { send, pending: () => answered < sequence };
}

/** Runs the plan and says how it went; absent where the kernel can't. @param {any} model */
function makeRunner(model) {
  if (model.get("run_request") === undefined) return undefined;
  return (/** @type {boolean} */ sanitize) => {
    const sequence = Math.max(model.get("run_request")?.seq ?? 0, model.get("run_done")?.seq ?? 0) + 1;
    model.set("run_request", { seq: sequence, sanitize, repeat: sanitize ? 1 : 5 });
    model.save_changes();
  };
}

/** @param {any} model */
function statusOf(model) {
  const asked = model.get("run_request")?.seq ?? 0;
  const done = model.get("run_done") ?? {};
  return {
    busy: model.get("busy"), error: model.get("error"), progress: model.get("progress") ?? -1, progressText: model.get("progress_text") ?? "",
    baseline: model.get("baseline") ?? {}, history: { undo: 0, redo: 0, ...model.get("history") },
    run: asked > (done.seq ?? 0) ? { text: "running…", ok: true, busy: true }
      : done.seq ? { text: `${done.text ?? ""}`, ok: Boolean(done.ok), busy: false } : null,
  };
}

/** @param {any} model @param {string} header @param {string} buffer */
function packed(model, header, buffer) {
  const text = model.get(header);
  return text ? { text, buffer: aligned(model.get(buffer)) } : null;
}

/** What the picture keeps in `state`: all but the options, null where there is no state. @param {any} state */
function viewPart(state) {
  if (!state || typeof state !== "object") return null;
  const { options: _options, ...view } = state;
  return view;
}

/** @param {{model: any, el: HTMLElement}} context */
function render({ model, el }) {
  const requester = makeRequester(model);
  /** The view that `state` held when this display last read or wrote it. */
  let known = JSON.stringify(viewPart(model.get("state")));
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
      const names = ["busy", "error", "progress", "progress_text", "baseline", "history", "run_request", "run_done"];
      const stops = names.map((name) => listen(model, `change:${name}`, listener));
      return () => stops.forEach((stop) => stop());
    },
    status: () => statusOf(model),
    request: requester.send,
    pending: requester.pending,
    run: makeRunner(model),
    other: () => {
      const found = packed(model, "compare_header", "compare_buffer");
      return found && model.get("compare_rev") === model.get("rev") ? unpackSnapshot(found.text, found.buffer) : null;
    },
    onOther: (listener) => {
      const stops = [listen(model, "change:compare_rev", listener), listen(model, "change:compare_header", listener)];
      return () => stops.forEach((stop) => stop());
    },
    late: (snap) => {
      const found = packed(model, "extra_header", "extra_buffer");
      if (!found || model.get("extra_rev") !== model.get("rev")) return false;
      snap.addLate(JSON.parse(found.text), found.buffer);
      return true;
    },
    onLate: (listener) => listen(model, "change:extra_rev", listener),
    savedView: () => viewPart(model.get("state")),
    saveView: (saved) => {
      const held = model.get("state");
      if (held === undefined) return;
      known = JSON.stringify(saved);
      if (JSON.stringify(viewPart(held)) === known) return;
      model.set("state", { ...saved, ...(held?.options ? { options: held.options } : {}) });
      model.save_changes();
    },
    // A change of the options alone leaves the view as it is, also what is not kept yet.
    onSavedView: (listener) => listen(model, "change:state", () => {
      const now = JSON.stringify(viewPart(model.get("state")));
      if (now === known) return;
      known = now;
      listener();
    }),
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
