"""Owns ``Budget``: bytes to fit into, from a text (``512KiB``) or a device's name."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from fractions import Fraction

from planner_core.errors import RlxError
from planner_core.fusion import DEVICES

__all__ = ["BOARDS", "Board", "Budget", "budget_of", "bytes_of"]

KIB = 1 << 10
_UNITS = {"": 1, "b": 1, **{f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)}, **{f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)}}
"""Decimal and binary, as the standards have them: a KB is 1000 bytes, a KiB 1024."""


@dataclass(frozen=True, slots=True)
class Board:
    """A small device: RAM that a program can address in one piece, before what its system keeps of it."""

    name: str
    title: str
    ram_bytes: int
    source: str


BOARDS: dict[str, Board] = {b.name: b for b in (
    Board("arduino-nano-33-ble-sense", "Arduino Nano 33 BLE Sense", 256 * KIB, "Nordic nRF52840 product specification: 256 KB RAM"),
    Board("raspberry-pi-pico", "Raspberry Pi Pico", 264 * KIB, "RP2040 datasheet: 264 KB SRAM"),
    Board("raspberry-pi-pico-2", "Raspberry Pi Pico 2", 520 * KIB, "RP2350 datasheet: 520 KB SRAM"),
    Board("esp32-s3", "Espressif ESP32-S3", 512 * KIB, "ESP32-S3 datasheet: 512 KB SRAM"),
    Board("raspberry-pi-zero-2-w", "Raspberry Pi Zero 2 W", 512 * KIB * KIB, "its product brief: 512 MB SDRAM"),
)}
"""Boards by name. Datasheets write KB for 1024 bytes of RAM."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes, and the words they were asked for in."""

    nbytes: int
    text: str

    def __str__(self) -> str:
        return self.text


def bytes_of(text: str) -> int | None:
    """Bytes of a size: digits with B, KB (1000), KiB (1024), … up to T, or nothing behind them; None where it is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if found is None or found.group(2) not in _UNITS:
        return None
    return int(Fraction(found.group(1)) * _UNITS[found.group(2)])


def budget_of(text: str) -> Budget:
    """``512KB`` (512,000 bytes), ``512KiB`` (524,288), ``1.5MiB``, plain bytes, or the name of a board or a device profile.

    ``RlxError`` for anything else, with the names; also for a device that is built with different amounts of memory.
    """
    name = text.strip()
    nbytes = bytes_of(name)
    if nbytes is not None:
        if nbytes < 1:
            raise RlxError(f"--fit {text}: wanted 1 byte or more")
        return Budget(nbytes, f"{nbytes:,} B" if name.rstrip("bB ").isdecimal() else f"{name} ({nbytes:,} B)")
    key = name.lower().replace(" ", "-")
    if key in BOARDS:
        b = BOARDS[key]
        return Budget(b.ram_bytes, f"the {b.ram_bytes // KIB:,} KiB ({b.ram_bytes:,} B) of the {b.title}")
    if key in DEVICES:
        d = DEVICES[key]
        if not d.memory_gb:
            raise RlxError(f"--fit {text}: {d.title} is sold with different amounts of memory; give the size, e.g. --fit 16GB")
        nbytes = round(d.memory_gb * 1e9)
        return Budget(nbytes, f"the {d.memory_gb:g} GB ({nbytes:,} B) of the {d.title}")
    names = [*BOARDS, *(n for n, d in DEVICES.items() if d.memory_gb)]
    near = difflib.get_close_matches(key, names, 1)
    raise RlxError(f"--fit {text}: neither a size (512KB = 512,000 B, 512KiB = 524,288 B, 1.5MiB) nor a device; "
                   + (f"did you mean {near[0]}? " if near else "") + f"devices: {', '.join(names)}")
