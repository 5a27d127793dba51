"""Owns how bytes are written for people: binary units."""

from __future__ import annotations

__all__ = ["bytes_text"]


def bytes_text(n: int) -> str:
    """``1.50 MiB`` and the like; below 1 KiB whole bytes. Integers only, so exact past 2**53."""
    sign, n = ("-", -n) if n < 0 else ("", n)
    if n < 1024:
        return f"{sign}{n} B"
    exponent = min((n.bit_length() - 1) // 10, 6)
    hundredths = (n * 100 + (1 << (10 * exponent - 1))) >> (10 * exponent)
    whole, part = divmod(hundredths, 100)
    return f"{sign}{whole:,}.{part:02d} {('KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[exponent - 1]}"
