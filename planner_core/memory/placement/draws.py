"""Owns what a restart of the exact search draws: how it ranks buffers, and which rankings did well so far.

What leads far differs from problem to problem (size in one, lifetime or neighbours in the next), and a run that
put down most of the buffers before it failed was nearer than one that failed early. So one run in four is drawn
anew, the others near one of the best so far, until that leads no further: a cross-entropy search (Rubinstein 1999)
over a handful of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Draw", "Drawer"]

ELITE = 8
"""Draws remembered as the best."""
FADING = 0.995
"""What a remembered depth is worth after each further run, so that one lucky run doesn't lead for ever."""

PATIENCE = 250
"""Runs without a new best depth before all that was learned is forgotten."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Weights of duration, size and neighbours (sum 1), of chance, of crowding, of failures so far; whether a step
    starts at the most crowded buffer or at the lowest."""

    weights: tuple[float, float, float]
    noise: float
    crowd: float
    learned: float
    focused: bool


class Drawer:
    """``next()`` draws; ``tell(draw, depth)`` says how far it came, as a share of all buffers."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.best: list[tuple[float, Draw]] = []
        self.count = 0
        self.far, self.since = 0.0, 0

    def next(self) -> Draw:
        self.count += 1
        fresh = self._fresh()
        if not self.best or self.count % 4 == 1:
            return fresh
        near = self.best[int(self.random.integers(len(self.best)))][1]
        keep = self.random.random(4) < 0.85
        return Draw(self._weights(30.0 * np.asarray(near.weights) + 0.2), near.noise if keep[0] else fresh.noise,
                    near.crowd if keep[1] else fresh.crowd, near.learned if keep[2] else fresh.learned,
                    near.focused if keep[3] else fresh.focused)

    def tell(self, draw: Draw, depth: float) -> None:
        self.since += 1
        if depth > self.far:
            self.far, self.since = depth, 0
        elif self.since >= PATIENCE:  # a dead end: start over
            self.best, self.far, self.since = [], 0.0, 0
        self.best = [(FADING * d, kept) for d, kept in self.best]
        if len(self.best) < ELITE or depth > self.best[-1][0]:
            self.best = sorted([*self.best, (depth, draw)], key=lambda e: -e[0])[:ELITE]

    def _fresh(self) -> Draw:
        r = self.random
        return Draw(self._weights(np.asarray([0.7, 0.5, 1.0])), float(r.choice([0.05, 0.05, 0.05, 0.25])),
                    float(r.choice([0.0, 3.0, 30.0])), float(r.choice([0.0, 0.0, 0.0, 0.1, 0.3, 1.0])), bool(r.random() < 0.75))

    def _weights(self, alpha: np.ndarray) -> tuple[float, float, float]:
        w = self.random.dirichlet(alpha)
        return float(w[0]), float(w[1]), float(w[2])
