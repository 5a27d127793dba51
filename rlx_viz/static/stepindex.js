// Owns finding the rectangles near a step without looking at all of them: one level per length, in powers of two.

/** Rectangles by their x range; a rectangle lies in at most two buckets of its level. */
export class StepIndex {
  /** @param {Float64Array} x0 @param {Float64Array} x1 @param {number} n @param {number} steps */
  constructor(x0, x1, n, steps) {
    const top = Math.max(0, Math.ceil(Math.log2(Math.max(steps, 1))));
    const level = new Uint8Array(n);
    for (let i = 0; i < n; i++) level[i] = Math.min(top, Math.max(0, Math.ceil(Math.log2(Math.max(x1[i] - x0[i], 1)))));
    /** Items of each level in bucket order, and where each bucket starts. @type {{width: number, start: Uint32Array, items: Uint32Array}[]} */
    this.levels = [];
    const counts = new Uint32Array(top + 1);
    for (let i = 0; i < n; i++) counts[level[i]] += 1;
    for (let k = 0; k <= top; k++) {
      if (!counts[k]) continue;
      const width = 2 ** k;
      const buckets = Math.floor(steps / width) + 2;
      const start = new Uint32Array(buckets + 1);
      const place = (/** @type {number} */ i) => Math.min(buckets - 1, Math.max(0, Math.floor(x0[i] / width)));
      for (let i = 0; i < n; i++) if (level[i] === k) start[place(i) + 1] += 1;
      for (let b = 0; b < buckets; b++) start[b + 1] += start[b];
      const items = new Uint32Array(counts[k]);
      const next = start.slice(0, buckets);
      for (let i = 0; i < n; i++) if (level[i] === k) items[next[place(i)]++] = i;
      this.levels.push({ width, start, items });
    }
  }

  /** Call `visit` with every rectangle that may touch [from, to], and some that do not. @param {number} from @param {number} to @param {(i: number) => void} visit */
  near(from, to, visit) {
    for (const { width, start, items } of this.levels) {
      const last = start.length - 2;
      // One that begins in the bucket before may reach into this one.
      const first = Math.min(last, Math.max(0, Math.floor(from / width) - 1));
      const end = Math.min(last, Math.max(0, Math.floor(to / width)));
      for (let at = start[first]; at < start[end + 1]; at++) visit(items[at]);
    }
  }
}
