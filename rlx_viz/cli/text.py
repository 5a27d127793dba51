"""Owns what commands print: the headline, stages and decisions as aligned lines."""

from __future__ import annotations

from typing import Any

from planner_core.units import bytes_text, count_text

__all__ = ["decisions_text", "summary_text"]


def summary_text(doc: Any) -> str:
    """The headline as aligned lines; the number to allocate first."""
    meta = doc.meta
    h = {k: int(v) if isinstance(v, str) and k not in ("unknown_names",) else v for k, v in meta["headline"].items()}
    least, about = ("≥ ", "≈ ") if h["unknown"] else ("", "")  # a difference of lower limits is no limit

    def line(name: str, value: int, note: str = "") -> str:
        return f"  {name:<14}{(about if name == 'saved' else least) + bytes_text(value):>14}  {value:>16,} B{'  ' + note if note else ''}"

    saved = f"{100 * h['saved'] / h['naive']:.1f}% of naive" if h["naive"] else ""
    claims = meta.get("claims", {})
    floor = int(claims.get("order_bytes", 0))
    out = [f"{meta['model']['name']}: {_nodes_text(doc)}, model {meta['model']['hash'][:12]}",
           line("to allocate", h["allocate"], "= weights + activations + scratch + padding"),
           line("weights", h["weights"]), line("activations", h["activations"], "live at once, at most"),
           line("scratch", h["scratch"]), line("padding", h["padding"], "alignment, guards, gaps"),
           line("arena", h["arena"]), line("naive", h["naive"], "arena with nothing reused"),
           line("saved", h["saved"], saved),
           line("lower bound", h["lower_bound"], claims.get("optimal", "")),
           *([line("order floor", floor, claims["order"])] if floor else []),
           *[f"  held up: {held['text']}{_off_text(held['options'])}" for held in claims.get("holders", [])],
           *[f"  {body['text']}" for body in claims.get("bodies", [])],
           f"  peak: {bytes_text(h['peak_bytes'])} live at {_peak_text(doc, h['peak_step'])}"]
    if h["unknown"]:
        out.append(f"  {count_text(h['unknown'], 'tensor')} of a size unknown before the run: totals are lower limits")
    out += _stages_text(doc)
    for name, count in meta["unsupported"].items():
        out.append(f"  opaque op {name}: {count}")
    out += [f"  note: {n}" for n in meta["notes"]]
    changed = [o for o in meta["options"] if o["changed"]]
    if changed:
        out.append("  changed: " + ", ".join(f"{o['name']}={str(o['value']).lower()}" for o in changed))
    return "\n".join(out)


def _peak_text(doc: Any, node: int) -> str:
    from rlx_viz.summary import peak_command

    names = doc.tables["tensors"]["name"]
    name = doc.strings[int(names[node])] if node < len(names) else "the end"
    return f"command {peak_command(doc)} of {doc.rows('commands')}, node {node} ({name})"


def _off_text(options: dict[str, Any]) -> str:
    """How to try it on the command line: `` (--set pin_output_ancestors=false)``."""
    words = " ".join(f"--set {k}={str(v).lower()}" for k, v in options.items())
    return f" ({words})" if words else ""


def _nodes_text(doc: Any) -> str:
    nodes = doc.meta["model"]["nodes"]
    if doc.meta.get("source_is_tensors", True):
        return f"{nodes} nodes"
    return f"{doc.rows('source')} nodes, {nodes} after fusion"


def _stages_text(doc: Any) -> list[str]:
    """What fusion and the command passes did, in dispatches and in bytes written between commands."""
    c = {k: int(v) for k, v in doc.meta.get("counters", {}).items()}
    out = []
    if c and c["dispatches_source"] != c["dispatches_before"]:
        out.append(f"  fusion: {c['dispatches_source']} -> {c['dispatches_before']} dispatches, "
                   f"{bytes_text(c['traffic_source'])} -> {bytes_text(c['traffic'])} of intermediate values written in a run")
    if c and c["dispatches_before"] != c["dispatches"]:
        out.append(f"  command passes: {c['dispatches_before']} -> {c['dispatches']} dispatches")
    e = doc.meta.get("estimate")
    if e and out:
        out.append(f"  estimated: {e['us_before'] / 1e3:,.2f} -> {e['us'] / 1e3:,.2f} ms on {e['title']} (roofline)")
    return out


def decisions_text(compilation: Any, top: int) -> list[str]:
    """Both stages: what each rule saved, then the commonest refusals with their sentence."""
    from collections import Counter

    out = []
    for stage, log in (("fusion", compilation.fusion_log), ("command passes", compilation.pass_log)):
        out.append(f"{stage}: {_count(log.dispatches_saved, 'dispatch')} and {bytes_text(max(log.bytes_saved, 0))} of "
                   "writes saved" if log.applied() else f"{stage}: nothing applied")
        rules = dict.fromkeys(d.rule for d in log)
        for rule in rules:
            done = log.applied(rule)
            if done:
                calls, nbytes = (sum(getattr(d, k) for d in done) for k in ("dispatches_saved", "bytes_saved"))
                what = [_count(calls, "dispatch") + " fewer"] if calls else []
                what += [f"{bytes_text(abs(nbytes))} {'less' if nbytes > 0 else 'more'} written"] if nbytes else []
                out.append(f"  {rule}: {len(done)} applied" + (": " + ", ".join(what) if what else ""))
        refused = Counter((d.rule, d.reason) for d in log.refused())
        for (rule, reason), count in sorted(refused.items(), key=lambda kv: (-kv[1], kv[0][0]))[:top]:
            out.append(f"  refused {'once' if count == 1 else f'{count} times'}: {rule}, {reason.value.rstrip('.')}")
    return out


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "es")
