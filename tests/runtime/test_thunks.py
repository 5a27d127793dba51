"""Every thunk against a reference from another library or a formula, plain and audited."""

from __future__ import annotations

import numpy as np
import pytest

from runtime import compile_graph
from tests.runtime import gallery_packed
from tests.runtime.gallery import CASES, as_written

assert gallery_packed.__doc__  # its cases are registered


@pytest.mark.parametrize("name", CASES)
def test_thunk_equals_reference_on_an_audited_arena(name: str) -> None:
    case = CASES[name]()
    compiled = as_written(case.graph)
    if case.options:
        compiled = compiled.with_options(**dict(case.options))
    plain = compiled.run(case.feed)
    audited = compiled.run(case.feed, sanitize=True)
    again = compiled.run(case.feed)
    for label, want in zip(case.graph.output_names, case.want, strict=True):
        got = plain[label]
        node = case.graph[case.graph.outputs[0]]
        assert got.shape == node.shape.sizes == want.shape
        assert got.dtype == node.dtype.numpy
        tolerance = 2e-3 if node.dtype.is_half else 1e-5
        scale = float(np.abs(want).max()) if node.dtype.is_float else 1.0
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance,
                                   atol=tolerance * scale)
        np.testing.assert_array_equal(audited[label], got)
        np.testing.assert_array_equal(again[label], got)


@pytest.mark.parametrize("policy", ["f32_uniform", "hybrid", "native"])
def test_every_storage_width_gives_the_same_numbers(policy: str) -> None:
    """Integers and bools stored as f32, halves stored wide or not: the results stay."""
    for name, make in CASES.items():
        case = make()
        compiled = compile_graph(case.graph).with_options(**{**dict(case.options), "width_policy": policy})
        got = next(iter(compiled.run(case.feed, sanitize=True).values()))
        want, node = case.want[0], case.graph[case.graph.outputs[0]]
        assert got.dtype == node.dtype.numpy, name
        tolerance = 2e-3 if node.dtype.is_half else 1e-5
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, err_msg=name,
                                   atol=tolerance * (float(np.abs(want).max()) if node.dtype.is_float else 1))
