// Owns the arena map: offset over step, one rectangle per slot, guards apart, gaps left open.

import { Groups, NONE } from "./data.js";
import { el, fitHead, lastParts } from "./dom.js";
import { countOf, formatBytes, formatCount, formatTick, roundTicks, toBig } from "./format.js";
import { inkOn } from "./palette.js";
import { Plot, TWIN_ROWS } from "./plot.js";
import { heatLegend, HEATS, paintHeat, touchedBytes } from "./heat.js";
import { makeRects, pushRect } from "./raster.js";
import { FADED, GUARD, GUARD_STRIPE, schemeOf } from "./scheme.js";
import { StepIndex } from "./stepindex.js";

const MAX_LABELS = 400;
/** Least room for a text inside a slot, and above the highest line. */
const LABEL_WIDE = 34;
const LABEL_TALL = 13;
const HEADROOM = 19;

export class ArenaView extends Plot {
  /** @param {import("./store.js").Store} store @param {() => boolean} wheelAllowed */
  constructor(store, wheelAllowed) {
    super(store, {
      name: "arena", title: "Arena", wheelAllowed,
      label: "Arena map: byte offset over the steps. Arrow keys pan, plus and minus zoom steps, brackets zoom bytes.",
    });
    this.axis = true;
    this.rects = makeRects(0);
    this.guards = makeRects(0);
    this.slots = 0;
    this.top = 1;
    this.bound = 0;
    this.extent = 0;
    this.plain = makeRects(0);
    /** Slots by step, built at the first hover. @type {StepIndex | null} */
    this.index = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.indexing = undefined;
    /** @type {Float64Array | null} */
    this.touched = null;
    /** @type {import("./raster.js").Rects | null} */
    this.touching = null;
    /** @type {import("./heat.js").HeatScale | null} */
    this.heat = null;
    /** @type {Groups | null} */
    this.spans = null;
    this.mode = el("select", { "aria-label": "Arena heat", title: "Colour slots, or show heat (h)", onchange: () => store.set({ heat: this.mode.value }) },
      ...Object.entries(HEATS).map(([key, label]) => el("option", { value: key }, label)));
    this.tools.append(this.mode);
  }

  get frontKeys() { return [...super.frontKeys, "command"]; }

  get inputs() { return ["snap", "space", "colour", "theme", "match", "hidden"]; }
  get yKey() { return /** @type {const} */ ("offsets"); }
  get yLeast() { return 64; }
  /** @returns {[number, number]} */
  fullY() { return [0, this.top / (1 - Math.max(0.06, HEADROOM / Math.max(this.area.height, 80)))]; }
  get inWeights() { return this.state.space === "weights"; }

  build() {
    const { snap, state } = this;
    const { birth, death, offset, size, guard, space } = snap.t;
    const wanted = this.inWeights ? snap.weightsSpace : snap.arenaSpace;
    const scheme = schemeOf(state, this.theme);
    const rects = makeRects(snap.n);
    const guards = makeRects(snap.n);
    let top = 0;
    for (let row = 0; row < snap.n; row++) {
      if (space[row] !== wanted || !(size[row] > 0)) continue;
      const end = offset[row] + size[row];
      const index = scheme.of(row);
      const dim = scheme.dim(row);
      pushRect(rects, birth[row], death[row] + 1, offset[row], end, 1 + index + (dim ? FADED : 0), scheme.overlay(index, dim), row, scheme.patterns[index]);
      if (end + guard[row] > top) top = end + guard[row];
    }
    for (let i = 0; i < rects.n; i++) {
      const row = rects.row[i];
      if (guard[row]) pushRect(guards, rects.x0[i], rects.x1[i], rects.y1[i], rects.y1[i] + guard[row], GUARD, GUARD_STRIPE, row);
    }
    this.slots = rects.n;
    this.index = null;
    // Ready before the first hover asks for it.
    clearTimeout(this.indexing);
    this.indexing = setTimeout(() => this.indexed(), 50);
    this.plain = makeRects(0);
    this.touching = null;
    this.touched = null;
    const spans = snap.table("spans")?.columns;
    this.spans = spans ? new Groups(spans.command, snap.tables.commands?.rows ?? 0) : null;
    this.rects = rects;
    this.guards = guards;
    this.bound = this.inWeights ? 0 : Number(toBig(snap.meta.headline?.lower_bound));
    this.extent = this.inWeights ? top : Math.max(top, Number(toBig(snap.meta.headline?.arena)));
    this.top = Math.max(this.extent, this.bound, 1);
    this.note.textContent = `${countOf(this.slots, "slot")} · ${formatBytes(this.extent)}`;
    this.heading.textContent = this.inWeights ? "Weights" : "Arena";
  }

  /** @param {Set<string>} changed */
  update(changed) {
    super.update(changed);
    if (!changed.has("heat")) return;
    this.mode.value = this.state.heat;
    this.draw(true);
    this.legend.replaceChildren(...(this.heat ? [heatLegend(this.heat)] : []));
    this.writeTwin();
  }

  /** The slots with one paint: what heat is drawn into. */
  plainRects() {
    if (this.plain.row.length !== this.rects.row.length || this.plain.n !== this.rects.n) {
      this.plain = { ...this.rects, paint: new Uint8Array(this.rects.row.length).fill(1), hatch: new Uint8Array(this.rects.row.length) };
    }
    return this.plain;
  }

  /** A step of a slot for each time it is written or read. */
  touches() {
    if (this.touching) return this.touching;
    const { snap, rects } = this;
    const { size, root } = snap.t;
    const at = new Int32Array(snap.n).fill(-1);
    for (let i = 0; i < rects.n; i++) at[rects.row[i]] = i;
    const touching = makeRects(rects.n + snap.edges.src.length);
    /** @param {number} row @param {number} step */
    const touch = (row, step) => {
      const i = at[size[row] > 0 ? row : root[row]];
      if (i >= 0) pushRect(touching, step, step + 1, rects.y0[i], rects.y1[i], 1, 0, row);
    };
    for (let row = 0; row < snap.n; row++) touch(row, snap.step[row]);
    for (let edge = 0; edge < snap.edges.src.length; edge++) touch(snap.edges.src[edge], snap.step[snap.edges.dst[edge]]);
    return (this.touching = touching);
  }

  paint() {
    this.heat = this.state.heat === "off" ? null : paintHeat(this, this.state.heat);
    if (this.heat) return;
    const { kx, ox, ky, oy } = this.transform();
    const { table } = schemeOf(this.state, this.theme);
    this.renderer.rects(this.rects, kx, ox, ky, oy, table);
    // A guard thinner than a pixel would hide the slots beside it.
    this.renderer.rects(this.guards, kx, ox, ky, oy, table, 1);
  }

  yTicks() {
    return roundTicks(this.y[0], this.y[1], Math.max(2, this.area.height / 36), true);
  }

  /** @param {CanvasRenderingContext2D} context */
  labels(context) {
    const { left, top, height } = this.area;
    context.fillStyle = this.theme.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const tick of this.yTicks()) {
      const y = Math.min(Math.max(this.toY(tick), top + 5), top + height - 4);
      context.fillText(formatTick(tick), left - 8, y);
    }
  }

  /** @param {CanvasRenderingContext2D} context */
  inscribe(context) {
    if (this.state.heat === "off") this.slotTexts(context);
    this.lines(context);
  }

  /** @param {CanvasRenderingContext2D} context */
  lines(context) {
    if (this.bound > 0) this.level(context, this.bound, [5, 3]);
    this.level(context, this.extent, []);
  }

  /** @param {CanvasRenderingContext2D} context */
  decorate(context) {
    const { snap, state } = this;
    /** @param {number} row @param {string} colour @param {number} width @param {number[]} [dash] */
    const frame = (row, colour, width, dash) => {
      const { birth, death, offset, size, space, root } = snap.t;
      const slot = size[row] > 0 ? row : root[row];
      if (space[slot] !== (this.inWeights ? snap.weightsSpace : snap.arenaSpace) || !(size[slot] > 0)) return;
      this.outline(context, [birth[slot], death[slot] + 1, offset[slot], offset[slot] + size[slot]], colour, width, dash);
    };
    if (state.selected >= 0) {
      for (const row of snap.producers(state.selected).slice(0, 40)) frame(row, this.theme.muted, 1, [3, 2]);
      frame(state.selected, this.theme.accent, 2);
    }
    if (state.hover >= 0 && state.hover !== state.selected) frame(state.hover, this.theme.ink, 1.5);
    if (state.command >= 0) this.commandSpans(context, state.command);
    // Last, so that no outline strikes through them.
    this.levelTexts(context);
  }

  /**
   * Bytes that a thunk reads and writes: its spans, or the slots of its node where the document has none.
   * @param {number} command @returns {{writes: boolean, offset: number, bytes: number}[]}
   */
  spansOf(command) {
    const { snap } = this;
    const wanted = this.inWeights ? snap.weightsSpace : snap.arenaSpace;
    const columns = snap.table("spans")?.columns;
    if (columns && this.spans) {
      return Array.from(this.spans.of(command)).filter((at) => columns.space[at] === wanted)
        .map((at) => ({ writes: columns.role[at] !== 0, offset: columns.offset[at], bytes: columns.bytes[at] }));
    }
    const node = snap.table("commands")?.columns.node[command] ?? NONE;
    if (node >= snap.n) return [];
    const { size, root, space, offset } = snap.t;
    return [...snap.producers(node), node].map((row) => ({ row: size[row] > 0 ? row : root[row], writes: row === node }))
      .filter(({ row }) => space[row] === wanted && size[row] > 0)
      .map(({ row, writes }) => ({ writes, offset: offset[row], bytes: size[row] }));
  }

  /** Reads as open boxes, writes as filled ones, at the step of the thunk. @param {CanvasRenderingContext2D} context @param {number} command */
  commandSpans(context, command) {
    const { snap, area } = this;
    const node = snap.table("commands")?.columns.node[command] ?? NONE;
    if (node >= snap.n) return;
    const spans = this.spansOf(command);
    const x0 = this.toX(snap.step[node]);
    const wide = Math.min(Math.max(this.toX(snap.step[node] + 1) - x0, 7), 14);
    for (const { writes, offset, bytes } of spans) {
      const top = this.toY(offset + bytes);
      const tall = Math.max(this.toY(offset) - top, 3);
      context.strokeStyle = this.theme.accent;
      context.globalAlpha = 0.45;
      context.setLineDash([2, 3]);
      context.beginPath();
      context.moveTo(area.left, top + tall / 2);
      context.lineTo(x0, top + tall / 2);
      context.stroke();
      context.setLineDash([]);
      context.globalAlpha = 1;
      context.fillStyle = writes ? this.theme.accent : this.theme.ground;
      context.fillRect(x0, top, wide, tall);
      context.lineWidth = 1.5;
      context.strokeRect(x0 + 0.75, top + 0.75, wide - 1.5, Math.max(tall - 1.5, 1));
      context.lineWidth = 1;
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} bytes @param {number[]} dash */
  level(context, bytes, dash) {
    const y = Math.round(this.toY(bytes)) + 0.5;
    context.setLineDash(dash);
    context.strokeStyle = this.theme.ink;
    context.beginPath();
    context.moveTo(this.area.left, y);
    context.lineTo(this.area.left + this.area.width, y);
    context.stroke();
    context.setLineDash([]);
  }

  /** One text where the two lines are too close for two. @param {CanvasRenderingContext2D} context */
  levelTexts(context) {
    const extent = this.extent;
    const name = this.inWeights ? "weights" : "arena";
    const y = this.toY(extent);
    const below = this.toY(this.bound);
    const texts = [];
    const least = this.snap.meta.headline?.unknown > 0 ? "≥ " : "";
    const bound = `lower bound ${least}${formatBytes(this.bound)}`;
    if (this.bound > 0 && this.bound === extent && !least) texts.push({ text: `${name} = lower bound ${formatBytes(extent)}`, y });
    else if (this.bound > 0 && Math.abs(below - y) < 15) {
      texts.push({ text: `${name} ${this.inWeights ? "" : least}${formatBytes(extent)} · ${bound}`, y: Math.min(y, below) });
    } else {
      texts.push({ text: `${name} ${this.inWeights ? "" : least}${formatBytes(extent)}`, y });
      if (this.bound > 0) texts.push({ text: bound, y: below });
    }
    context.textAlign = "left";
    context.textBaseline = "bottom";
    const widest = Math.max(...texts.map((line) => context.measureText(line.text).width));
    const edge = this.area.left + this.area.width;
    // On the other side where the peak's mark is on this one.
    const peak = this.toX((this.snap.meta.headline?.peak_step ?? 0) + 0.5);
    const atLeft = peak > edge - widest - 20 && peak <= edge;
    for (const line of texts) {
      if (line.y < this.area.top || line.y > this.area.top + this.area.height) continue;
      const width = context.measureText(line.text).width;
      const from = atLeft ? this.area.left + 6 : edge - width - 4;
      const bottom = Math.max(line.y - 2, this.area.top + 13);
      context.fillStyle = this.theme.ground;
      context.fillRect(from - 4, bottom - 13, width + 8, 14);
      context.fillStyle = this.theme.ink;
      context.fillText(line.text, from, bottom);
    }
  }

  /**
   * The part of each slot that shows and has room for a text. Views lie over their root on the same
   * bytes: of such a family only the largest part is kept, the root's when equal.
   */
  labelBoxes() {
    const { snap, rects, area } = this;
    const { birth, root } = snap.t;
    const scheme = schemeOf(this.state, this.theme);
    const [x0, x1] = this.x;
    const wide = (LABEL_WIDE * (x1 - x0)) / area.width;
    const tall = (LABEL_TALL * (this.y[1] - this.y[0])) / area.height;
    /** @type {Map<number, {row: number, bytes: number, left: number, right: number, top: number, bottom: number}>} */
    const kept = new Map();
    for (let i = 0; i < this.slots; i++) {
      if (rects.x1[i] - rects.x0[i] < wide || rects.y1[i] - rects.y0[i] < tall) continue;
      const row = rects.row[i];
      if (scheme.dim(row)) continue;
      let end = rects.x1[i];
      for (const view of root[row] === row ? snap.viewRows.of(row) : []) {
        if (snap.t.size[view] > 0 && birth[view] < end) end = Math.max(birth[view], rects.x0[i]);
      }
      const box = {
        row,
        bytes: rects.y1[i] - rects.y0[i],
        left: Math.max(this.toX(rects.x0[i]), area.left),
        right: Math.min(this.toX(end), area.left + area.width),
        top: Math.max(this.toY(rects.y1[i]), area.top),
        bottom: Math.min(this.toY(rects.y0[i]), area.top + area.height),
      };
      if (box.right - box.left < LABEL_WIDE || box.bottom - box.top < LABEL_TALL) continue;
      const other = kept.get(root[row]);
      const grows = !other || (box.right - box.left) * (box.bottom - box.top) > (other.right - other.left) * (other.bottom - other.top);
      if (grows) kept.set(root[row], box);
    }
    return [...kept.values()];
  }

  /** Names inside the slots that have room; no text is drawn over another. @param {CanvasRenderingContext2D} context */
  slotTexts(context) {
    const { snap } = this;
    const scheme = schemeOf(this.state, this.theme);
    context.textAlign = "left";
    /** Boxes of the texts drawn. @type {number[][]} */
    const drawn = [];
    for (const { row, bytes, left, right, top, bottom } of this.labelBoxes()) {
      if (drawn.length >= MAX_LABELS) break;
      const room = right - left - 8;
      const scoped = lastParts(snap.text("name", row), 2);
      const text = context.measureText(scoped).width <= room ? scoped : fitHead(context, lastParts(scoped, 1), room);
      if (!text) continue;
      const two = bottom - top >= 32;
      const size = formatBytes(bytes);
      const sized = two && context.measureText(size).width < room;
      const y = two ? top + 4 : (top + bottom) / 2 - 6;
      const box = [left + 4, y, left + 4 + context.measureText(text).width, y + (sized ? 25 : 12)];
      if (drawn.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      drawn.push(box);
      context.fillStyle = inkOn(scheme.colours[scheme.of(row)]);
      context.textBaseline = two ? "top" : "middle";
      context.fillText(text, left + 4, two ? y : y + 6);
      if (sized) context.fillText(size, left + 4, top + 17);
    }
  }

  indexed() {
    const { x0, x1, n } = this.rects;
    return (this.index ??= new StepIndex(x0, x1, n, this.snap.steps));
  }

  close() {
    clearTimeout(this.indexing);
    super.close();
  }

  /** Through the index of steps; the last drawn wins, then the nearest within three pixels. @param {import("./plot.js").Point} at */
  hit(at) {
    const { rects } = this;
    const x = this.fromX(at.x);
    const y = this.fromY(at.y);
    const slackX = (3 * (this.x[1] - this.x[0])) / this.area.width;
    const slackY = (3 * (this.y[1] - this.y[0])) / this.area.height;
    const { x0, x1, y0, y1 } = rects;
    let inside = -1;
    let near = -1;
    let best = Infinity;
    this.indexed().near(x - slackX, x + slackX, (i) => {
      const outX = Math.max(x0[i] - x, x - x1[i], 0);
      if (outX > slackX) return;
      const outY = Math.max(y0[i] - y, y - y1[i], 0);
      if (outY > slackY) return;
      if (outX === 0 && outY === 0) {
        if (i > inside) inside = i;
        return;
      }
      const distance = (outX / slackX) ** 2 + (outY / slackY) ** 2;
      if (distance < best || (distance === best && i > near)) {
        best = distance;
        near = i;
      }
    });
    const found = inside >= 0 ? inside : near;
    return found < 0 ? -1 : rects.row[found];
  }

  /** What held the byte under the pointer before the row and what holds it after. @param {number} row @param {number} offset */
  neighbours(row, offset) {
    const { rects, snap } = this;
    const { birth, death, root } = snap.t;
    let before = -1;
    let after = -1;
    for (let i = 0; i < rects.n; i++) {
      if (rects.y0[i] > offset || rects.y1[i] <= offset) continue;
      const other = rects.row[i];
      if (root[other] === root[row]) continue;
      if (death[other] < birth[row]) {
        if (before < 0 || death[other] > death[before]) before = other;
      } else if (birth[other] > death[row] && (after < 0 || birth[other] < birth[after])) after = other;
    }
    return { before, after };
  }

  describe() {
    const { snap } = this;
    const { birth, death, guard } = snap.t;
    const lines = [
      `${this.inWeights ? "weights" : "arena"} map: ${this.note.textContent}` +
        (this.bound > 0 ? `, lower bound ${formatBytes(this.bound)}` : ""),
      ...(this.state.heat === "touched" ? [`heat: bytes touched, at most ${Math.max(0, ...(this.touched ?? touchedBytes(snap)))} in a step`] : []),
      ...(this.heat && this.state.heat !== "touched" ? [`${HEATS[/** @type {keyof typeof HEATS} */ (this.state.heat)]}, at most ${this.heat.text}`] : []),
      ...(this.state.command >= 0 ? [`thunk ${this.state.command}: ${this.spansOf(this.state.command).map((span) => `${span.writes ? "writes" : "reads"} ${span.offset}..${span.offset + span.bytes}`).join(", ") || "touches nothing here"}`] : []),
      "offset..end  birth..death  name  bytes",
    ];
    const slots = Array.from({ length: this.slots }, (_, i) => i);
    slots.sort((a, b) => this.rects.y0[a] - this.rects.y0[b] || this.rects.x0[a] - this.rects.x0[b]);
    for (const i of slots.slice(0, TWIN_ROWS)) {
      const row = this.rects.row[i];
      lines.push(
        `${this.rects.y0[i]}..${this.rects.y1[i]}  ${birth[row]}..${death[row]}  ${snap.text("name", row)}  ` +
          `${this.rects.y1[i] - this.rects.y0[i]}${guard[row] ? ` + guard ${guard[row]}` : ""}`,
      );
    }
    if (slots.length > TWIN_ROWS) lines.push(`… ${formatCount(slots.length - TWIN_ROWS)} more`);
    return lines.join("\n");
  }
}
