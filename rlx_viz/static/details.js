// Owns the side panel: the selected tensor and why it lives, and what is live at the peak.

import { el, swatch, wrappingName } from "./dom.js";
import { FLAG_OPAQUE, FLAG_OUTPUT, FLAG_UNKNOWN } from "./data.js";
import { formatBytes, formatCount, formatExact } from "./format.js";
import { fusionOf, verdictText } from "./graphs.js";
import { THEMES } from "./palette.js";
import { TWIN_ROWS } from "./plot.js";
import { markOf, schemeOf } from "./scheme.js";
import { aliasChain, blockedBy, freeingOf, lastReader, thunkOf, verdictsOf } from "./why.js";

const LINKS = 12;
const LIVE = 60;
const REST = 2000;

/** Lines that describe a row, shared by the panel, the tooltip and the text twin. @param {import("./data.js").Snapshot} snap @param {number} row @returns {[string, string][]} */
export function factsOf(snap, row) {
  const { t } = snap;
  const slot = t.root[row];
  const shared = slot !== row;
  /** @type {[string, string][]} */
  const facts = [
    ["op", snap.text("op", row)],
    ["shape", shapeOf(snap, row)],
  ];
  if (t.flags[row] & FLAG_UNKNOWN) facts.push(["bytes", "unknown size"]);
  else if (t.size[row] > 0) facts.push(["bytes", distinct(formatBytes(t.size[row]), formatExact(t.size[row]))]);
  else if (shared) facts.push(["bytes", `none of its own; its root has ${formatBytes(t.size[slot])}`]);
  else facts.push(["bytes", "none: no slot"]);
  const life = t.death[row] - t.birth[row] + 1;
  facts.push(["live", `${formatCount(t.birth[row])} to ${formatCount(t.death[row])} · ${formatCount(life)} step${life === 1 ? "" : "s"}`]);
  if (t.death[row] > t.last_read[row] && t.last_read[row] >= t.birth[row]) {
    facts.push(["last read", `${formatCount(t.last_read[row])} · kept ${formatCount(t.death[row] - t.last_read[row])} longer`]);
  }
  if (t.size[row] > 0) {
    facts.push(["offset", distinct(formatExact(t.offset[row]), formatBytes(t.offset[row]))]);
    facts.push(["end", formatExact(t.offset[row] + t.size[row])]);
    if (t.guard[row]) facts.push(["guard", formatExact(t.guard[row])]);
  }
  const place = snap.label("spaces", t.space[row]);
  const kind = [snap.label("kinds", t.kind[row]), place && place !== "none" ? `in ${place}` : ""];
  if (t.flags[row] & FLAG_OUTPUT) kind.push("graph output");
  if (t.flags[row] & FLAG_OPAQUE) kind.push("opaque op");
  facts.push(["kind", kind.filter(Boolean).join(", ")]);
  if (snap.text("source", row)) facts.push(["source", snap.text("source", row)]);
  return facts;
}

/** The shape with its dtype, once: "f32[1, 8]" names it already. @param {import("./data.js").Snapshot} snap @param {number} row */
function shapeOf(snap, row) {
  const shape = snap.text("shape", row);
  const dtype = snap.label("dtypes", snap.t.dtype[row]);
  return shape.startsWith(`${dtype}[`) ? shape : `${shape} ${dtype}`.trim();
}

/** Texts in a row, equal ones once. @param {...string} texts */
function distinct(...texts) {
  return [...new Set(texts)].join(" · ");
}

/** Each rule that keeps the row alive. @param {import("./data.js").Snapshot} snap @param {number} row */
export function reasonsOf(snap, row) {
  return Array.from(snap.extensionRows.of(row), (at) => ({
    rule: snap.rule(snap.extensions.rule[at]),
    cause: snap.extensions.cause[at],
    old: snap.extensions.old[at],
    now: snap.extensions.new[at],
  }));
}

/**
 * Bodies that a control-flow node runs, each with its tensors that own bytes, largest first.
 * @param {import("./data.js").Snapshot} snap @param {number} row
 * @returns {{text: string, rows: {name: string, op: string, shape: string, birth: number, death: number, size: number}[]}[]}
 */
function bodiesOf(snap, row) {
  const table = snap.table("body_tensors");
  const bodies = (snap.meta.claims?.bodies ?? []).map((/** @type {any} */ body, /** @type {number} */ at) => ({ ...body, at }))
    .filter((/** @type {any} */ body) => body.owner === row);
  return bodies.map((/** @type {any} */ body) => {
    /** @type {{name: string, op: string, shape: string, birth: number, death: number, size: number}[]} */
    const rows = [];
    const c = table?.columns;
    for (let i = 0; c && i < table.rows; i += 1) {
      if (c.body[i] === body.at && c.root[i] === i && c.size[i] > 0) {
        rows.push({ name: snap.string(c.name[i]), op: snap.string(c.op[i]), shape: snap.string(c.shape[i]), birth: c.birth[i], death: c.death[i], size: c.size[i] });
      }
    }
    rows.sort((a, b) => b.size - a.size);
    return { text: /** @type {string} */ (body.text), rows };
  });
}

/** An option's value out of text: "true", "12", "first_fit". @param {string} text @returns {unknown} */
function plainValue(text) {
  if (/^(true|false)$/i.test(text)) return text.toLowerCase() === "true";
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** @param {unknown} value */
function shownValue(value) {
  return value === true ? "on" : value === false ? "off" : String(value);
}

/** What tells a control of the panel from the others, so that its successor is found. @param {HTMLElement} control */
function identity(control) {
  const { frees = "", row = "", source = "" } = control.dataset;
  return [frees, row, source, control.getAttribute("aria-label") ?? "", row || source ? "" : control.title].join("\n");
}

/**
 * Replace a part's content and keep the keyboard where it was: on the same control, else on the part itself.
 * @param {HTMLElement} part @param {() => void} build
 */
function keepFocus(part, build) {
  const held = document.activeElement instanceof HTMLElement && part.contains(document.activeElement) ? document.activeElement : null;
  if (!held) {
    build();
    return;
  }
  const alike = () => [...part.querySelectorAll("button")].filter((button) => identity(button) === identity(held));
  const nth = alike().indexOf(/** @type {HTMLButtonElement} */ (held));
  build();
  const found = alike();
  (found[nth] ?? found[0] ?? part).focus({ preventScroll: true });
}

export class DetailsView {
  /**
   * @param {import("./store.js").Store} store @param {((option: string, value: unknown) => void) | undefined} flip
   * @param {(node: number) => void} showSource
   */
  constructor(store, flip, showSource) {
    this.store = store;
    this.flip = flip;
    this.showSource = showSource;
    this.selected = el("section", { class: "rlx-selected", tabindex: -1, "aria-label": "Selected tensor", "data-panel": "selected" });
    this.live = el("section", { class: "rlx-live", tabindex: -1, "aria-label": "Live at the peak", "data-panel": "live" });
    this.twin = el("pre", { class: "rlx-twin rlx-twin-hidden", "data-twin": "details", "aria-label": "Selected tensor as text" });
    this.liveTwin = el("pre", { class: "rlx-twin rlx-twin-hidden", "data-twin": "live", "aria-label": "Live at the peak as text" });
    this.element = el("div", { class: "rlx-details" }, this.selected, this.live, this.twin, this.liveTwin);
    this.stop = store.on((changed, state) => {
      if (!state.snap) return;
      if (["snap", "theme", "colour", "selected", "late", "source"].some((key) => changed.has(key))) keepFocus(this.selected, () => this.buildSelected(state));
      if (["snap", "theme", "colour"].some((key) => changed.has(key))) keepFocus(this.live, () => this.buildLive(state));
      if (changed.has("selected")) this.markLive(state.selected);
    });
  }

  /** @param {import("./store.js").State} state */
  buildSelected(state) {
    const snap = /** @type {import("./data.js").Snapshot} */ (state.snap);
    const row = state.selected;
    if ((row < 0 || row >= snap.n) && state.source >= 0) {
      this.buildDropped(snap, state.source);
      return;
    }
    if (row < 0 || row >= snap.n) {
      this.selected.replaceChildren(el("h2", {}, "Selected"),
        el("p", { class: "rlx-hint" }, "Click a bar or a slot, search above, or step through with j and k."));
      this.twin.textContent = "nothing selected";
      return;
    }
    const scheme = schemeOf(state, THEMES[state.theme]);
    const list = el("dl", { class: "rlx-pairs" });
    for (const [name, value] of factsOf(snap, row)) list.append(el("dt", {}, name), el("dd", {}, value));
    const reasons = reasonsOf(snap, row);
    const why = reasons.map((reason) =>
      el("li", {}, el("b", {}, reason.rule.name), ` ${formatCount(reason.old)} → ${formatCount(reason.now)}`,
        reason.cause !== row && reason.cause < snap.n ? el("span", {}, ", because of ", this.link(snap, reason.cause)) : null,
        el("div", { class: "rlx-hint" }, reason.rule.doc)));
    this.selected.replaceChildren(...[
      el("h2", {}, "Selected",
        el("button", { type: "button", class: "rlx-icon rlx-word", title: "Zoom to it (f)", "aria-label": "Zoom to the selected tensor",
          onclick: () => this.store.set({ focus: (this.store.state.focus ?? 0) + 1 }) }, "zoom"),
        el("button", { type: "button", class: "rlx-icon", title: "Clear (Escape)", "aria-label": "Clear the selection",
          onclick: () => this.store.set({ selected: -1, source: -1, command: -1 }) }, "×")),
      el("div", { class: "rlx-name" }, swatch(...markOf(scheme, scheme.of(row))), wrappingName(snap.text("name", row))),
      list,
      el("h3", {}, "Why it lives"),
      el("ul", { class: "rlx-why" }, ...this.lifeLines(snap, row), ...why, ...this.freeingLines(snap, row)),
      ...this.placeLines(snap, row),
      ...this.bodyLines(snap, row),
      ...this.verdictLines(snap, row),
      ...this.sourceLines(snap, row),
      ...this.links(snap, "Views", Array.from(snap.viewRows.of(row))),
      ...this.links(snap, "Made from", snap.producers(row)),
      ...this.links(snap, "Read by", snap.consumers(row)),
    ].filter((part) => part !== null));
    const names = (/** @type {number[]} */ rows) => rows.map((one) => snap.text("name", one)).join(", ") || "nothing";
    this.twin.textContent = [
      snap.text("name", row),
      ...factsOf(snap, row).map(([name, value]) => `${name}: ${value}`),
      ...this.whyTexts(snap, row),
      ...reasons.map((r) => `kept alive by ${r.rule.name} (${r.old} → ${r.now}) because of ${snap.text("name", r.cause)}: ${r.rule.doc}`),
      ...bodiesOf(snap, row).flatMap((body) => [body.text, ...body.rows.map((one) => `  ${one.name}  ${one.op}  ${one.shape}  live ${one.birth} to ${one.death}  ${one.size} B`)]),
      `made from: ${names(snap.producers(row))}`,
      `read by: ${names(snap.consumers(row))}`,
    ].join("\n");
  }

  /** Made by, last read by, alias of. @param {import("./data.js").Snapshot} snap @param {number} row */
  lifeLines(snap, row) {
    const thunk = thunkOf(snap, row);
    const reader = lastReader(snap, row);
    const chain = aliasChain(snap, row);
    const lines = [el("li", {}, "Made by ", el("b", {}, snap.text("op", row) || "nothing"), ` at step ${formatCount(snap.step[row])}`,
      thunk >= 0 ? [", ", el("button", { type: "button", class: "rlx-link", title: "Show its bytes in the arena", onclick: () => this.store.set({ command: thunk }) }, `thunk ${formatCount(thunk)}`)] : null)];
    lines.push(reader >= 0 ? el("li", {}, "Last read by ", this.link(snap, reader), ` at step ${formatCount(snap.step[reader])}`)
      : el("li", {}, snap.t.flags[row] & FLAG_OUTPUT ? "Read by the caller only." : "Nothing reads it."));
    if (chain.length > 1) lines.push(el("li", {}, "A view: ", chain.slice(1).map((one, at) => [at ? " of " : "of ", this.link(snap, one)])));
    return lines;
  }

  /** Option changes that would free it. @param {import("./data.js").Snapshot} snap @param {number} row */
  freeingLines(snap, row) {
    return freeingOf(snap, snap.t.size[row] > 0 ? row : snap.t.root[row]).map((one) => {
      const value = plainValue(one.value);
      const text = `${one.option} = ${shownValue(value)}`;
      const control = this.flip
        ? el("button", { type: "button", class: "rlx-link", "data-frees": one.option, title: "Switch it now", onclick: () => this.flip?.(one.option, value) }, text)
        : el("b", { "data-frees": one.option }, text);
      return el("li", { class: "rlx-frees" }, control, ` would free it after step ${formatCount(one.death)} and `,
        one.saved > 0 ? el("b", {}, `save ${formatBytes(one.saved)}`) : one.saved < 0 ? `cost ${formatBytes(-one.saved)}` : "save nothing in all");
    });
  }

  /** What lies under it. @param {import("./data.js").Snapshot} snap @param {number} row */
  placeLines(snap, row) {
    const blocked = blockedBy(snap, row);
    if (!blocked) return [];
    return [el("h3", {}, "Why not lower"), el("div", { class: "rlx-hint", "data-fact": "blocked" }, blocked.text),
      ...(blocked.on.length ? [el("ul", { class: "rlx-links" }, ...blocked.on.map((one) => el("li", {}, el("span", { class: "rlx-count" }, "rests on\u00a0"), this.link(snap, one))))] : [])];
  }

  /** What runs inside an If, Loop or Scan. @param {import("./data.js").Snapshot} snap @param {number} row */
  bodyLines(snap, row) {
    return bodiesOf(snap, row).flatMap((body) => [
      el("h3", { "data-fact": "body" }, "Inside"), el("p", { class: "rlx-hint" }, body.text),
      el("ul", { class: "rlx-why rlx-body" }, ...body.rows.slice(0, LINKS).map((one) => el("li", {}, el("b", {}, formatBytes(one.size)), ` ${one.op} ${one.name} `,
        el("span", { class: "rlx-count" }, `steps ${formatCount(one.birth)} to ${formatCount(one.death)} of the body`))),
      body.rows.length > LINKS ? el("li", { class: "rlx-count" }, `… ${formatCount(body.rows.length - LINKS)} more in the text view`) : null)]);
  }

  /** @param {import("./data.js").Snapshot} snap @param {number} row */
  verdictLines(snap, row) {
    const verdicts = verdictsOf(snap, row);
    if (!verdicts.length) return [];
    return [el("h3", {}, "Fusion and passes", el("span", { class: "rlx-count" }, ` ${formatCount(verdicts.length)}`)),
      el("ul", { class: "rlx-why" }, ...verdicts.slice(0, LINKS).map((verdict) => el("li", { class: verdict.applied ? "rlx-yes" : "rlx-no", title: [verdict.doc, verdict.facts].filter(Boolean).join("\n") },
        el("b", {}, verdict.rule), verdict.applied ? " applied" : " refused",
        verdict.applied && verdict.bytes > 0 ? el("span", { class: "rlx-count" }, ` saves ${formatBytes(verdict.bytes)} of traffic`) : null,
        verdict.applied && verdict.dispatches > 0 ? el("span", { class: "rlx-count" }, `, ${formatCount(verdict.dispatches)} dispatch${verdict.dispatches === 1 ? "" : "es"}`) : null,
        el("div", { class: "rlx-hint" }, verdict.applied ? "" : [verdict.reason, verdict.facts].filter(Boolean).join(" · "))))),
      ...(verdicts.length > LINKS ? [el("div", { class: "rlx-hint" }, `… ${formatCount(verdicts.length - LINKS)} more in the text view`)] : [])];
  }

  /** The user's own nodes. @param {import("./data.js").Snapshot} snap @param {number} row */
  sourceLines(snap, row) {
    const data = fusionOf(snap);
    const members = Array.from(data.membersOf(row));
    if (data.same || !members.length) return [];
    const graph = data.source;
    const item = (/** @type {number} */ node) => el("li", {}, el("button", { type: "button", class: "rlx-link", "data-source": node, title: `Show ${graph?.name(node)} in the fusion graph`,
      onclick: () => this.showSource(node) }, `${graph?.op(node)} ${graph?.name(node)}`));
    return [el("h3", {}, "In the model", el("span", { class: "rlx-count" }, ` ${formatCount(members.length)}`)),
      el("ul", { class: "rlx-links" }, ...members.slice(0, LINKS).map(item), members.length > LINKS ? el("li", { class: "rlx-count" }, `… ${formatCount(members.length - LINKS)} more`) : null)];
  }

  /** An op of the model that became nothing. @param {import("./data.js").Snapshot} snap @param {number} node */
  buildDropped(snap, node) {
    const graph = fusionOf(snap).source;
    const name = graph?.name(node) ?? "";
    this.selected.replaceChildren(el("h2", {}, "Selected op"), el("div", { class: "rlx-name" }, wrappingName(name)),
      el("p", { class: "rlx-hint" }, `${graph?.op(node) ?? "An op"} of the model. No output needs it, so it has no tensor.`));
    this.twin.textContent = `${name}\nremoved: no output needs it`;
  }

  /** The same for the text twin. @param {import("./data.js").Snapshot} snap @param {number} row */
  whyTexts(snap, row) {
    const reader = lastReader(snap, row);
    const chain = aliasChain(snap, row);
    const blocked = blockedBy(snap, row);
    const data = fusionOf(snap);
    const name = (/** @type {number} */ one) => snap.text("name", one);
    return [
      `made by ${snap.text("op", row)} at step ${snap.step[row]}`,
      reader >= 0 ? `last read by ${name(reader)} at step ${snap.step[reader]}` : "last read by nothing",
      ...(chain.length > 1 ? [`alias of ${chain.slice(1).map(name).join(" of ")}`] : []),
      ...freeingOf(snap, snap.t.size[row] > 0 ? row : snap.t.root[row]).map((one) => `freed after step ${one.death} by ${one.option} = ${one.value}, saves ${one.saved}`),
      ...(blocked ? [`why not lower: ${blocked.text}${blocked.on.length ? ` rests on ${blocked.on.map(name).join(", ")}` : ""}`] : []),
      ...verdictsOf(snap, row).map(verdictText),
      ...(data.same ? [] : Array.from(data.membersOf(row), (node) => `in the model: ${data.source?.op(node)} ${data.source?.name(node)}`)),
    ];
  }

  /** @param {import("./data.js").Snapshot} snap @param {number} row */
  link(snap, row) {
    return el("button", {
      type: "button", class: "rlx-link", "data-row": row, title: snap.text("name", row),
      onclick: () => this.store.set({ selected: row }),
      onpointerenter: () => this.store.set({ hover: row }),
      onpointerleave: () => this.store.set({ hover: -1 }),
    }, snap.text("name", row) || `row ${row}`);
  }

  /** @param {import("./data.js").Snapshot} snap @param {string} title @param {number[]} rows */
  links(snap, title, rows) {
    if (!rows.length) return [];
    const list = el("ul", { class: "rlx-links" }, ...rows.slice(0, LINKS).map((row) => el("li", {}, this.link(snap, row))));
    if (rows.length > LINKS) {
      const more = el("button", { type: "button", class: "rlx-more", onclick: () => {
        more.parentElement.remove();
        for (const row of rows.slice(LINKS)) list.append(el("li", {}, this.link(snap, row)));
      } }, `… ${formatCount(rows.length - LINKS)} more`);
      list.append(el("li", {}, more));
    }
    return [el("h3", {}, title, el("span", { class: "rlx-count" }, ` ${formatCount(rows.length)}`)), list];
  }

  /** @param {import("./store.js").State} state */
  buildLive(state) {
    const snap = /** @type {import("./data.js").Snapshot} */ (state.snap);
    const step = snap.meta.headline?.peak_step ?? 0;
    const rows = snap.n ? snap.liveAt(step) : [];
    const scheme = schemeOf(state, THEMES[state.theme]);
    const most = rows.length ? snap.t.size[rows[0]] : 1;
    // What is below 1 % of the peak only lengthens the list: one line stands for it.
    const total = rows.reduce((sum, row) => sum + snap.t.size[row], 0);
    let shown = rows.findIndex((row) => snap.t.size[row] * 100 < total);
    if (shown === 0) shown = Math.min(rows.length, LIVE);
    if (shown < 0 || rows.length - shown < 2) shown = rows.length;
    const rest = rows.slice(shown);
    const unfolded = this.live.querySelector(".rlx-rest")?.getAttribute("aria-expanded") === "true";
    const bar = (/** @type {number} */ row) => {
      const length = el("i", { "aria-hidden": "true" });
      length.style.width = `${Math.max(1, (snap.t.size[row] / most) * 100)}%`;
      length.style.background = scheme.colours[scheme.of(row)];
      return el("li", {}, el("button", {
        type: "button", "data-row": row, title: snap.text("name", row),
        onclick: () => this.store.set({ selected: this.store.state.selected === row ? -1 : row }),
        onpointerenter: () => this.store.set({ hover: row }),
        onpointerleave: () => this.store.set({ hover: -1 }),
      }, el("span", { class: "rlx-bar-name" }, el("bdi", {}, snap.text("name", row))), el("b", {}, formatBytes(snap.t.size[row])), length));
    };
    const restText = `${formatCount(rest.length)} more, ${formatBytes(rest.reduce((sum, row) => sum + snap.t.size[row], 0))}`;
    const restList = el("ol", { class: "rlx-bars", hidden: true });
    const more = el("button", { type: "button", class: "rlx-rest", "aria-expanded": "false", title: "Each below 1 % of the peak", onclick: () => {
      if (!restList.children.length) {
        restList.append(...rest.slice(0, REST).map(bar));
        if (rest.length > REST) restList.append(el("li", { class: "rlx-hint" }, `… ${formatCount(rest.length - REST)} not listed`));
        this.markLive(this.store.state.selected);
      }
      restList.hidden = !restList.hidden;
      more.setAttribute("aria-expanded", String(!restList.hidden));
    } }, restText);
    this.live.replaceChildren(
      el("h2", {}, "Live at the peak", el("span", { class: "rlx-count" }, rows.length ? ` step ${formatCount(step)} · ${formatCount(rows.length)}` : "")),
      rows.length ? el("ol", { class: "rlx-bars" }, ...rows.slice(0, shown).map(bar)) : el("p", { class: "rlx-hint" }, "Nothing lives in the arena."));
    if (rest.length) this.live.append(more, restList);
    if (unfolded) more.click();
    const listed = Math.min(rows.length, TWIN_ROWS);
    this.liveTwin.textContent = [
      `live at the peak, step ${step}: ${formatCount(listed)} of ${formatCount(rows.length)} listed, at most ${TWIN_ROWS}, largest first`,
      ...rows.slice(0, listed).map((row) => `${snap.text("name", row)}  ${snap.t.size[row]}`),
      ...(rest.length ? [`below 1 % of the peak: ${restText}`] : []),
    ].join("\n");
    this.markLive(state.selected);
  }

  /** @param {number} selected */
  markLive(selected) {
    for (const button of this.live.querySelectorAll("button[data-row]")) {
      button.classList.toggle("rlx-on", Number(button.dataset.row) === selected);
    }
  }

  close() {
    this.stop();
  }
}
