"""Patterns over random extents, heads, scales and masks: each applies, and the numbers stay."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core.fusion import FusionTarget
from tests.planner_core.fusion import cases_norm, cases_recognise
from tests.planner_core.fusion.cases_attention import attention
from tests.planner_core.fusion.cases_mlp import gated
from tests.planner_core.fusion.cases_rope import rope
from tests.planner_core.fusion.harness import same

QUICK = settings(max_examples=15, deadline=None)
EXTENT = st.integers(2, 5)


@given(st.data())
@QUICK
def test_attention(data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([1, 1, 2, 3]), "groups")
    sizes = (data.draw(EXTENT, "batch"), groups * data.draw(st.integers(1, 3), "kv"), data.draw(EXTENT, "rows"),
             2 * data.draw(EXTENT, "half"))
    layout = data.draw(st.sampled_from(["bhsd", "bshd", "bmm"]), "layout")
    how: dict[str, Any] = {
        "scale": data.draw(st.sampled_from(["mul", "div", "q", "k", "both", "none"]), "scale"),
        "mask": data.draw(st.sampled_from(["", "causal", "input padding" if layout != "bmm" else "", "odd"]), "mask"),
        "softcap": data.draw(st.sampled_from([0.0, 4.0]), "softcap"),
        "keys": sizes[2] + data.draw(st.integers(0, 3), "more keys"),
        "share": data.draw(st.sampled_from(["expand", "repeat"]), "share") if groups > 1 else "", "groups": groups,
    }
    if how["mask"] == "odd" and how["keys"] < 3:
        how["mask"] = ""
    f = same(attention(layout, sizes=sizes, fill=-math.inf, **how), "attention")
    assert len(f.log.applied("attention")) == 1, [str(d) for d in f.log]


@given(st.lists(EXTENT, min_size=1, max_size=3), st.integers(2, 9), st.sampled_from(["mean", "sum", "flat"]),
       st.sampled_from(["div", "power", "rsqrt", "reciprocal", "one over", "negative"]), st.booleans(), st.booleans())
@QUICK
def test_norms(lead: list[int], h: int, how: str, root: str, affine: bool, centred: bool) -> None:
    """One over a count is rounded to f32, so the numbers agree to that."""
    dims = (*lead, h)
    if centred:
        f = same(cases_recognise.layer_norm(dims, how=how, root=root, affine="full" if affine else ""), "recognise_layer_norm", rtol=1e-6)
    else:
        f = same(cases_recognise.rms_norm(dims, how=how, root=root, bare=not affine, beta=affine), "recognise_rms_norm", rtol=1e-6)
    assert len(f.log.applied()) == 1, [str(d) for d in f.log]


@given(st.lists(EXTENT, min_size=1, max_size=3), st.integers(2, 9), st.sampled_from(["layer", "rms"]),
       st.sampled_from(["", "early", "late"]), st.sampled_from(list(FusionTarget)))
@QUICK
def test_residual(lead: list[int], h: int, kind: str, bias: str, target: FusionTarget) -> None:
    rule = "residual_into_layer_norm" if kind == "layer" else "residual_into_rms_norm"
    f = same(cases_norm.residual(kind, bias, dims=(*lead, h)), rule, target=target)
    assert len(f.log.applied(rule)) == 1, [str(d) for d in f.log]


@given(st.sampled_from(["param", "computed", "half"]), st.booleans(), st.sampled_from(["", "slice", "gather", "narrow"]),
       st.sampled_from([0, 2, 4, 6]))
@QUICK
def test_rope(how: str, heads_first: bool, interleaved: str, part: int) -> None:
    form = "halves" if how == "half" else "sum"
    f = same(rope(how, form, heads_first=heads_first, interleaved=interleaved, part=part), "rope")
    assert len(f.log.applied("rope")) == 1 + (part > 0), [str(d) for d in f.log]


@given(st.lists(EXTENT, min_size=1, max_size=3), st.sampled_from(["silu", "gelu", "gelu_approx"]),
       st.sampled_from(["narrow", "slice", "pair"]), st.integers(0, 1), st.booleans())
@QUICK
def test_gated(rows: list[int], kind: str, cut: str, gate: int, swap: bool) -> None:
    rule = "swiglu" if kind == "silu" else "geglu"
    f = same(gated(kind, cut=cut, gate=gate, swap=swap, rows=tuple(rows)), rule)
    assert len(f.log.applied(rule)) == 1, [str(d) for d in f.log]
