"""``caches.md``, "DynamicDimCompileCache(device, capacity)"."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core.errors import UnboundDimError
from planner_core.ir import DimBinding
from runtime import CompileOptions, RunError
from runtime.caches import DynamicDimCompileCache
from runtime.session import PrecisionPolicy
from tests.runtime.caches.graphs import Counted, module

ONE = DimBinding.batch_seq(1, 3)


def weights(compiled) -> None:
    compiled.set_param("up.w", np.ones((4, 5), np.float32))
    compiled.set_param("up.b", np.zeros(5, np.float32))


def test_one_template_many_bindings() -> None:
    """"A module with symbolic dims is optimised once into a template; … `build` runs once per template"."""
    cache = DynamicDimCompileCache("cpu", 4)
    build = Counted(module)
    assert not cache.has_template
    assert cache.template_result is None
    for key, (b, s) in enumerate([(1, 3), (2, 5), (4, 1)]):
        made = cache.get_or_specialize(key, DimBinding.batch_seq(b, s), build)
        weights(made)
        out = made.run({"x": np.ones((b, s, 4), np.float32)})["y"]
        assert out.shape == (b, s, 5)
        np.testing.assert_allclose(out, 4 / (1 + np.exp(-4)), rtol=1e-5)
    assert len(build.calls) == 1
    assert cache.has_template
    assert cache.template_result.graph.symbols
    assert [n.op.name for n in made.graph.nodes] == [n.op.name for n in cache.template_result.graph.nodes]
    assert cache.get_or_specialize(1, DimBinding.batch_seq(2, 5), build) is cache.get_or_specialize(
        1, DimBinding.of(seq=5, batch=2), build)


def test_ensure_template_and_clear() -> None:
    """"`has_template`, `ensure_template`, `template_result`, … `clear` drops the template too"."""
    cache = DynamicDimCompileCache("cpu", 4)
    build = Counted(module)
    made = cache.ensure_template(build)
    assert cache.ensure_template(build) is made is cache.template_result
    cache.get_or_specialize(1, ONE, build)
    assert len(build.calls) == 1
    cache.clear()
    assert not cache.has_template
    assert len(cache) == 0
    cache.get_or_specialize(1, DimBinding.batch_seq(9, 9), build)
    assert len(build.calls) == 2, "the key is free again too"


def test_fifo_at_capacity() -> None:
    """"FIFO at `capacity`"."""
    cache = DynamicDimCompileCache("cpu", 2)
    for key in (1, 2, 1, 3):
        cache.get_or_specialize(key, DimBinding.batch_seq(key, 3), module)
    assert list(cache) == [2, 3]
    cache.get_or_specialize(1, DimBinding.batch_seq(5, 5), module)
    assert list(cache) == [3, 1], "a dropped key may come back with another binding"
    with pytest.raises(ValueError, match="capacity is 0"):
        DynamicDimCompileCache("cpu", 0)


def test_one_key_one_binding() -> None:
    """"The same key with a *different* binding is an error"."""
    cache = DynamicDimCompileCache("cpu", 2)
    first = cache.get_or_specialize(7, ONE, module)
    with pytest.raises(RunError, match=r"key 7 is specialised for .*'seq': 3.*asked for .*'seq': 4"):
        cache.get_or_specialize(7, DimBinding.batch_seq(1, 4), module)
    assert cache.get_or_specialize(7, ONE, module) is first


def test_the_options_precision_beats_the_caches_and_their_binding_is_ignored() -> None:
    """"The options' precision policy beats the cache's; a binding inside the options is ignored"."""
    cache = DynamicDimCompileCache("cpu", 3, precision_policy="auto_mixed")
    assert cache.get_or_specialize(1, ONE, module).options.precision is PrecisionPolicy.AUTO_MIXED
    options = CompileOptions(precision=PrecisionPolicy.F32, dims=DimBinding.batch_seq(8, 8))
    made = cache.get_or_specialize(2, ONE, module, options)
    assert made.options.precision is PrecisionPolicy.F32
    assert made.options.dims == ONE
    assert made.graph.find("x").shape.sizes == (1, 3, 4)


@pytest.mark.parametrize(("binding", "name"), [
    (DimBinding.of(batch=1), "seq"), (DimBinding.of(batch=1, seq=2, depth=3), "depth"), (DimBinding(), "batch"),
])
def test_unbound_and_unknown_symbols_are_named(binding: DimBinding, name: str) -> None:
    """"An unbound or unknown symbol is an error that names it"."""
    cache = DynamicDimCompileCache("cpu", 2)
    with pytest.raises(UnboundDimError, match=name):
        cache.get_or_specialize(1, binding, module)
    assert len(cache) == 0
    assert cache.get_or_specialize(1, ONE, module) is not None, "nothing stays of the failure"


def test_specialisations_can_be_active() -> None:
    """Dims keep their symbol after binding, so a specialisation still says which axis varies."""
    cache = DynamicDimCompileCache("cpu", 2)
    made = cache.get_or_specialize(1, DimBinding.batch_seq(1, 6), module)
    weights(made)
    one = np.ones((1, 6, 4), np.float32)
    made.run({"x": one})
    made.set_active_extent((2, 6))
    out = made.run({"x": one * 0})["y"][0, :, 0]
    assert made.extent_reason == ""
    assert (out[:2] == 0).all() and (out[2:] > 3).all()


def test_a_graph_serves_as_module() -> None:
    cache = DynamicDimCompileCache("cpu", 2)
    made = cache.get_or_specialize(1, ONE, lambda: module().lower())
    assert made.graph.find("x").shape.sizes == (1, 3, 4)
