"""Every thunk against a reference from another library or a formula, plain and audited."""

from __future__ import annotations

import numpy as np
import pytest

from runtime import compile_graph
from tests.runtime.gallery import CASES


@pytest.mark.parametrize("name", CASES)
def test_thunk_equals_reference_on_an_audited_arena(name: str) -> None:
    case = CASES[name]()
    compiled = compile_graph(case.graph)
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
