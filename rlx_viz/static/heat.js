// Owns the arena's heat modes: how busy each byte is, how often it is reused, what each step touches.

import { el } from "./dom.js";
import { formatBytes, formatCount } from "./format.js";
import { mixColours, toPixel } from "./palette.js";

export const HEATS = { off: "slots", occupancy: "heat: time in use", reuse: "heat: reuse count", touched: "heat: bytes touched" };

/** Cividis' path (Nuñez, Anderton and Renslow 2018): read alike with and without colour-vision deficiency. */
const STOPS = ["#00306f", "#39486b", "#575d6d", "#707173", "#8a8779", "#a69d75", "#c4b56c", "#e4cf5b", "#ffea46"];
const LEVELS = 64;

/** @param {number} share  0 to 1 */
function heatColour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  return mixColours(STOPS[low + 1], STOPS[low], at - low);
}

const RAMP = Uint32Array.from({ length: LEVELS + 1 }, (_, i) => toPixel(heatColour(i / LEVELS)));
/** Stands for "colour me" while slots are drawn; no colour of ours is it. */
const MARK = 0x01020304;

/**
 * Average over each pixel row of what `weight` adds on the bytes of each slot.
 * @param {import("./raster.js").Rects} rects @param {number} height @param {number} ky @param {number} oy
 * @param {(row: number) => number} weight
 */
function rowSums(rects, height, ky, oy, weight) {
  const sums = new Float64Array(height + 2);
  /** @param {number} y @param {number} value */
  const step = (y, value) => {
    const at = Math.min(Math.max(y, 0), height);
    const row = Math.floor(at);
    sums[row] += value * (1 - (at - row));
    sums[row + 1] += value * (at - row);
  };
  for (let i = 0; i < rects.n; i++) {
    const a = rects.y0[i] * ky + oy;
    const b = rects.y1[i] * ky + oy;
    const value = weight(rects.row[i]);
    step(Math.min(a, b), value);
    step(Math.max(a, b), -value);
  }
  for (let row = 0; row <= height; row++) sums[row + 1] += sums[row];
  return sums;
}

/** Bytes that each step reads and writes. @param {import("./data.js").Snapshot} snap @returns {Float64Array} */
export function touchedBytes(snap) {
  const touched = new Float64Array(snap.steps);
  const { size, root } = snap.t;
  for (let row = 0; row < snap.n; row++) {
    let bytes = size[row];
    for (const source of snap.producers(row)) bytes += size[source] > 0 ? size[source] : size[root[source]];
    if (snap.step[row] < touched.length) touched[snap.step[row]] += bytes;
  }
  return touched;
}

/** How the bytes of the arena are used, for the text twin. @typedef {{mode: string, most: number, text: string}} HeatScale */

/**
 * Paint the heat of one mode; returns its scale.
 * @param {import("./arena.js").ArenaView} view @param {string} mode @returns {HeatScale}
 */
export function paintHeat(view, mode) {
  const { renderer, snap, rects } = view;
  const { kx, ox, ky, oy } = view.transform();
  const { width, height, pixels } = renderer;
  const { birth, death, root } = snap.t;
  const table = new Uint32Array(2);
  if (mode === "touched") {
    const touched = (view.touched ??= touchedBytes(snap));
    const most = touched.reduce((a, b) => Math.max(a, b), 0);
    table[1] = toPixel(mixColours(view.theme.muted, view.theme.ground, 0.16));
    renderer.rects(view.plainRects(), kx, ox, ky, oy, table);
    table[1] = MARK;
    renderer.rects(view.touches(), kx, ox, ky, oy, table);
    const [x0, x1] = view.x;
    for (let px = 0; px < width; px++) {
      let bytes = 0;
      const last = Math.min(touched.length, Math.max(Math.floor(x0 + (px * (x1 - x0)) / width) + 1, Math.ceil(x0 + ((px + 1) * (x1 - x0)) / width)));
      for (let step = Math.max(0, Math.floor(x0 + (px * (x1 - x0)) / width)); step < last; step++) bytes = Math.max(bytes, touched[step]);
      const colour = RAMP[most > 0 ? Math.round((bytes / most) * LEVELS) : 0];
      for (let at = px; at < pixels.length; at += width) if (pixels[at] === MARK) pixels[at] = colour;
    }
    return { mode, most, text: formatBytes(most) };
  }
  table[1] = MARK;
  renderer.rects(view.plainRects(), kx, ox, ky, oy, table);
  const own = (/** @type {number} */ row) => root[row] === row;
  const sums = rowSums(rects, height, ky, oy, mode === "reuse"
    ? (row) => (own(row) ? 1 : 0)
    : (row) => (own(row) ? (death[row] - birth[row] + 1) / snap.steps : 0));
  let most = 0;
  for (let y = 0; y < height; y++) most = Math.max(most, sums[y]);
  const full = mode === "reuse" ? Math.max(most, 1) : 1;
  for (let y = 0; y < height; y++) {
    const colour = RAMP[Math.round(Math.min(sums[y] / full, 1) * LEVELS)];
    for (let at = y * width; at < (y + 1) * width; at++) if (pixels[at] === MARK) pixels[at] = colour;
  }
  return mode === "reuse"
    ? { mode, most, text: `${formatCount(Math.round(most * 10) / 10)} tensors` }
    : { mode, most, text: "all the time" };
}

/** The ramp with its ends named. @param {HeatScale} scale */
export function heatLegend(scale) {
  const bar = el("i", { class: "rlx-ramp", "aria-hidden": "true" });
  bar.style.background = `linear-gradient(90deg, ${STOPS.join(", ")})`;
  return el("span", { class: "rlx-key" }, scale.mode === "occupancy" ? "never" : "0", bar, scale.text);
}
