// Owns making elements. Text goes in as text nodes only: names in a model are untrusted.

/**
 * An element. `attributes` may hold `class`, `on…` listeners and plain attributes; false and null are left out.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children  nodes, texts, numbers, lists of them; null and false are left out
 * @returns {any}
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of /** @type {any[]} */ (children).flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/** A small square of colour, and pattern if any, for legends and lists. @param {string} colour @param {string} [pattern] */
export function swatch(colour, pattern = "") {
  const node = el("i", { class: "rlx-swatch", "aria-hidden": "true", "data-colour": colour, "data-pattern": pattern || null });
  node.style.backgroundColor = colour;
  return node;
}

/** The end of `text` that fits in `width` pixels; the tail of a scoped name tells most. @param {CanvasRenderingContext2D} context @param {string} text @param {number} width */
export function fitTail(context, text, width) {
  if (text.length * 4 < width && context.measureText(text).width <= width) return text;
  if (width < 14) return "";
  let low = 0;
  let high = Math.min(text.length, Math.ceil(width / 2));
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`…${text.slice(-middle)}`).width <= width) low = middle;
    else high = middle - 1;
  }
  if (low >= text.length) return text;
  return low > 1 ? `…${text.slice(-low)}` : "";
}

/** The start of `text` that fits in `width` pixels. @param {CanvasRenderingContext2D} context @param {string} text @param {number} width */
export function fitHead(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = Math.min(text.length, Math.floor(width / 4));
  while (length > 2 && context.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return length > 2 ? `${text.slice(0, length)}…` : "";
}

/** A name without the "_output_0" that exporters append: for labels, where room is short. @param {string} name */
export function bareName(name) {
  return name.replace(/_output_\d+$/, "");
}

/** Last components of a scoped name. @param {string} name @param {number} count */
export function lastParts(name, count) {
  return bareName(name).split("/").filter(Boolean).slice(-count).join("/") || name;
}

/** Characters of a name that are shown; of a longer one, its start and its end. */
const LONGEST_NAME = 300;

/** A name that may wrap after its separators. @param {string} name */
export function wrappingName(name) {
  const half = LONGEST_NAME / 2;
  const shown = name.length > LONGEST_NAME ? `${name.slice(0, half)} … ${name.slice(-half)}` : name;
  const node = el("span", { title: shown === name ? null : `${name.length} characters` });
  for (const part of shown.split(/(?<=[/._:])/)) node.append(part, document.createElement("wbr"));
  return node;
}
