"""Owns buckets: half-open ranges of keys, checked, searched, and the power-of-two ladder."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import index

__all__ = ["Bucket", "check_buckets", "find_bucket", "ladder"]


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Keys ``start`` … ``end - 1``; what is compiled for it is compiled for ``upper``."""

    start: int
    end: int

    @property
    def upper(self) -> int:
        return self.end - 1

    def __contains__(self, key: int) -> bool:
        return self.start <= key < self.end

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"


def check_buckets(buckets: Iterable[Bucket | tuple[int, int] | range]) -> tuple[Bucket, ...]:
    """The ranges as buckets. ``ValueError`` names the two that are empty, out of order or overlap; or an empty list."""
    made: list[Bucket] = []
    for b in buckets:
        if isinstance(b, range):
            if b.step != 1:
                raise ValueError(f"bucket {b} has step {b.step}, wanted 1")
            b = Bucket(b.start, b.stop)
        try:
            start, end = (b.start, b.end) if isinstance(b, Bucket) else b
            made.append(Bucket(index(start), index(end)))
        except (TypeError, ValueError):
            raise ValueError(f"bucket {b!r} is no pair of whole numbers (start, end)") from None
    if not made:
        raise ValueError("no buckets: wanted at least one range of keys")
    for i, b in enumerate(made):
        before = made[i - 1] if i else None
        if b.start >= b.end:
            raise ValueError(f"bucket {b} is empty" + (f" (it follows {before})" if before else
                                                       f" (before {made[1]})" if len(made) > 1 else ""))
        if before is not None and b.start < before.end:
            raise ValueError(f"buckets {before} and {b} {'overlap' if b.end > before.start else 'are out of order'}; "
                             "wanted ascending ranges")
    return tuple(made)


def find_bucket(buckets: tuple[Bucket, ...], starts: list[int], key: int) -> int | None:
    """Index of the bucket that has the key."""
    i = bisect_right(starts, key) - 1
    return i if i >= 0 and key < buckets[i].end else None


def ladder(least: int, most: int) -> tuple[Bucket, ...]:
    """1 … ``least`` rounded up to a power of two, then doubling until ``most`` is covered: padding at most doubles,
    except in the first. ``ValueError`` for least < 1 or most < least."""
    if least < 1:
        raise ValueError(f"min is {least} (max {most}), wanted 1 or more")
    if most < least:
        raise ValueError(f"max {most} is below min {least}")
    extent = 1 << (least - 1).bit_length()
    made = [Bucket(1, extent + 1)]
    while extent < most:
        made.append(Bucket(extent + 1, 2 * extent + 1))
        extent *= 2
    return tuple(made)
