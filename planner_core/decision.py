"""Owns ``Decision``: what a graph rule or a command pass did at one place, or why it did not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from planner_core.show import Facts, Shown

__all__ = ["Decision", "DecisionLog", "Verdict"]


class Verdict(Enum):
    """What came of a candidate."""

    APPLIED = "applied"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Decision:
    """One candidate of one rule.

    ``anchor`` is where it was found and ``nodes`` what takes part, the anchor included: node ids of the stage's
    input graph, or indices into the list before passes. ``reason`` is a member of the stage's closed enum (its value
    reads as a sentence), None when applied; ``facts`` are the figures behind it. ``bytes_saved`` counts the
    intermediate bytes no longer written; ``dispatches_saved`` the commands no longer issued.
    """

    stage: str
    rule: str
    verdict: Verdict
    anchor: int
    nodes: tuple[int, ...]
    reason: Enum | None = None
    facts: tuple[tuple[str, Any], ...] = ()
    bytes_saved: int = 0
    dispatches_saved: int = 0

    @property
    def applied(self) -> bool:
        return self.verdict is Verdict.APPLIED

    def __str__(self) -> str:
        facts = ", ".join(f"{k} {v}" for k, v in self.facts)
        if self.applied:
            what = f"{self.dispatches_saved} dispatches and {self.bytes_saved} B saved"
        else:
            what = str(self.reason.value) if self.reason is not None else "refused"
        return f"{self.stage} {self.rule} at {self.anchor}: {self.verdict.value}, {what}" + (f" ({facts})" if facts else "")


@dataclass(frozen=True, slots=True, repr=False)
class DecisionLog(Shown):
    """Every decision of one stage, in the order taken; ``labels`` name anchors for people."""

    decisions: tuple[Decision, ...] = ()
    labels: Mapping[int, str] = field(default_factory=dict, compare=False)

    def _facts(self) -> Facts:
        return ("DecisionLog", (("applied", len(self.applied())), ("refused", len(self.refused()))), "log.to_frame() lists them with reasons")

    def __len__(self) -> int:
        return len(self.decisions)

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.decisions)

    def applied(self, rule: str = "") -> list[Decision]:
        """Those that changed something, of one rule or of all."""
        return [d for d in self.decisions if d.applied and rule in ("", d.rule)]

    def refused(self, rule: str = "") -> list[Decision]:
        """Those that did not, of one rule or of all."""
        return [d for d in self.decisions if not d.applied and rule in ("", d.rule)]

    def why_not(self, node: int) -> list[Decision]:
        """Every rule that looked at ``node`` and stopped, in the order it did; empty when none did."""
        return [d for d in self.decisions if not d.applied and (d.anchor == node or node in d.nodes)]

    def counts(self) -> dict[str, dict[str, int]]:
        """Rule -> applied and refused-by-reason counts, most frequent first."""
        out: dict[str, dict[str, int]] = {}
        for d in self.decisions:
            key = "applied" if d.reason is None else d.reason.name.lower()
            row = out.setdefault(d.rule, {})
            row[key] = row.get(key, 0) + 1
        return {r: dict(sorted(c.items(), key=lambda kv: (-kv[1], kv[0]))) for r, c in out.items()}

    @property
    def bytes_saved(self) -> int:
        return sum(d.bytes_saved for d in self.decisions if d.applied)

    @property
    def dispatches_saved(self) -> int:
        return sum(d.dispatches_saved for d in self.decisions if d.applied)

    def to_frame(self) -> Any:
        """A pandas frame, one row a decision; columns as the fields, plus the anchor's label."""
        import pandas as pd

        frame = pd.DataFrame(
            [(d.stage, d.rule, d.verdict.value, d.anchor, self.labels.get(d.anchor, ""), len(d.nodes),
              "" if d.reason is None else d.reason.name.lower(), "" if d.reason is None else str(d.reason.value),
              ", ".join(f"{k}={v}" for k, v in d.facts), d.bytes_saved, d.dispatches_saved) for d in self.decisions],
            columns=["stage", "rule", "verdict", "anchor", "label", "nodes", "reason", "explanation", "facts",
                     "bytes_saved", "dispatches_saved"])
        return frame.astype(dict.fromkeys(("anchor", "nodes", "bytes_saved", "dispatches_saved"), "int64"))

    def extended(self, more: Iterable[Decision]) -> DecisionLog:
        """A log with further decisions behind these."""
        return DecisionLog((*self.decisions, *more), self.labels)
