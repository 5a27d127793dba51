"""Owns the declarations of thunks whose kernels come with the families issue: recurrences, scaled formats, splatting,
manifolds, signal features, device kernels. Each moves to its family's file when its kernel is written."""

from __future__ import annotations

from typing import Any

from planner_core.ir import DType, Op
from runtime.command_list.operand import In, InOut, Out
from runtime.command_list.thunk import Thunk, thunk

# --- recurrences --------------------------------------------------------------------------------------


@thunk(name="GatedDeltaNet", label="gated_delta_net", partial_extent="full_ok", where="gpu", pending=True)
class GatedDeltaNet(Thunk):
    """Gated delta rule: S_t = exp(g_t) S_{t-1} + beta_t (v_t - S_{t-1} k_t) k_tᵀ; dst_t = S_t q_t (Yang et al. 2024)."""

    q: In
    k: In
    v: In
    g: In
    beta: In
    state: InOut
    dst: Out
    batch: int
    seq: int
    heads: int
    state_size: int
    f16: bool = False

    @property
    def place(self) -> str:
        return "gpu" if self.dst.storage is DType.F32 and self.state_size <= 128 else "host"


@thunk(name="Mamba2", label="mamba2", partial_extent="full_ok", where="gpu", pending=True)
class Mamba2(Thunk):
    """SSD scan: h = exp(dt a) h + dt x bᵀ by head; dst = h c (Dao & Gu 2024). ``dt_`` is the step; ``dt`` says the width."""

    x: In
    dt_: In
    a: In
    b: In
    c: In
    dst: Out
    batch: int
    seq: int
    heads: int
    head_dim: int
    state_size: int

    @property
    def place(self) -> str:
        return "gpu" if self.state_size <= 128 else "host"


def _simple(t: Lstm | Gru | Rnn) -> bool:
    """One layer, one direction, no carried state: what the GPU kernels do."""
    return t.num_layers == 1 and not t.bidirectional and not t.carry


@thunk(name="Lstm", label="lstm", partial_extent="full_ok", where="gpu", pending=True)
class Lstm(Thunk):
    """LSTM over a sequence: gates i, f, g, o; layers, directions, carried state (Hochreiter & Schmidhuber 1997)."""

    x: In
    w_ih: In
    w_hh: In
    bias: In
    h0: In | None
    c0: In | None
    dst: Out
    batch: int
    seq: int
    input_size: int
    hidden: int
    num_layers: int = 1
    bidirectional: bool = False
    carry: bool = False

    @property
    def place(self) -> str:
        return "gpu" if _simple(self) else "host"


@thunk(name="Gru", label="gru", partial_extent="full_ok", where="gpu", pending=True)
class Gru(Thunk):
    """GRU over a sequence: gates r, z, n; layers, directions, carried state (Cho et al. 2014)."""

    x: In
    w_ih: In
    w_hh: In
    b_ih: In
    b_hh: In
    h0: In | None
    dst: Out
    batch: int
    seq: int
    input_size: int
    hidden: int
    num_layers: int = 1
    bidirectional: bool = False
    carry: bool = False

    @property
    def place(self) -> str:
        return "gpu" if _simple(self) and self.dst.storage is DType.F32 else "host"


@thunk(name="Rnn", label="rnn", partial_extent="full_ok", where="gpu", pending=True)
class Rnn(Thunk):
    """Elman network over a sequence: h = tanh or relu of x w_ih + h w_hh + bias."""

    x: In
    w_ih: In
    w_hh: In
    bias: In
    h0: In | None
    dst: Out
    batch: int
    seq: int
    input_size: int
    hidden: int
    num_layers: int = 1
    bidirectional: bool = False
    carry: bool = False
    relu: bool = False

    @property
    def place(self) -> str:
        return "gpu" if _simple(self) else "host"


# --- low-precision formats ----------------------------------------------------------------------------


@thunk(name="ScaledMatMul", label="scaled_matmul", partial_extent="no", where="host", pending=True)
class ScaledMatMul(Thunk):
    """dst[m, n] = (lhs lhs_scale) (rhs rhs_scale)ᵀ (+ bias) in low-precision codes, scales a tensor or a block."""

    lhs: In
    rhs: In
    lhs_scale: In
    rhs_scale: In
    bias: In | None
    dst: Out
    m: int
    k: int
    n: int
    lhs_fmt: str
    rhs_fmt: str
    layout: str

    @property
    def has_bias(self) -> bool:
        return self.bias is not None


@thunk(name="ScaledQuantize", label="scaled_quantize", partial_extent="no", where="host", pending=True)
class ScaledQuantize(Thunk):
    """dst = codes of x / scale in ``fmt``."""

    x: In
    scale: In
    dst: Out
    rows: int
    cols: int
    fmt: str
    layout: str


@thunk(name="ScaledDequantize", label="scaled_dequantize", partial_extent="no", where="host", pending=True)
class ScaledDequantize(Thunk):
    """dst = value of codes · scale."""

    codes: In
    scale: In
    dst: Out
    rows: int
    cols: int
    fmt: str
    layout: str


@thunk(name="ScaledQuantScale", label="scaled_quant_scale", partial_extent="no", where="host", pending=True)
class ScaledQuantScale(Thunk):
    """dst = the scales of x, a tensor or a block: largest magnitude / largest code."""

    x: In
    dst: Out
    rows: int
    cols: int
    fmt: str
    layout: str


# --- user kernels, manifolds, positions ---------------------------------------------------------------


@thunk(name="CustomGpuOp", label="custom_gpu_op", partial_extent="no", where="gpu", pending=True)
class CustomGpuOp(Thunk):
    """The user's device kernel for a ``Custom`` op; wins over a host kernel of the same name."""

    kernel: str
    inputs: tuple[In, ...]
    output: Out
    attrs: str


@thunk(name="SpdHost", label="spd_host", partial_extent="no", where="host", pending=True)
class SpdHost(Thunk):
    """output = an op on symmetric positive definite matrices, in f64 over f32 slots: widened on read, narrowed on write."""

    op: Op
    inputs: tuple[In, ...]
    output: Out


@thunk(name="AxialRope2dHost", label="axial_rope2d_host", partial_extent="no", where="host", pending=True)
class AxialRope2dHost(Thunk):
    """Rotary embedding of a grid end_x × end_y: half of each head by column, half by row (SAM 2)."""

    src: In
    dst: Out
    batch: int
    seq: int
    hidden: int
    end_x: int
    end_y: int
    head_dim: int
    num_heads: int
    theta: float = 10000.0
    repeat_factor: int = 1


# --- signal features ----------------------------------------------------------------------------------


@thunk(name="LogMel", label="log_mel", partial_extent="no", where="host", pending=True)
class LogMel(Thunk):
    """dst[outer, n_mels] = log of the mel filters over the power of a spectrum."""

    spec: In
    filters: In
    dst: Out
    outer: int
    n_fft: int
    n_bins: int
    n_mels: int


@thunk(name="LogMelBackward", label="log_mel_backward", partial_extent="no", where="host", pending=True)
class LogMelBackward(Thunk):
    """Gradient of LogMel wrt its spectrum."""

    spec: In
    filters: In
    dy: In
    dst: Out
    outer: int
    n_fft: int
    n_bins: int
    n_mels: int


@thunk(name="WelchPeaks", label="welch_peaks", partial_extent="no", where="host", pending=True)
class WelchPeaks(Thunk):
    """dst = the k largest bins of spectra averaged over segments (Welch 1967)."""

    spec: In
    dst: Out
    welch_batch: int
    n_fft: int
    n_segments: int
    k: int


# --- Gaussian splatting -------------------------------------------------------------------------------


def _offset(name: str) -> Any:
    return property(lambda self: getattr(self, name).offset, doc=f"Byte offset of {name}.")


def _length(name: str) -> Any:
    return property(lambda self: getattr(self, name).numel, doc=f"Elements of {name}.")


class _Scene(Thunk):
    """Offsets and lengths of the operands that every step over a scene reads."""

    __slots__ = ()
    positions_off, positions_len = _offset("positions"), _length("positions")
    scales_off, scales_len = _offset("scales"), _length("scales")
    rotations_off, rotations_len = _offset("rotations"), _length("rotations")
    opacities_off, opacities_len = _offset("opacities"), _length("opacities")
    colors_off, colors_len = _offset("colors"), _length("colors")
    sh_coeffs_off, sh_coeffs_len = _offset("sh_coeffs"), _length("sh_coeffs")
    meta_off, meta_len = _offset("meta"), _length("meta")


@thunk(name="GaussianSplatRender", label="gaussian_splat_render", partial_extent="no", where="host", pending=True)
class GaussianSplatRender(_Scene):
    """dst = the image of a scene of 3-D Gaussians (Kerbl et al. 2023); ``meta`` is the camera."""

    positions: In
    scales: In
    rotations: In
    opacities: In
    colors: In
    sh_coeffs: In
    meta: In
    dst: Out
    width: int
    height: int
    tile_size: int
    radius_scale: float
    alpha_cutoff: float
    max_splat_steps: int
    transmittance_threshold: float
    max_list_entries: int
    dst_off, dst_len = _offset("dst"), _length("dst")


@thunk(name="GaussianSplatRenderBackward", label="gaussian_splat_render_backward", partial_extent="no", where="host", pending=True)
class GaussianSplatRenderBackward(_Scene):
    """packed = the gradients of the scene's operands, one after another."""

    positions: In
    scales: In
    rotations: In
    opacities: In
    colors: In
    sh_coeffs: In
    meta: In
    d_loss: In
    packed: Out
    width: int
    height: int
    tile_size: int
    radius_scale: float
    alpha_cutoff: float
    max_splat_steps: int
    transmittance_threshold: float
    max_list_entries: int
    loss_grad_clip: float
    sh_band: int
    max_anisotropy: float
    d_loss_off, d_loss_len = _offset("d_loss"), _length("d_loss")
    packed_off, packed_len = _offset("packed"), _length("packed")


@thunk(name="GaussianSplatPrepare", label="gaussian_splat_prepare", partial_extent="no", where="host", pending=True)
class GaussianSplatPrepare(_Scene):
    """prep = the Gaussians projected, sorted by depth, listed by tile."""

    positions: In
    scales: In
    rotations: In
    opacities: In
    colors: In
    sh_coeffs: In
    meta: In
    prep: Out
    width: int
    height: int
    tile_size: int
    radius_scale: float
    alpha_cutoff: float
    max_splat_steps: int
    transmittance_threshold: float
    max_list_entries: int
    prep_off, prep_len = _offset("prep"), _length("prep")


@thunk(name="GaussianSplatRasterize", label="gaussian_splat_rasterize", partial_extent="no", where="host", pending=True)
class GaussianSplatRasterize(Thunk):
    """dst = the image blended from prepared tiles."""

    prep: In
    meta: In
    dst: Out
    count: int
    width: int
    height: int
    tile_size: int
    alpha_cutoff: float
    max_splat_steps: int
    transmittance_threshold: float
    max_list_entries: int
    prep_off, prep_len = _offset("prep"), _length("prep")
    meta_off, meta_len = _offset("meta"), _length("meta")
    dst_off, dst_len = _offset("dst"), _length("dst")
