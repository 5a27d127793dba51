// Owns numbers as text: binary units, exact bytes, and round axis ticks.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/**
 * A byte count of the snapshot as a BigInt; counts past 2^53 arrive as decimal text.
 * @param {number | string | bigint | null | undefined} value
 * @returns {bigint}
 */
export function toBig(value) {
  if (typeof value === "bigint") return value;
  if (typeof value === "number") return BigInt(Math.round(value));
  return /^-?\d+$/.test(value ?? "") ? BigInt(/** @type {string} */ (value)) : 0n;
}

/**
 * "1.50 MiB": three significant digits in the largest fitting binary unit.
 * @param {number | string | bigint | null | undefined} value
 */
export function formatBytes(value) {
  const big = toBig(value);
  const sign = big < 0n ? "−" : "";
  let whole = big < 0n ? -big : big;
  let unit = 0;
  let last = 0n;
  while (whole >= 1024n && unit < UNITS.length - 1) {
    last = whole % 1024n;
    whole /= 1024n;
    unit += 1;
  }
  if (unit === 0) return `${sign}${whole} B`;
  const exact = Number(whole) + Number(last) / 1024;
  const digits = exact < 10 ? 2 : exact < 100 ? 1 : 0;
  return `${sign}${exact.toFixed(digits)} ${UNITS[unit]}`;
}

/** @param {number | string | bigint | null | undefined} value  "1,572,864 B" */
export function formatExact(value) {
  return `${formatCount(toBig(value))} B`;
}

/** @param {number | bigint} value  thousands are separated by commas */
export function formatCount(value) {
  return value.toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** "1 row", "2,000 rows". @param {number} count @param {string} noun */
export function countOf(count, noun) {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/**
 * "12.3%" of `part` in `whole`, computed on integers so that huge counts stay right.
 * @param {bigint} part
 * @param {bigint} whole
 */
export function formatShare(part, whole) {
  if (whole === 0n || part === 0n) return "0%";
  const permille = Number((part * 10000n) / whole) / 100;
  if (permille === 0 && part > 0n) return "<0.01%";
  // "100%" is kept for all of it.
  if (permille > 99 && part < whole) return `${Math.min(permille, 99.99).toFixed(2)}%`;
  return `${permille < 10 ? permille.toFixed(permille < 1 ? 2 : 1) : permille.toFixed(0)}%`;
}

/**
 * Round numbers between `low` and `high`, about `wanted` of them.
 * Steps are 1, 2, 5 × 10^k; with `binary`, powers of two.
 * @param {number} low @param {number} high @param {number} wanted @param {boolean} binary
 */
export function roundTicks(low, high, wanted, binary) {
  const rough = Math.max((high - low) / Math.max(wanted, 1), 1e-9);
  let step;
  if (binary) {
    step = 2 ** Math.ceil(Math.log2(rough));
  } else {
    const power = 10 ** Math.floor(Math.log10(rough));
    step = power * ([1, 2, 5, 10].find((m) => m * power >= rough) ?? 10);
  }
  step = Math.max(step, 1);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high && ticks.length < 200; tick += step) {
    ticks.push(tick);
  }
  return ticks;
}

/**
 * Exact label of a byte tick in the largest unit that takes three decimals: "1.5 MiB", "94,488 KiB", "0".
 * @param {number} value
 */
export function formatTick(value) {
  if (value === 0) return "0";
  let unit = Math.min(Math.max(0, Math.floor(Math.log2(Math.abs(value)) / 10)), UNITS.length - 1);
  while (unit > 0 && Number((value / 1024 ** unit).toFixed(3)) * 1024 ** unit !== value) unit -= 1;
  return `${(value / 1024 ** unit).toLocaleString("en", { maximumFractionDigits: 3 })} ${UNITS[unit]}`;
}

/**
 * "1MiB", "512", "3.5 kb" as bytes; NaN when it is not a size. Decimal units count as binary.
 * @param {string} text
 */
export function parseSize(text) {
  const found = /^([\d.]+)\s*([kmgt]?)i?b?$/i.exec(text.trim());
  if (!found) return Number.NaN;
  return Number(found[1]) * 1024 ** (["", "k", "m", "g", "t"].indexOf(found[2].toLowerCase()));
}
