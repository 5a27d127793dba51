// Owns the comparison of two plans: both arenas on the same axes, coloured by what changed, and a table of deltas.
// Which tensor is which is decided in matching.js.

import { el, lastParts, swatch, wrappingName } from "./dom.js";
import { countOf, formatBytes, formatCount, formatExact, formatTick, roundTicks, toBig } from "./format.js";
import { ListView, LongList, stepInList } from "./listview.js";
import { causeOf, changedOptions, CHANGES, comparisonOf, fromScreen, GONE, toScreen } from "./matching.js";
import { mixColours, THEMES, toPixel } from "./palette.js";
import { Plot, TWIN_ROWS } from "./plot.js";
import { makeRects, pushRect } from "./raster.js";
import { isOpen } from "./store.js";
import { StepIndex } from "./stepindex.js";

const CHANGE_COLOURS = ["slate", "sky", "vermillion", "green", "purple", "orange"];
/** New is dotted, gone is lined: told apart without colour. */
const CHANGE_PATTERNS = [0, 0, 0, 1, 0, 2];
const PATTERN_NAMES = ["", "dots", "lines"];
const DELTA_ROW = 19;
const HEADLINES = { allocate: "allocate", arena: "arena", weights: "weights", scratch: "scratch", naive: "naive", peak_bytes: "peak", lower_bound: "lower bound" };

/** @param {import("./palette.js").Theme} theme @param {number} change */
function changeColour(theme, change) {
  return change === 0 ? mixColours(theme.muted, theme.ground, 0.35) : theme.colours[CHANGE_COLOURS[change]];
}

/** One of the two arenas. */
export class DiffPlot extends Plot {
  /** @param {import("./store.js").Store} store @param {() => boolean} wheelAllowed @param {"a" | "b"} side */
  constructor(store, wheelAllowed, side) {
    super(store, {
      name: `compare-${side}`, title: side.toUpperCase(), wheelAllowed,
      label: `Arena map of plan ${side.toUpperCase()}: changes are marked.`,
    });
    this.side = side;
    this.lazy = true;
    this.axis = true;
    this.grow.remove();
    this.heading.removeAttribute("title");
    this.rects = makeRects(0);
    this.top = 1;
    /** @type {StepIndex | null} */
    this.index = null;
  }

  get asleep() { return !isOpen(this.state, "compare") || !comparisonOf(this.state); }
  get inputs() { return ["snap", "base", "other", "theme", "match", "space"]; }
  get frontKeys() { return [...super.frontKeys, "hoverOther"]; }
  get yKey() { return /** @type {const} */ ("offsets"); }
  get yLeast() { return 64; }
  get comparison() { return comparisonOf(this.state); }
  get snap() {
    const both = this.comparison;
    return /** @type {import("./data.js").Snapshot} */ (both ? (this.side === "a" ? both.base : both.next) : this.state.snap);
  }
  /** @returns {[number, number]} */
  get fullX() {
    const both = this.comparison;
    return [0, both ? Math.max(both.base.steps, both.next.steps) : 1];
  }
  /** @returns {[number, number]} */
  fullY() { return [0, this.top * 1.08]; }

  build() {
    const { snap, comparison, state } = this;
    if (!comparison) return;
    const changes = this.side === "a" ? comparison.matching.changeBase : comparison.matching.change;
    const rects = makeRects(snap.n);
    const { birth, death, offset, size, space } = snap.t;
    /** @param {import("./data.js").Snapshot} one */
    const wanted = (one) => (state.space === "weights" ? one.weightsSpace : one.arenaSpace);
    // What did not change lies under what did.
    for (const changed of [false, true]) {
      for (let row = 0; row < snap.n; row++) {
        if (space[row] !== wanted(snap) || !(size[row] > 0) || (changes[row] !== 0) !== changed) continue;
        const change = changes[row];
        pushRect(rects, birth[row], death[row] + 1, offset[row], offset[row] + size[row], 1 + change, CHANGE_PATTERNS[change] ? 10 + change : 0, row, CHANGE_PATTERNS[change]);
      }
    }
    this.rects = rects;
    this.index = null;
    let top = 1;
    for (const one of [comparison.base, comparison.next]) {
      const t = one.t;
      for (let row = 0; row < one.n; row++) if (t.space[row] === wanted(one) && t.size[row] > 0) top = Math.max(top, t.offset[row] + t.size[row] + t.guard[row]);
    }
    this.top = top;
    const role = comparison.screen === this.side ? "on screen" : comparison.screen === "b" ? "pinned baseline" : "compared plan";
    this.note.textContent = [role, snap.meta.model?.name ?? "", state.space === "weights" ? countOf(rects.n, "slot") : `arena ${formatBytes(snap.meta.headline?.arena)}`]
      .filter(Boolean).join(" · ");
  }

  paint() {
    const { kx, ox, ky, oy } = this.transform();
    const table = new Uint32Array(20);
    for (let change = 0; change < CHANGES.length; change++) {
      table[1 + change] = toPixel(changeColour(this.theme, change));
      table[10 + change] = toPixel(this.theme.ink);
    }
    this.renderer.rects(this.rects, kx, ox, ky, oy, table);
  }

  yTicks() { return roundTicks(this.y[0], this.y[1], Math.max(2, this.area.height / 36), true); }

  /** @param {CanvasRenderingContext2D} context */
  labels(context) {
    const { left, top, height } = this.area;
    context.fillStyle = this.theme.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const tick of this.yTicks()) context.fillText(formatTick(tick), left - 8, Math.min(Math.max(this.toY(tick), top + 5), top + height - 4));
  }

  /** @param {number} width @param {number} height */
  margins(width, height) { return { ...super.margins(width, height), left: Math.min(width * 0.4, 66 * this.type) }; }

  /** @param {CanvasRenderingContext2D} context */
  decorate(context) {
    const { state, comparison } = this;
    if (!comparison) return;
    /** @param {number} row row on screen @param {string} colour @param {number} width */
    const frame = (row, colour, width) => this.frameRow(context, fromScreen(comparison, this.side, row), colour, width);
    if (state.selected >= 0) frame(state.selected, this.theme.accent, 2);
    if (state.hover >= 0 && state.hover !== state.selected) frame(state.hover, this.theme.ink, 1.5);
    if (state.hover < 0 && comparison.screen !== this.side) this.frameRow(context, state.hoverOther, this.theme.ink, 1.5);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} row @param {string} colour @param {number} width */
  frameRow(context, row, colour, width) {
    const { birth, death, offset, size, root, space } = this.snap.t;
    if (row < 0) return;
    const slot = size[row] > 0 ? row : root[row];
    const wanted = this.state.space === "weights" ? this.snap.weightsSpace : this.snap.arenaSpace;
    if (!(size[slot] > 0) || space[slot] !== wanted) return;
    this.outline(context, [birth[slot], death[slot] + 1, offset[slot], offset[slot] + size[slot]], colour, width);
  }

  /** @param {import("./plot.js").Point} at */
  hit(at) {
    const { rects } = this;
    const x = this.fromX(at.x);
    const y = this.fromY(at.y);
    const slack = (2 * (this.y[1] - this.y[0])) / this.area.height;
    const slackX = (2 * (this.x[1] - this.x[0])) / this.area.width;
    this.index ??= new StepIndex(rects.x0, rects.x1, rects.n, this.snap.steps);
    let found = -1;
    this.index.near(x - slackX, x + slackX, (i) => {
      if (rects.x0[i] - slackX <= x && rects.x1[i] + slackX >= x && rects.y0[i] - slack <= y && rects.y1[i] + slack >= y && i > found) found = i;
    });
    return found < 0 ? -1 : rects.row[found];
  }

  /** @param {import("./plot.js").Point | null} at */
  point(at) {
    this.pointer = at;
    const inside = at && this.inArea(at);
    const row = inside ? this.hit(at) : -1;
    this.store.set({
      ...hoverOf(this.comparison, this.side, row), pointer: at ? this.name : "", at,
      hoverStep: inside ? Math.min(Math.floor(this.fromX(at.x)), this.snap.steps - 1) : -1,
    });
  }

  /** @param {import("./plot.js").Point} at */
  click(at) {
    if (this.inArea(at) && this.comparison) this.store.set({ selected: toScreen(this.comparison, this.side, this.hit(at)) });
  }

  /** @param {import("./store.js").State} state @returns {{key: string, parts: any[]} | null} */
  tip(state) {
    const { comparison } = this;
    if (!comparison || (state.hover < 0 && state.hoverOther < 0)) return null;
    const { base, next, matching } = comparison;
    const old = comparison.screen === "a" ? state.hover : state.hoverOther;
    const row = comparison.screen === "a" ? state.hoverOther : state.hover;
    const change = row >= 0 ? matching.change[row] : GONE;
    const list = el("dl", { class: "rlx-pairs" });
    for (const [name, a, b] of sidesOf(base, next, old, row)) list.append(el("dt", {}, name), el("dd", {}, a === b ? a : `${a || "–"} → ${b || "–"}`));
    const cause = change ? causeOf(base, next, old, row) : "";
    if (cause) list.append(el("dt", {}, "because"), el("dd", {}, cause));
    const name = row >= 0 ? next.text("name", row) : base.text("name", old);
    return { key: `c${old} ${row}`, parts: [
      el("div", { class: "rlx-name" }, swatch(changeColour(this.theme, change), PATTERN_NAMES[CHANGE_PATTERNS[change]]), wrappingName(name)),
      el("div", { class: "rlx-hint" }, change === GONE ? "gone: no match in B" : change === 3 ? "new: no match in A" : CHANGES[change]), list] };
  }

  describe() {
    return this.comparison ? `plan ${this.side.toUpperCase()}: ${this.note.textContent}, ${countOf(this.rects.n, "slot")}` : "";
  }
}

/** Hover state of a row of one side. @param {import("./matching.js").Comparison | null} comparison @param {"a" | "b"} side @param {number} row */
function hoverOf(comparison, side, row) {
  if (!comparison || row < 0) return { hover: -1, hoverOther: -1 };
  const hover = toScreen(comparison, side, row);
  const away = comparison.screen === "a" ? "b" : "a";
  return { hover, hoverOther: side === away ? row : fromScreen(comparison, away, hover) };
}

/** Facts of one tensor in both plans. @param {import("./data.js").Snapshot} base @param {import("./data.js").Snapshot} snap @param {number} old @param {number} row @returns {[string, string, string][]} */
function sidesOf(base, snap, old, row) {
  /** @param {import("./data.js").Snapshot} one @param {number} at */
  const facts = (one, at) => (at < 0 ? ["", "", ""] : [
    formatBytes(one.t.size[at]), formatExact(one.t.offset[at]), `${formatCount(one.t.birth[at])} to ${formatCount(one.t.death[at])}`]);
  const a = facts(base, old);
  const b = facts(snap, row);
  return [["bytes", a[0], b[0]], ["offset", a[1], b[1]], ["live", a[2], b[2]]];
}

/** @typedef {{old: number, row: number, change: number, delta: number}} Delta */

export class CompareView extends ListView {
  /** @param {import("./store.js").Store} store @param {() => boolean} wheelAllowed @param {{pin: () => void}} actions */
  constructor(store, wheelAllowed, actions) {
    super(store, { name: "compare", title: "Compare" });
    this.plots = [new DiffPlot(store, wheelAllowed, "a"), new DiffPlot(store, wheelAllowed, "b")];
    const height = () => Math.round(DELTA_ROW * (store.state.present ? 1.45 : 1));
    this.list = new LongList({ label: "Changed tensors", height, row: (index) => this.deltaRow(index) });
    /** @type {Delta[]} */
    this.deltas = [];
    /** Changes that the table shows; all but "same" until one is picked. */
    this.only = -1;
    /** Row of the table that was chosen last. */
    this.at = -1;
    this.list.element.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.step(event));
    this.verdict = el("div", { class: "rlx-sentence" });
    this.heads = el("div", { class: "rlx-delta-head" });
    this.filters = el("div", { class: "rlx-filters" });
    this.blank = el("div", { class: "rlx-blank" });
    this.inner = el("div", { class: "rlx-compare" },
      this.verdict, el("div", { class: "rlx-pair" }, ...this.plots.map((plot) => plot.element)),
      el("div", { class: "rlx-deltas" }, this.heads, this.filters,
        el("div", { class: "rlx-list-head rlx-delta" }, ...["", "tensor", "bytes", "offset", "because"].map((text) => el("span", {}, text))), this.list.element));
    this.content.append(this.blank, this.inner);
    this.actions = actions;
    this.pin = el("button", { type: "button", class: "rlx-toggle", title: "Keep this plan as the baseline of every comparison (b)", onclick: actions.pin }, "Pin this plan");
    this.tools.append(this.pin);
  }

  get inputs() { return ["snap", "base", "other", "theme"]; }

  build() {
    const comparison = comparisonOf(this.state);
    this.blank.hidden = Boolean(comparison);
    this.inner.hidden = !comparison;
    this.deltas = [];
    this.at = -1;
    this.pin.textContent = this.state.base === this.state.snap ? "Unpin" : "Pin this plan";
    if (!comparison) {
      this.note.textContent = "";
      this.list.show(0);
      this.blank.replaceChildren("Pin this plan as the baseline, then change an option: both arenas show here on the same axes, coloured by what changed.");
      return;
    }
    const { base, next: snap, matching } = comparison;
    /** @param {import("./data.js").Snapshot} one @param {number} row */
    const bytes = (one, row) => (row < 0 ? 0 : one.t.size[row]);
    for (let row = 0; row < snap.n; row++) {
      const old = matching.other[row];
      if (!matching.change[row] || !(bytes(snap, row) || bytes(base, old))) continue;
      this.deltas.push({ old, row, change: matching.change[row], delta: bytes(snap, row) - bytes(base, old) });
    }
    for (let old = 0; old < base.n; old++) {
      if (matching.back[old] < 0 && bytes(base, old)) this.deltas.push({ old, row: -1, change: GONE, delta: -bytes(base, old) });
    }
    this.deltas.sort((a, b) => Math.abs(b.delta) - Math.abs(a.delta) || bytes(snap, b.row) + bytes(base, b.old) - bytes(snap, a.row) - bytes(base, a.old) || a.row - b.row);
    const changed = matching.counts.slice(1).reduce((sum, count) => sum + count, 0);
    this.note.textContent = `${formatCount(changed)} changed · ${formatCount(matching.counts[0])} same`;
    this.fillVerdict(verdictOf(snap));
    this.fillHeads(base, snap);
    this.fillFilters(matching.counts);
    this.list.show(this.shown.length);
  }

  get shown() {
    return this.only < 0 ? this.deltas : this.deltas.filter((delta) => delta.change === this.only);
  }

  /** Python's sentence over its notes; none where both plans met in the page. @param {Verdict | null} verdict */
  fillVerdict(verdict) {
    this.verdict.hidden = !verdict;
    const notes = verdict?.notes ?? [];
    this.verdict.replaceChildren(el("div", {}, verdict?.sentence ?? ""), notes.length
      ? el("details", {}, el("summary", {}, countOf(notes.length, "note")), el("ul", {}, ...notes.map((note) => el("li", {}, note)))) : "");
  }

  /** @param {import("./data.js").Snapshot} base @param {import("./data.js").Snapshot} snap */
  fillHeads(base, snap) {
    const facts = headlineDeltas(base, snap).filter(([, a, b]) => a !== b).map(([name, a, b]) =>
      el("span", { title: `${formatExact(a)} → ${formatExact(b)}` }, el("span", { class: "rlx-count" }, `${name} `),
        el("b", {}, signed(b - a)), el("span", { class: "rlx-count" }, ` to ${formatBytes(b)}`)));
    const options = changedOptions(base, snap).map(([name, a, b]) => el("span", { class: "rlx-cause" }, `${name}: ${text(a)} → ${text(b)}`));
    this.heads.replaceChildren(...(facts.length ? facts : [el("span", { class: "rlx-count" }, "The same numbers.")]), ...options);
  }

  /** @param {number[]} counts */
  fillFilters(counts) {
    const theme = THEMES[this.state.theme];
    this.filters.replaceChildren(...CHANGES.map((name, change) => {
      const title = name === "gone" ? "Only in A: no match in B" : name === "new" ? "Only in B: no match in A" : `Show only ${name}`;
      const words = name === "gone" ? "gone, no match" : name === "new" ? "new, no match" : name;
      return change === 0
        ? el("span", { class: "rlx-key", "data-change": name }, swatch(changeColour(theme, change)), `same ${formatCount(counts[0])}`)
        : el("button", { type: "button", class: "rlx-key", "data-change": name, "aria-pressed": String(this.only < 0 || this.only === change), disabled: counts[change] === 0, title,
          onclick: () => {
            this.only = this.only === change ? -1 : change;
            this.at = -1;
            this.fillFilters(counts);
            this.list.show(this.shown.length);
          } }, swatch(changeColour(theme, change), PATTERN_NAMES[CHANGE_PATTERNS[change]]), `${words} ${formatCount(counts[change])}`);
    }));
  }

  /** @param {number} index */
  deltaRow(index) {
    const { old, row, change, delta } = this.shown[index];
    const comparison = /** @type {import("./matching.js").Comparison} */ (comparisonOf(this.state));
    const { base, next } = comparison;
    const [size, offset, life] = sidesOf(base, next, old, row);
    const name = row >= 0 ? next.text("name", row) : base.text("name", old);
    const cause = causeOf(base, next, old, row);
    const shown = row >= 0 ? toScreen(comparison, "b", row) : toScreen(comparison, "a", old);
    // What is gone can't be selected on screen: it is the one chosen here.
    const on = shown === this.state.selected && (shown >= 0 || index === this.at);
    return el("div", {
      class: `rlx-row rlx-delta${on ? " rlx-on" : ""}`, role: "option", "aria-selected": String(on),
      "data-row": shown, title: `${name}\n${CHANGES[change]}\nbytes ${size[1] || "–"} → ${size[2] || "–"}\noffset ${offset[1] || "–"} → ${offset[2] || "–"}\nlive ${life[1] || "–"} → ${life[2] || "–"}\n${cause}`,
      onclick: () => this.choose(index),
      onpointerenter: () => this.store.set(row >= 0 ? hoverOf(comparison, "b", row) : hoverOf(comparison, "a", old)),
      onpointerleave: () => this.store.set({ hover: -1, hoverOther: -1 }),
    }, swatch(changeColour(THEMES[this.state.theme], change), PATTERN_NAMES[CHANGE_PATTERNS[change]]),
    el("span", { class: "rlx-label" }, lastParts(name, 2)),
    el("span", { class: "rlx-num" }, delta ? signed(BigInt(delta)) : size[2] || size[1]),
    el("span", { class: "rlx-num" }, old >= 0 && row >= 0 ? (base.t.offset[old] === next.t.offset[row] ? "=" : signed(BigInt(next.t.offset[row] - base.t.offset[old]))) : "–"),
    el("span", { class: "rlx-what" }, cause));
  }

  /** The row on screen that a row of the table stands for, -1 for none. @param {number} index */
  shownRow(index) {
    const comparison = /** @type {import("./matching.js").Comparison} */ (comparisonOf(this.state));
    const { old, row } = this.shown[index];
    return row >= 0 ? toScreen(comparison, "b", row) : toScreen(comparison, "a", old);
  }

  /** @param {number} index */
  choose(index) {
    const { old, row } = this.shown[index];
    const comparison = comparisonOf(this.state);
    this.at = index;
    this.store.set({ selected: this.shownRow(index), reveal: this.state.reveal + 1, ...(row >= 0 ? hoverOf(comparison, "b", row) : hoverOf(comparison, "a", old)) });
    this.list.fill(true);
  }

  /** @param {KeyboardEvent} event */
  step(event) {
    if (!comparisonOf(this.state)) return;
    const { shown } = this;
    const { selected } = this.state;
    const held = this.at >= 0 && this.at < shown.length && this.shownRow(this.at) === selected ? this.at
      : selected < 0 ? -1 : shown.findIndex((_, index) => this.shownRow(index) === selected);
    const next = stepInList(event, held, shown.length);
    if (next < 0 || next === held) return;
    this.choose(next);
    this.store.flush();
    this.list.reveal(next);
    this.list.fill(true);
  }

  /** @param {Set<string>} changed */
  mark(changed) {
    if (changed.has("selected") && comparisonOf(this.state)) this.list.fill(true);
  }

  writeTwin() {
    super.writeTwin();
    for (const plot of this.plots) plot.writeTwin();
  }

  describe() {
    const comparison = comparisonOf(this.state);
    if (!comparison) return "compare: no baseline";
    const { base, next: snap, matching } = comparison;
    const lines = [`compare: ${CHANGES.map((name, change) => `${name} ${matching.counts[change]}`).join(", ")}`];
    const verdict = verdictOf(snap);
    if (verdict) lines.push(verdict.sentence, ...verdict.notes.map((note) => `note: ${note}`));
    for (const [name, a, b] of headlineDeltas(base, snap)) lines.push(`${name}  ${a} → ${b}  ${b - a}`);
    for (const [name, a, b] of changedOptions(base, snap)) lines.push(`option ${name}: ${text(a)} → ${text(b)}`);
    for (const { old, row, change } of this.deltas.slice(0, TWIN_ROWS)) {
      const name = row >= 0 ? snap.text("name", row) : base.text("name", old);
      const sides = sidesOf(base, snap, old, row).map(([fact, a, b]) => `${fact} ${a || "none"} → ${b || "none"}`).join("  ");
      lines.push(`${CHANGES[change]}${change === 3 || change === GONE ? " (no match)" : ""}  ${name}  ${sides}  ${causeOf(base, snap, old, row)}`);
    }
    if (this.deltas.length > TWIN_ROWS) lines.push(`… ${formatCount(this.deltas.length - TWIN_ROWS)} more`);
    return lines.join("\n");
  }

  close() {
    super.close();
    this.list.close();
    this.plots.forEach((plot) => plot.close());
  }
}

/** @typedef {{sentence: string, notes: string[], headline: Record<string, [any, any]>}} Verdict */

/** Verdict of a document that Python compared, the same sentence as there. @param {import("./data.js").Snapshot} snap @returns {Verdict | null} */
function verdictOf(snap) {
  return snap.meta.verdict ?? null;
}

/** Numbers of both plans, in the terms that both have. @param {import("./data.js").Snapshot} base @param {import("./data.js").Snapshot} snap @returns {[string, bigint, bigint][]} */
export function headlineDeltas(base, snap) {
  const like = verdictOf(snap)?.headline;
  return Object.entries(HEADLINES).map(([key, name]) => [name, toBig(like?.[key]?.[0] ?? base.meta.headline?.[key]), toBig(like?.[key]?.[1] ?? snap.meta.headline?.[key])]);
}

/** @param {bigint} bytes */
export function signed(bytes) {
  return bytes > 0n ? `+${formatBytes(bytes)}` : formatBytes(bytes);
}

/** @param {any} value */
function text(value) {
  return value === true ? "on" : value === false ? "off" : String(value);
}
