"""Owns handlers of convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_ops.structure import reshape
from planner_core.importers.onnx_value import Value
from planner_core.ir import dim, ops


def window(c: Call, x: Value, kernel: Sequence[int], dilations: Sequence[int],
           strides: Sequence[int]) -> tuple[int, ...]:
    """``pads`` (begins, then ends), from the attribute or from ``auto_pad``."""
    auto, space = str(c.attr("auto_pad", "NOTSET")), len(kernel)
    if auto == "VALID":
        return (0,) * (2 * space)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        return c.ints("pads", (0,) * (2 * space)) or ()
    before, after = [], []
    for d, k, dil, s in zip(x.shape.dims[2:], kernel, dilations, strides, strict=True):
        if d.value is None:
            raise Unsupported(f"auto_pad {auto} over an unknown extent")
        total = max(0, (-(-d.value // s) - 1) * s + dil * (k - 1) + 1 - d.value)
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return (*before, *after)


@onnx_op("Conv")
def conv(c: Call) -> Value:
    """With a bias ``FusedConvBiasAct`` without activation, else ``Conv`` or ``Conv3d``."""
    x, w, bias = c[0], c[1], c.get(2)
    space = x.shape.rank - 2
    if not 1 <= space <= 3:
        raise Unsupported(f"{space} spatial axes")
    kernel = w.shape.sizes[2:]
    strides = c.ints("strides", (1,) * space) or ()
    dilations = c.ints("dilations", (1,) * space) or ()
    pads = window(c, x, kernel, dilations, strides)
    groups = int(c.attr("group", 1))
    if bias is not None:
        return c.emit(ops.FusedConvBiasAct(strides, pads, dilations, groups), x, w, bias)
    return c.emit((ops.Conv3d if space == 3 else ops.Conv)(strides, pads, dilations, groups), x, w)


@onnx_op("ConvTranspose")
def conv_transpose(c: Call) -> Value:
    """2-D, and 1-D with an extra axis; a bias is added after."""
    x, w, bias = c[0], c[1], c.get(2)
    space = x.shape.rank - 2
    if space not in (1, 2):
        raise Unsupported(f"{space} spatial axes")
    kernel = w.shape.sizes[2:]
    strides = c.ints("strides", (1,) * space) or ()
    dilations = c.ints("dilations", (1,) * space) or ()
    extra = c.ints("output_padding", (0,) * space) or ()
    want, auto = c.ints("output_shape"), str(c.attr("auto_pad", "NOTSET"))
    if want is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        want = tuple(n * s for n, s in zip(x.shape.sizes[2:], strides, strict=True))
    if want is not None:
        want = want[-space:]
        before, after = [], []
        for i, n in enumerate(x.shape.sizes[2:]):
            total = strides[i] * (n - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - want[i]
            if total < 0:
                raise Unsupported("its output is larger than its windows reach")
            small, large = total // 2, total - total // 2
            before.append(small if auto == "SAME_UPPER" else large)
            after.append(large if auto == "SAME_UPPER" else small)
        pads = (*before, *after)
    else:
        pads = (0,) * (2 * space) if auto == "VALID" else c.ints("pads", (0,) * (2 * space)) or ()
    if min(pads) < 0:
        raise Unsupported("negative pads")
    dims = x.shape.dims
    if space == 1:
        x = reshape(c, x, (*dims[:2], 1, dims[2]))
        w = reshape(c, w, (*w.shape.dims[:2], 1, w.shape.dims[2]))
        strides, dilations, extra, pads = (1, *strides), (1, *dilations), (0, *extra), (0, pads[0], 0, pads[1])
    y = c.emit(ops.ConvTranspose2d(strides, pads, dilations, extra, int(c.attr("group", 1))), x, w)
    if bias is not None:
        y = c.emit(ops.Binary("add"), y, reshape(c, bias, (bias.shape.dims[0], dim(1), dim(1))))
    return reshape(c, y, (*y.shape.dims[:2], y.shape.dims[3])) if space == 1 else y
