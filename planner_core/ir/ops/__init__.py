"""The op declarations, one module a family; importing this package fills the registry."""

from planner_core.ir.boundary import Constant, Input, Param, Result
from planner_core.ir.ops.adaln import AdaLayerNorm, GatedResidual
from planner_core.ir.ops.attention import Attention, Rope, Softmax, SwiGLU
from planner_core.ir.ops.attention_backward import AttentionBackward, RopeBackward, RopeTableBackward
from planner_core.ir.ops.backward import (
    ActivationBackward,
    AdaLayerNormBackward,
    CumsumBackward,
    GatedResidualBackward,
    GatherBackward,
    GroupedMatMulBackwardWeight,
    LayerNormBackwardBeta,
    LayerNormBackwardInput,
    RmsNormBackwardBeta,
    RmsNormBackwardGamma,
    RmsNormBackwardInput,
    SelectiveScanBackward,
    SliceBackward,
    SoftmaxBackward,
    SwiGLUBackward,
)
from planner_core.ir.ops.control import Custom, If, Loop, Scan
from planner_core.ir.ops.conv import (
    Conv,
    Conv3d,
    ConvTranspose2d,
    FusedConvBiasAct,
    GlobalPool,
    Pool2D,
    ResizeNearest,
)
from planner_core.ir.ops.conv_backward import (
    ConvBackwardInput,
    ConvBackwardWeight,
    MaxPool2dBackward,
    MeanPool2dBackward,
)
from planner_core.ir.ops.elementwise import Activation, Binary, Compare, Fma, Where
from planner_core.ir.ops.fused import (
    DepthwiseConv1dBsc,
    DequantMatMulBlocked,
    FusedAttentionBlock,
    FusedMatMulBiasAct,
    GeGLU,
    GroupNorm,
    ResidualLayerNorm,
    ResidualRmsNorm,
    RmsNormMulSilu,
)
from planner_core.ir.ops.indexing import (
    Gather,
    GatherElements,
    GatherNd,
    ScatterAdd,
    ScatterElements,
    ScatterNd,
)
from planner_core.ir.ops.losses import SoftmaxCrossEntropy, SoftmaxCrossEntropyBackward
from planner_core.ir.ops.matmul import DequantGroupedMatMul, Dequantize, DequantMatMul, GroupedMatMul, MatMul
from planner_core.ir.ops.narrow_floats import DequantMatMulFp8, DequantMatMulNvfp4
from planner_core.ir.ops.norm import (
    BatchNorm,
    LayerNorm,
    LayerNorm2d,
    LayerNormBackwardGamma,
    RmsNorm,
)
from planner_core.ir.ops.random import RngNormal, RngUniform, Sample
from planner_core.ir.ops.reduce import ArgReduce, Cumsum, Reduce, TopK
from planner_core.ir.ops.region import (
    REGION_STEP,
    BatchElementwiseRegion,
    ElementwiseRegion,
    activation_step,
    binary_step,
    cast_step,
    region_steps,
    region_text,
    result_of,
    step_name,
    step_operands,
)
from planner_core.ir.ops.scan import SelectiveScan
from planner_core.ir.ops.signal import Fft, Im2Col, VqAssign
from planner_core.ir.ops.structure import (
    Cast,
    Concat,
    Expand,
    KvAppend,
    Narrow,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from planner_core.ir.ops.transposed import TransposedGroupedMatMul, TransposedMatMul

__all__ = [
    "TransposedGroupedMatMul", "TransposedMatMul",
    "ActivationBackward", "AdaLayerNormBackward", "AttentionBackward", "ConvBackwardInput", "ConvBackwardWeight",
    "CumsumBackward", "GatedResidualBackward", "GatherBackward", "GroupedMatMulBackwardWeight",
    "LayerNormBackwardBeta", "LayerNormBackwardInput", "MaxPool2dBackward", "MeanPool2dBackward",
    "RmsNormBackwardBeta", "RmsNormBackwardGamma", "RmsNormBackwardInput", "RopeBackward", "RopeTableBackward",
    "SelectiveScanBackward", "SliceBackward", "SoftmaxBackward", "SoftmaxCrossEntropy",
    "SoftmaxCrossEntropyBackward", "SwiGLUBackward",
    "REGION_STEP", "BatchElementwiseRegion", "DepthwiseConv1dBsc", "DequantMatMulBlocked", "ElementwiseRegion",
    "FusedAttentionBlock", "FusedMatMulBiasAct", "GeGLU", "GroupNorm", "ResidualLayerNorm", "ResidualRmsNorm",
    "RmsNormMulSilu", "activation_step", "binary_step", "cast_step", "region_steps", "region_text", "result_of",
    "step_name", "step_operands",
    "DequantMatMulFp8", "DequantMatMulNvfp4", "Fft", "Im2Col", "RngNormal", "RngUniform", "Sample", "VqAssign",
    "Activation", "AdaLayerNorm", "ArgReduce", "Attention", "BatchNorm", "Binary", "Cast", "Compare", "Concat", "Constant",
    "Conv", "Conv3d", "ConvTranspose2d", "Cumsum", "Custom", "DequantGroupedMatMul", "DequantMatMul", "Dequantize",
    "Expand", "Fma", "FusedConvBiasAct", "GatedResidual", "Gather", "GatherElements", "GatherNd", "GlobalPool",
    "GroupedMatMul", "If", "Input", "KvAppend", "LayerNorm", "LayerNorm2d", "LayerNormBackwardGamma",
    "Loop", "MatMul", "Narrow", "Pad", "Param", "Pool2D", "Reduce", "Reshape", "ResizeNearest", "Result",
    "Reverse", "RmsNorm", "Rope", "Scan", "ScatterAdd", "ScatterElements", "ScatterNd", "SelectiveScan", "Slice", "Softmax",
    "SwiGLU", "TopK", "Transpose", "Where",
]
