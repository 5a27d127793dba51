"""Owns ``AotCache``: compiled command lists on disk, a file each, that another process loads instead of compiling.

A file is ``magic, checksum of all that follows, length of the header, header (JSON), sections``. It is written beside its
place and renamed over it, so readers and writers in several processes see whole files only; what doesn't check out is a
miss with a warning. No pickle: reading can only build command lists.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from planner_core.errors import RlxError
from planner_core.ir import write_atomically
from planner_core.memory import MemoryPlan
from runtime.caches.commands_file import commands_from_parts, commands_to_parts
from runtime.command_list import CommandList

__all__ = ["AotCache", "AotCacheWarning", "AotEntry", "AotKey", "code_digest", "platform_text"]

MAGIC = b"rlx-aot1"
_CHECK = 32
SUFFIX = ".rlxaot"
STALE_SECONDS = 24 * 3600


class AotCacheWarning(UserWarning):
    """A file that is there but can't be used; it is compiled again and replaced."""


def platform_text() -> str:
    """What a file must have been written on."""
    return f"{sys.platform}-{platform.machine()}-{sys.byteorder}"


@functools.cache
def code_digest() -> str:
    """The installed version and a hash of the planner's and the runtime's source: another build never reads this one's
    plans."""
    try:
        version = metadata.version("rlx-viz")
    except metadata.PackageNotFoundError:
        version = "0"
    h = hashlib.blake2b(digest_size=16)
    root = Path(__file__).parents[2]
    for folder in ("planner_core", "runtime"):
        for p in sorted((root / folder).rglob("*.py")):
            h.update(p.relative_to(root).as_posix().encode() + b"\0" + p.read_bytes())
    return f"{version}+{h.hexdigest()}"


@dataclass(frozen=True, slots=True)
class AotKey:
    """What a file answers for. ``template``, ``options``: hashes (the template's is that of what it is made from: the module,
    its weights where there are any, the fusion rules); ``binding`` as text."""

    template: str
    binding: str
    options: str

    def header(self) -> dict[str, str]:
        """The key with the version and the platform, as the file carries it."""
        return {"template": self.template, "binding": self.binding, "options": self.options, "version": code_digest(),
                "platform": platform_text()}

    @property
    def digest(self) -> str:
        """Of the header: names the file."""
        return hashlib.blake2b(json.dumps(self.header(), sort_keys=True).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class AotEntry:
    """A loaded file. ``plan()`` reads the plan's section when someone asks. ``folded``: fusion computed with the weights'
    values, so the executor wants those of the fused graph."""

    commands: CommandList
    folded: bool
    plan: Callable[[], MemoryPlan]


class AotCache:
    """Files in one folder, made if it is not there. Any number of threads and processes may use it at once."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise RlxError(f"can't make the cache folder {self.folder}: {e.strerror or e}") from e
        self._sweep()

    def _sweep(self) -> None:
        """Remove what killed writers left half-written, once it is a day old."""
        for p in self.folder.glob(f".*{SUFFIX}.*"):
            with contextlib.suppress(OSError):  # another process may be sweeping too
                if time.time() - p.stat().st_mtime > STALE_SECONDS:
                    p.unlink()

    def path_for(self, base: str, key: AotKey) -> Path:
        """``base`` is a readable prefix (a model's name); the rest is the key's digest."""
        return self.folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', base)[:80] or 'graph'}-{key.digest}{SUFFIX}"

    def load(self, base: str, key: AotKey) -> AotEntry | None:
        """The entry, or None: no file, or one that is damaged or foreign (with an ``AotCacheWarning`` that says how)."""
        path = self.path_for(base, key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            _refuse(path, f"can't be read: {e.strerror or e}")
            return None
        try:
            return _parse(data, key)
        except _UnusableFile as e:
            _refuse(path, str(e))
            return None
        except Exception as e:  # a checksum that holds over what isn't ours: still a miss
            _refuse(path, f"is no command list: {type(e).__name__} {e}")
            return None

    def store(self, base: str, key: AotKey, commands: CommandList, plan: MemoryPlan, folded: bool = False) -> Path | None:
        """Write the entry atomically and return its path; None, with a warning, where the folder takes no file, or for a
        list that would not come back equal (nested graphs with weights of their own, say)."""
        text, blob = commands_to_parts(commands)
        if commands_from_parts(text, blob) != commands:
            warnings.warn(f"AOT cache: {commands.name!r} isn't stored: its commands don't come back equal from a file",
                          AotCacheWarning, stacklevel=2)
            return None
        sections = [("commands", text), ("constants", blob), ("plan", plan.to_json().encode())]
        header = json.dumps({**key.header(), "folded": folded, "sections": [[n, len(b)] for n, b in sections]}, sort_keys=True).encode()
        body = b"".join([len(header).to_bytes(8, "little"), header, *[b for _, b in sections]])
        path = self.path_for(base, key)
        try:
            write_atomically(path, MAGIC + hashlib.blake2b(body, digest_size=_CHECK).digest() + body)
        except (RlxError, OSError) as e:
            warnings.warn(f"AOT cache: {path} can't be written: {e}", AotCacheWarning, stacklevel=2)
            return None
        return path

    def files(self) -> list[Path]:
        """Entries on disk, by name."""
        return sorted(self.folder.glob(f"*{SUFFIX}"))

    def clear(self) -> int:
        """Remove every entry; how many."""
        found = self.files()
        for p in found:
            p.unlink(missing_ok=True)
        return len(found)


class _UnusableFile(Exception):
    """What is wrong with a file."""


def _refuse(path: Path, why: str) -> None:
    warnings.warn(f"AOT cache: {path} {why}; compiling again", AotCacheWarning, stacklevel=3)


def _parse(data: bytes, key: AotKey) -> AotEntry:
    start = len(MAGIC) + _CHECK
    if len(data) < start + 8:
        raise _UnusableFile(f"is truncated: {len(data)} bytes")
    if data[: len(MAGIC)] != MAGIC:
        raise _UnusableFile(f"is not an entry of this format: it starts with {data[: len(MAGIC)]!r}, wanted {MAGIC!r}")
    body = memoryview(data)[start:]
    if hashlib.blake2b(body, digest_size=_CHECK).digest() != data[len(MAGIC) : start]:
        raise _UnusableFile("is damaged: its checksum doesn't match (truncated or changed)")
    end = 8 + int.from_bytes(body[:8], "little")
    header: dict[str, Any] = json.loads(bytes(body[8:end]))
    for name, want in key.header().items():
        if header.get(name) != want:
            raise _UnusableFile(f"is of another {name}: {header.get(name)!r}, wanted {want!r}")
    parts: dict[str, memoryview] = {}
    for name, size in header["sections"]:
        parts[name] = body[end : end + size]
        end += size
    commands = commands_from_parts(bytes(parts["commands"]), parts["constants"])
    plan_text = parts["plan"]
    return AotEntry(commands, bool(header["folded"]), lambda: MemoryPlan.from_json(bytes(plan_text).decode()))
