// Owns the search language: text, /regex/, field:text, module:, rule:, size>1MiB, life>10, step:42, and - to exclude.

import { parseSize } from "./format.js";
import { decisionsOf, fusionOf } from "./graphs.js";
import { modulesOf } from "./modules.js";

const TEXT_FIELDS = ["name", "op", "shape", "source"];
/** Fields whose names hold each other (bf16, f16): they want the whole name. */
const WHOLE_FIELDS = ["dtype", "kind"];
const LIST_FIELDS = { dtype: "dtypes", kind: "kinds", space: "spaces", family: "families" };
const NUMBERS = /^(size|offset|life|birth|death)(>=|<=|>|<|=)(.+)$/i;

/** @typedef {(row: number) => boolean} Test */

/**
 * One flag per row, 1 where all words of the query hold; null for an empty query.
 * Throws an Error with a readable message for a broken regular expression or number.
 * @param {import("./data.js").Snapshot} snap @param {string} query @returns {Uint8Array | null}
 */
export function runQuery(snap, query) {
  const words = query.match(/-?\/(?:\\.|[^/\\])+\/|\S+/g) ?? [];
  if (!words.length) return null;
  const tests = words.map((word) => compileWord(snap, word));
  const flags = new Uint8Array(snap.n);
  for (let row = 0; row < snap.n; row++) flags[row] = tests.every((test) => test(row)) ? 1 : 0;
  return flags;
}

/** @param {import("./data.js").Snapshot} snap @param {string} word @returns {Test} */
function compileWord(snap, word) {
  if (word.startsWith("-") && word.length > 1) {
    const test = compileWord(snap, word.slice(1));
    return (row) => !test(row);
  }
  const number = NUMBERS.exec(word);
  if (number) return numberTest(snap, number[1].toLowerCase(), number[2], number[3]);
  if (/^\/.+\/$/.test(word)) {
    const pattern = new RegExp(word.slice(1, -1), "i");
    return stringTest(snap, ["name", "op", "source"], (text) => pattern.test(text));
  }
  const [, field, value] = /^([a-z]+):(.+)$/i.exec(word) ?? [null, "", ""];
  const key = field.toLowerCase();
  const wanted = value.toLowerCase();
  if (TEXT_FIELDS.includes(key)) return stringTest(snap, [key], (text) => text.toLowerCase().includes(wanted));
  if (key === "step") {
    const step = Number(value);
    if (!Number.isFinite(step)) throw new Error(`“${value}” is not a step; try step:42`);
    return (row) => snap.t.birth[row] <= step && snap.t.death[row] >= step;
  }
  if (key === "rule") {
    const hits = (snap.meta.rules ?? []).map((/** @type {any} */ rule) => rule.name.toLowerCase().includes(wanted));
    const decided = decidedBy(snap, wanted);
    return (row) => Boolean(hits[snap.t.rule[row]]) || decided[row] === 1 || rulesOf(snap, row).some((rule) => hits[rule]);
  }
  if (key === "module") {
    const { names, of } = modulesOf(snap);
    const hits = names.map((name) => name.toLowerCase().includes(wanted));
    return (row) => hits[of[row]] === true;
  }
  if (key in LIST_FIELDS) {
    const names = snap.meta[LIST_FIELDS[/** @type {keyof typeof LIST_FIELDS} */ (key)]] ?? [];
    const whole = WHOLE_FIELDS.includes(key);
    const hits = names.map((/** @type {string} */ name) => (whole ? name.toLowerCase() === wanted : name.toLowerCase().includes(wanted)));
    return (row) => hits[snap.t[key][row]] === true;
  }
  const text = word.toLowerCase();
  return stringTest(snap, ["name", "op", "source"], (candidate) => candidate.toLowerCase().includes(text));
}

/** Rows about which a fusion rule or a pass of that name decided anything. @param {import("./data.js").Snapshot} snap @param {string} wanted */
function decidedBy(snap, wanted) {
  const flags = new Uint8Array(snap.n);
  const decisions = decisionsOf(snap);
  const hits = decisions.rules.map((rule) => rule.name.toLowerCase().includes(wanted));
  if (!hits.some(Boolean)) return flags;
  const { source } = fusionOf(snap);
  const before = snap.table("commands_before")?.columns.node ?? [];
  for (let at = 0; at < decisions.n; at++) {
    if (!hits[decisions.columns?.rule[at]]) continue;
    const rows = decisions.stage(at) === "passes" ? before : source?.row ?? [];
    for (const node of [decisions.columns?.anchor[at], ...Array.from(decisions.nodes.of(at), (link) => decisions.links?.node[link])]) {
      if (rows[node] >= 0 && rows[node] < snap.n) flags[rows[node]] = 1;
    }
  }
  return flags;
}

/** @param {import("./data.js").Snapshot} snap @param {number} row */
function rulesOf(snap, row) {
  return Array.from(snap.extensionRows.of(row), (at) => snap.extensions.rule[at]);
}

/** Each distinct string is tested once. @param {import("./data.js").Snapshot} snap @param {string[]} fields @param {(text: string) => boolean} accept @returns {Test} */
function stringTest(snap, fields, accept) {
  const known = new Uint8Array(snap.strings.length);
  return (row) =>
    fields.some((field) => {
      const at = snap.t[field][row];
      if (!known[at]) known[at] = accept(snap.strings[at]) ? 2 : 1;
      return known[at] === 2;
    });
}

/** @param {import("./data.js").Snapshot} snap @param {string} field @param {string} sign @param {string} text @returns {Test} */
function numberTest(snap, field, sign, text) {
  const wanted = field === "size" || field === "offset" ? parseSize(text) : Number(text);
  if (!Number.isFinite(wanted)) throw new Error(`“${text}” is not a ${field}; try ${field}>${field === "size" ? "1MiB" : "10"}`);
  const { birth, death } = snap.t;
  /** @param {number} row */
  const value = (row) => (field === "life" ? death[row] - birth[row] + 1 : snap.t[field][row]);
  switch (sign) {
    case ">": return (row) => value(row) > wanted;
    case "<": return (row) => value(row) < wanted;
    case ">=": return (row) => value(row) >= wanted;
    case "<=": return (row) => value(row) <= wanted;
    default: return (row) => value(row) === wanted;
  }
}
