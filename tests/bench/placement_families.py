"""New placement problems of the families that the public ones come from, for the bench: packings of known height cut
out of a rectangle (no byte wasted at any step), chains of a network with skips, training steps."""

from __future__ import annotations

import numpy as np

from planner_core.memory.placement import Problem

__all__ = ["chain", "packing", "training"]


def packing(seed: int, count: int, height: int = 1 << 20, steps: int = 0, grain: int = 0, loose: float = 0.0) -> Problem:
    """A rectangle of ``height`` bytes and ``steps`` steps cut into ``count`` buffers, sides being multiples of ``grain``
    bytes; ``loose``: a share of the buffers is then left out. Optimal height known: at most ``height``."""
    rng = np.random.default_rng(seed)
    steps = steps or int(count * rng.uniform(0.3, 1.2))
    grain = grain or int(rng.choice([64, 512, 1024]))
    rows = height // grain
    pieces = [(0, steps, 0, rows)]
    lean = rng.uniform(0.3, 0.7)
    while len(pieces) < count:
        area = np.asarray([(b - a) * (d - c) for a, b, c, d in pieces], dtype=float)
        k = int(np.argmax(area * rng.random(len(area))))
        a, b, c, d = pieces[k]
        across = rng.random() < lean
        if (across and b - a < 2) or (not across and d - c < 2):
            across = not across
        if (across and b - a < 2) or (not across and d - c < 2):
            continue
        pieces.pop(k)
        if across:
            x = int(np.clip(rng.normal((a + b) / 2, (b - a) / 4), a + 1, b - 1))
            pieces += [(a, x, c, d), (x, b, c, d)]
        else:
            y = int(np.clip(rng.normal((c + d) / 2, (d - c) / 4), c + 1, d - 1))
            pieces += [(a, b, c, y), (a, b, y, d)]
    rows_ = np.asarray(pieces)[rng.permutation(len(pieces))]
    if loose:
        rows_ = rows_[rng.random(len(rows_)) >= loose]
    return Problem.of(rows_[:, 0], rows_[:, 1] - 1, (rows_[:, 3] - rows_[:, 2]) * grain)


def chain(seed: int, count: int) -> Problem:
    """A network of ``count`` layers: each activation lives to the next, some to a skip later; sizes fall with depth."""
    rng = np.random.default_rng(seed)
    at = np.arange(count)
    death = at + 1 + np.where(rng.random(count) < 0.2, rng.integers(1, 12, count), 0)
    size = (rng.integers(1, 64, count) * 4096 * 2.0 ** (-3 * at / count)).astype(np.int64) // 16 * 16 + 16
    return Problem.of(at, np.minimum(death, count), size, alignment=16)


def training(seed: int, layers: int) -> Problem:
    """Forward, then backward: activations live to their gradient, gradients for a step, weights' gradients to the end."""
    rng = np.random.default_rng(seed)
    last = 4 * layers
    birth, death, size = [], [], []
    for k in range(layers):
        width = int(rng.choice([256, 512, 1024])) * int(rng.integers(1, 9)) * 64
        for part in (1, 4, 2):
            birth.append(2 * k + part % 2)
            death.append(last - 2 * k - part % 2)
            size.append(width * part // 2)
        birth += [last - 2 * k - 1, last - 2 * k, 2 * k]
        death += [last - 2 * k + 1, last + 1, 2 * k + 1]
        size += [width, int(rng.integers(1, 99)) * 4096, width * 3]
    return Problem.of(birth, death, size, alignment=64)
