"""Owns handlers of Resize and Upsample: nearest neighbour by whole factors; the rest stays opaque."""

from __future__ import annotations

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_value import Value
from planner_core.ir import ops


def _scales(c: Call, i: int) -> tuple[float, ...] | None:
    a = c.known(i, "scales")
    return None if a is None or a.size == 0 else tuple(float(x) for x in a.reshape(-1))


def _repeats(factor: int, transform: str, nearest: str) -> bool:
    """Output i reads input i // factor under this coordinate rule."""
    if factor == 1:
        return True
    if transform == "asymmetric":
        return nearest == "floor" or (factor == 2 and nearest == "round_prefer_floor")
    return transform in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric") and nearest.startswith("round")


@onnx_op("Resize", "Upsample")
def resize(c: Call) -> Value:
    x, mode = c[0], str(c.attr("mode", "nearest"))
    rank = x.shape.rank
    sizes: tuple[int, ...] | None = None
    transform, nearest = "asymmetric", "floor"
    if c.node.op_type == "Upsample" or c.opset < 11:
        attr = c.attr("scales")
        scales = tuple(float(s) for s in attr) if attr is not None else _scales(c, 1)
    else:
        scales, sizes = _scales(c, 2), c.known_ints(3, "sizes")
        transform = str(c.attr("coordinate_transformation_mode", "half_pixel"))
        nearest = str(c.attr("nearest_mode", "round_prefer_floor"))
    axes = [x.shape.axis(a) for a in c.ints("axes") or range(rank)]
    if sizes:
        if str(c.attr("keep_aspect_ratio_policy", "stretch")) != "stretch":
            raise Unsupported("it keeps the aspect ratio")
        have = [x.shape.sizes[a] for a in axes]
        scales = tuple(n / h if h else 1.0 for n, h in zip(sizes, have, strict=True))
    if scales is None:
        raise Unsupported("neither scales nor sizes are known")
    if all(s == 1 for s in scales):
        return x
    if mode != "nearest":
        raise Unsupported(f"mode {mode}")
    factors = [1] * rank
    for a, s in zip(axes, scales, strict=True):
        if s < 1 or s != int(s) or not _repeats(int(s), transform, nearest):
            raise Unsupported(f"nearest by {s:g} with {transform}, {nearest}")
        factors[a] = int(s)
    return c.emit(ops.ResizeNearest(tuple(factors)), x)
