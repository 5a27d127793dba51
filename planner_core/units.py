"""Owns how bytes and counts are written for people: binary units, nouns in the right number."""

from __future__ import annotations

__all__ = ["bytes_text", "count_text"]


def count_text(n: int, noun: str) -> str:
    """``1 row``, ``1,200 rows``: the noun takes an s."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def bytes_text(n: int) -> str:
    """``1.50 MiB``, ``22.0 MiB``, ``512 KiB``: three digits, as the front end's ``format.js`` writes it.

    Whole bytes below 1 KiB. Integers only, so exact past 2**53.
    """
    sign, n = ("-", -n) if n < 0 else ("", n)
    if n < 1024:
        return f"{sign}{n} B"
    exponent = min((n.bit_length() - 1) // 10, 5)
    unit = 1 << (10 * exponent)
    digits = 2 if n < 10 * unit else 1 if n < 100 * unit else 0
    scaled = (n * 10**digits + unit // 2) // unit
    whole, part = divmod(scaled, 10**digits)
    text = f"{whole}.{part:0{digits}d}" if digits else str(whole)
    return f"{sign}{text} {('KiB', 'MiB', 'GiB', 'TiB', 'PiB')[exponent - 1]}"
