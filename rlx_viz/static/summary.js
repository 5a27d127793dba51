// Owns the headline: the number to allocate and its parts, what reuse saved, the peak, and what to distrust.

import { el, swatch } from "./dom.js";
import { formatBytes, formatCount, formatExact, formatShare, toBig } from "./format.js";
import { timeText } from "./commands.js";
import { THEMES, coloursFor } from "./palette.js";

const PARTS = ["weights", "activations", "scratch", "padding"];

export class SummaryView {
  /** @param {import("./store.js").Store} store */
  constructor(store) {
    this.store = store;
    this.twin = el("pre", { class: "rlx-twin rlx-twin-hidden", "data-twin": "summary", "aria-label": "Summary as text" });
    this.content = el("div", { class: "rlx-summary-content" });
    this.element = el("section", { class: "rlx-summary", "aria-label": "Summary" }, this.content, this.twin);
    this.stop = store.on((changed, state) => {
      if (state.snap && ["snap", "theme", "base", "baseline"].some((key) => changed.has(key))) this.build(state);
    });
  }

  /** @param {import("./store.js").State} state */
  build(state) {
    const snap = /** @type {import("./data.js").Snapshot} */ (state.snap);
    const head = snap.meta.headline ?? {};
    const least = head.unknown > 0 ? "≥ " : "";
    // A difference of two lower bounds is no bound itself.
    const about = least ? "≈ " : "";
    const total = toBig(head.allocate);
    const before = baselineOf(state);
    /** @param {string} key @param {bigint} now */
    const delta = (key, now) => {
      if (!before || before[key] === undefined) return null;
      const by = now - toBig(before[key]);
      return el("em", { class: `rlx-by ${by > 0n ? "rlx-worse" : by < 0n ? "rlx-better" : ""}`, "data-delta": key, title: `against the pinned baseline's ${formatExact(before[key])}` },
        by === 0n ? "±0" : `${by > 0n ? "+" : ""}${formatBytes(by)}`);
    };
    const colours = coloursFor(PARTS, THEMES[state.theme]);
    const parts = PARTS.map((name, i) => ({ name, bytes: toBig(head[name]), colour: colours[i] }));

    const bar = el("div", { class: "rlx-stack", "aria-hidden": "true" });
    for (const part of parts) {
      if (part.bytes <= 0n) continue;
      const piece = el("i", { title: `${part.name} ${formatBytes(part.bytes)}` });
      piece.style.background = part.colour;
      piece.style.flexGrow = String(Math.max(Number((part.bytes * 10000n) / (total || 1n)), 15));
      bar.append(piece);
    }
    const legend = parts.map((part) =>
      el("span", { class: "rlx-part", title: formatExact(part.bytes) }, swatch(part.colour),
        el("span", {}, part.name), el("b", {}, formatBytes(part.bytes))));

    const main = el("div", { class: "rlx-allocate" },
      el("div", { class: "rlx-fact-name" }, "Allocate"),
      el("div", { class: "rlx-number", "data-fact": "allocate" }, `${least}${formatBytes(total)}`, delta("allocate", total)),
      el("div", { class: "rlx-exact" }, `${least}${formatExact(total)}`));
    const stack = el("div", { class: "rlx-parts" }, bar, el("div", { class: "rlx-part-row" }, ...legend));

    const arena = toBig(head.arena);
    const bound = toBig(head.lower_bound);
    const naive = toBig(head.naive);
    const gap = arena - bound;
    const top = snap.n && Number.isInteger(head.peak_step) ? snap.liveAt(head.peak_step)[0] : undefined;
    const gaps = gapsAtPeak(snap);
    const facts = el("dl", { class: "rlx-facts" },
      fact("arena", "Arena", [`${least}${formatBytes(arena)}`, delta("arena", arena)], "no weights"),
      fact("naive", "Naive (nothing reused)", `${least}${formatBytes(naive)}`, formatExact(naive)),
      fact("saved", "Saved", `${about}${formatBytes(head.saved)}`, `${formatShare(toBig(head.saved), naive)} of it`),
      fact("peak", "Peak", `${least}${formatBytes(head.peak_bytes)}`,
        [snap.n ? `step ${formatCount(head.peak_step ?? 0)}` : "no steps", gaps ? ` · gaps ${formatShare(gaps.bytes, gaps.top)}` : ""].join(""),
        top === undefined ? undefined : () => this.goToPeak(head.peak_step, top)),
      fact("lower_bound", "Lower bound", `${least}${formatBytes(bound)}`,
        least ? "sizes unknown" : gap === 0n ? "reached" : `${head.optimal ? "proved, " : "arena is "}${aboveText(gap, bound)}`),
      ...this.workFacts(snap));

    const lines = [];
    if (head.unknown > 0) {
      lines.push(note("warn", `${formatCount(head.unknown)} of unknown size`, head.unknown_names ?? []));
    }
    const unsupported = Object.entries(snap.meta.unsupported ?? {});
    if (unsupported.length) {
      const count = unsupported.reduce((sum, [, k]) => sum + Number(k), 0);
      lines.push(note("warn", `${formatCount(count)} opaque op${count === 1 ? "" : "s"}`, unsupported.map(([op, k]) => `${op} × ${k}`)));
    }
    const notes = snap.meta.notes ?? [];
    if (notes.length) lines.push(note("info", `${formatCount(notes.length)} note${notes.length === 1 ? "" : "s"}`, notes));
    const claims = claimsOf(snap);
    const remarks = el("div", { class: "rlx-remarks" }, ...lines);
    const stands = el("ul", { class: "rlx-claims", hidden: claims.length ? null : true, "aria-label": "What the numbers stand on" },
      ...claims.map((one) => el("li", { class: one.kind === "holder" ? "rlx-held" : null, "data-claim": one.kind, title: one.title || one.text }, one.text)));

    this.content.classList.toggle("rlx-many", facts.children.length > 5);
    this.content.replaceChildren(main, stack, facts, remarks, stands);
    this.twin.textContent = [
      `allocate ${least}${formatBytes(total)} (${formatExact(total)})`,
      ...parts.map((part) => `  ${part.name} ${formatBytes(part.bytes)} (${formatExact(part.bytes)})`),
      `arena ${least}${formatExact(arena)}`,
      `naive (nothing reused) ${least}${formatExact(naive)}`,
      `saved ${about}${formatExact(head.saved)} (${formatShare(toBig(head.saved), naive)})`,
      `peak ${least}${formatExact(head.peak_bytes)} at step ${head.peak_step}`,
      `lower bound ${least}${formatExact(bound)}, gap ${about}${formatExact(gap)}`,
      ...claims.map((one) => `${one.kind}: ${one.text}`),
      ...(gaps ? [`fragmentation at the peak ${formatExact(gaps.bytes)} of ${formatExact(gaps.top)} (${formatShare(gaps.bytes, gaps.top)})`] : []),
      ...workTexts(snap),
      ...(before ? [`against the baseline: allocate ${total - toBig(before.allocate)} B, arena ${arena - toBig(before.arena)} B`] : []),
      `model hash ${snap.meta.footer?.model_hash ?? snap.meta.model?.hash ?? "unknown"}`,
      `tensors ${formatCount(snap.n)}, of unknown size ${head.unknown ?? 0}`,
      ...(head.unknown_names ?? []).map((/** @type {string} */ name) => `  unknown size: ${name}`),
      ...unsupported.map(([op, k]) => `unsupported ${op} × ${k}`),
      ...notes.map((/** @type {string} */ text) => `note: ${text}`),
    ].join("\n");
  }

  /** Dispatches, traffic and estimated time. @param {import("./data.js").Snapshot} snap */
  workFacts(snap) {
    const { counters, estimate } = snap.meta;
    const least = snap.meta.headline?.unknown > 0 ? "≥ " : "";
    const facts = [];
    if (counters) {
      facts.push(fact("dispatches", "Dispatches", [el("span", { class: "rlx-was" }, `${formatCount(counters.dispatches_source)} → `), formatCount(counters.dispatches)],
        counters.dispatches_before !== counters.dispatches ? `${formatCount(counters.dispatches_before)} before passes` : "no pass applied"));
      facts.push(fact("traffic", "Intermediates", [el("span", { class: "rlx-was" }, `${least}${formatBytes(counters.traffic_source)} → `), `${least}${formatBytes(counters.traffic)}`], "written in one run"));
    }
    if (estimate) {
      facts.push(fact("estimate", "Estimated time", [el("span", { class: "rlx-was" }, `${timeText(estimate.us_before)} → `), timeText(estimate.us)], "by roofline", undefined, `Roofline estimate for ${estimate.title || estimate.device}`));
    }
    return facts;
  }

  /** @param {number} step @param {number} top */
  goToPeak(step, top) {
    const { snap } = this.store.state;
    const span = Math.min(240, Math.max(20, Math.round((snap?.steps ?? 1) / 12)));
    const low = Math.max(0, Math.min(step - span / 2, (snap?.steps ?? 1) - span));
    this.store.set({ x: span < (snap?.steps ?? 1) ? [low, low + span] : null, selected: top });
  }

  close() {
    this.stop();
  }
}

/**
 * The sentences beside the numbers: conditions of the bound, the order's floor, what holds the arena up, bodies.
 * @param {import("./data.js").Snapshot} snap @returns {{kind: string, text: string, title: string}[]}
 */
function claimsOf(snap) {
  const { optimal = "", order = "", holders = [], bodies = [] } = snap.meta.claims ?? {};
  return [
    ...holders.map((/** @type {any} */ one) => ({ kind: "holder", text: one.text, title: one.doc })),
    { kind: "optimal", text: optimal, title: "" }, { kind: "order", text: order, title: "" },
    ...bodies.map((/** @type {any} */ one) => ({ kind: "body", text: one.text, title: "" })),
  ].filter((one) => one.text);
}

/** @param {bigint} gap @param {bigint} bound */
function aboveText(gap, bound) {
  if (gap > bound * 3n && bound > 0n) return `${((gap + bound) / bound).toString()}× as large`;
  return `${formatShare(gap, bound)} above`;
}

/** @param {string} key @param {string} name @param {any} value @param {string} detail @param {(() => void) | undefined} [action] @param {string} [title] */
function fact(key, name, value, detail, action, title = detail) {
  const shown = action
    ? el("button", { type: "button", class: "rlx-link", onclick: action, title: "Zoom to the peak" }, value)
    : value;
  return el("div", { "data-fact": key }, el("dt", {}, name), el("dd", {}, shown, el("small", { title }, detail)));
}

/** Headline of the pinned plan, null for none or when it is the plan on screen. @param {import("./store.js").State} state */
function baselineOf(state) {
  if (state.base) return state.base === state.snap ? null : state.base.meta.headline ?? null;
  return state.baseline?.headline ?? null;
}

/** Bytes not in use below the highest live slot at the peak; null when nothing lives. @param {import("./data.js").Snapshot} snap */
function gapsAtPeak(snap) {
  const step = snap.meta.headline?.peak_step;
  if (snap.meta.sampled) return null; // what lies between the tensors of a sample is no gap
  if (!snap.n || !Number.isInteger(step)) return null;
  const { offset, size, guard, root } = snap.t;
  let top = 0;
  const ends = [];
  for (const row of snap.liveAt(step)) {
    if (root[row] !== row) continue;
    ends.push([offset[row], offset[row] + size[row] + guard[row]]);
  }
  let used = 0;
  for (const [from, to] of ends.sort((a, b) => a[0] - b[0])) {
    used += Math.max(0, to - Math.max(from, top));
    top = Math.max(top, to);
  }
  return top > 0 ? { bytes: BigInt(Math.round(top - used)), top: BigInt(Math.round(top)) } : null;
}

/** @param {import("./data.js").Snapshot} snap */
function workTexts(snap) {
  const { counters, estimate } = snap.meta;
  return [
    ...(counters ? [`dispatches ${counters.dispatches_source} → ${counters.dispatches_before} before passes → ${counters.dispatches}`,
      `intermediate traffic ${formatExact(counters.traffic_source)} → ${formatExact(counters.traffic)}`] : []),
    ...(estimate ? [`estimated ${estimate.us_before} µs → ${estimate.us} µs (roofline, ${estimate.title || estimate.device})`] : []),
  ];
}

/** @param {string} kind @param {string} title @param {string[]} items */
function note(kind, title, items) {
  const limit = 200;
  const list = el("ul", {}, ...items.slice(0, limit).map((text) => el("li", {}, text)));
  if (items.length > limit) list.append(el("li", {}, `… ${formatCount(items.length - limit)} more`));
  return el("details", { class: `rlx-remark rlx-${kind}` }, el("summary", {}, title), list);
}
