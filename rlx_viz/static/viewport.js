// Owns pan and zoom: ranges, and the pointer, wheel, pinch and keyboard gestures that change them.

/** @typedef {[number, number]} Range */

/**
 * `range` scaled by `factor` around `anchor`, kept inside `full`; null once it covers everything.
 * @param {Range} range @param {Range} full @param {number} factor @param {number} anchor @param {number} least
 * @returns {Range | null}
 */
export function zoomRange(range, full, factor, anchor, least) {
  const span = Math.max(least, (range[1] - range[0]) * factor);
  const share = (anchor - range[0]) / (range[1] - range[0] || 1);
  return clampRange([anchor - share * span, anchor + (1 - share) * span], full);
}

/** @param {Range} range @param {Range} full @returns {Range | null} */
export function clampRange(range, full) {
  // The same range object comes back when nothing changes, so that listeners stay quiet.
  if (range[0] >= full[0] && range[1] <= full[1] && range[1] - range[0] < (full[1] - full[0]) * 0.9999) return range;
  const span = range[1] - range[0];
  const room = full[1] - full[0];
  if (!(span < room * 0.9999)) return null;
  const low = Math.min(Math.max(range[0], full[0]), full[1] - span);
  return [low, low + span];
}

/**
 * Wire the gestures of one plot. Drag pans, Shift-drag zooms to a box, the wheel zooms both axes
 * (Ctrl or the step axis: steps only; Shift or the left gutter: the other axis only), two fingers
 * pinch, double click resets.
 * @param {import("./plot.js").Plot} plot @param {() => boolean} wheelAllowed
 */
export function attachViewport(plot, wheelAllowed) {
  const surface = /** @type {HTMLCanvasElement} */ (plot.over);
  /** @type {Map<number, {x: number, y: number}>} */
  const fingers = new Map();
  /** @type {null | {x: number, y: number, moved: boolean, box: boolean}} */
  let drag = null;

  /** @param {MouseEvent} event */
  const position = (event) => {
    const bounds = surface.getBoundingClientRect();
    return { x: event.clientX - bounds.left, y: event.clientY - bounds.top };
  };

  surface.addEventListener("wheel", (event) => {
    if (!wheelAllowed() && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = position(event);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey) {
      plot.pan(event.deltaX, 0);
      return;
    }
    const delta = event.deltaY || event.deltaX;
    const factor = 1.0015 ** (event.deltaMode === 1 ? delta * 20 : delta);
    const area = plot.area;
    const stepsOnly = event.ctrlKey || event.metaKey || at.y > area.top + area.height;
    const otherOnly = event.shiftKey || at.x < area.left;
    plot.zoom(otherOnly ? 1 : factor, stepsOnly ? 1 : factor, at);
  }, { passive: false });

  surface.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    surface.focus({ preventScroll: true });
    surface.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, position(event));
    drag = { ...position(event), moved: false, box: event.shiftKey };
  });

  surface.addEventListener("pointermove", (event) => {
    const at = position(event);
    const finger = fingers.get(event.pointerId);
    if (fingers.size === 2 && finger) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1] ?? at;
      const before = Math.hypot(finger.x - other.x, finger.y - other.y) || 1;
      const now = Math.hypot(at.x - other.x, at.y - other.y) || 1;
      fingers.set(event.pointerId, at);
      plot.zoom(before / now, before / now, { x: (at.x + other.x) / 2, y: (at.y + other.y) / 2 });
      if (drag) drag.moved = true;
      return;
    }
    if (!drag || !finger) {
      plot.point(at);
      return;
    }
    if (!drag.moved && Math.hypot(at.x - drag.x, at.y - drag.y) < 4) return;
    drag.moved = true;
    if (drag.box) {
      plot.drawBox({ x0: drag.x, y0: drag.y, x1: at.x, y1: at.y });
    } else {
      plot.pan(finger.x - at.x, finger.y - at.y);
      fingers.set(event.pointerId, at);
    }
  });

  /** @param {PointerEvent} event */
  const release = (event) => {
    if (!fingers.delete(event.pointerId) || !drag || fingers.size) return;
    const at = position(event);
    const done = drag;
    drag = null;
    plot.drawBox(null);
    if (event.type === "pointercancel") return;
    if (!done.moved) plot.click(at);
    else if (done.box) plot.zoomToBox({ x0: done.x, y0: done.y, x1: at.x, y1: at.y });
  };
  surface.addEventListener("pointerup", release);
  surface.addEventListener("pointercancel", release);
  surface.addEventListener("pointerleave", () => plot.point(null));
  surface.addEventListener("dblclick", () => plot.reset());
  surface.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moveByKey(plot, event)) event.preventDefault();
  });
}

/** What a key does to a plot; false for a key that does nothing. @param {import("./plot.js").Plot} plot @param {KeyboardEvent} event */
export function moveByKey(plot, event) {
  const { width, height, left, top } = plot.area;
  const centre = { x: left + width / 2, y: top + height / 2 };
  switch (event.key) {
    case "ArrowLeft": plot.pan(-width / 8, 0); return true;
    case "ArrowRight": plot.pan(width / 8, 0); return true;
    case "ArrowUp": plot.pan(0, -height / 8); return true;
    case "ArrowDown": plot.pan(0, height / 8); return true;
    case "+": case "=": plot.zoom(1 / 1.5, 1, centre); return true;
    case "-": case "_": plot.zoom(1.5, 1, centre); return true;
    case "]": plot.zoom(1, 1 / 1.5, centre); return true;
    case "[": plot.zoom(1, 1.5, centre); return true;
    case "0": plot.reset(); return true;
    default: return false;
  }
}
