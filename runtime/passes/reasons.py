"""Owns ``Refusal``: every reason for which a command pass leaves a candidate as it is."""

from __future__ import annotations

from enum import Enum

__all__ = ["Refusal"]


class Refusal(Enum):
    """Why a pass did not apply; the value is the sentence that people read."""

    # hazards: data flow on bytes
    OPAQUE = "A thunk whose data flow is unknown lies among the thunks concerned."
    READ_ELSEWHERE = "An intermediate that would vanish is read by another thunk before it is overwritten."
    SUM_READ_LATER = "The sum is read again after the norm, so it can't vanish into it."
    GRAPH_OUTPUT = "An intermediate that would vanish is a graph output."
    OPERAND_OVERWRITTEN = "An operand is overwritten before the place where the fused thunk would read it."
    DESTINATION_IN_USE = "The destination is read or written between the new place and the old one."
    OUTPUT_OVERLAPS_OPERAND = "The result would overlap an operand of which other parts are still to be read."
    # forms
    SWITCHED_OFF = "An option turns this form off."
    HOST_FORM_FORCED = "An option forces the host form, and the fused thunk has none."
    NOT_F32 = "A value is not f32, and the fused thunk has no other form."
    HALF_FORM = "Half-precision activations exist only for Q1_0 and Q2_0 with SiLU."
    NOT_DENSE = "An operand is broadcast or strided, so the two sides are no equal rows of elements."
    RANK_ZERO = "A broadcast of rank 0 has no strides to compare."
    NOT_ONE_ROW = "More than one row: the fused thunk is for decoding, one row at a time."
    ROW_TOO_SHORT = "The row is shorter than 1024 elements."
    LENGTH_DIFFERS = "The operands' lengths differ from the fused thunk's rows."
    # regions
    HAS_PROLOGUE = "The region resizes its input on the way in."
    CHAIN_HAS_NO_FORM = "No plain thunk, or sequence of them, computes this chain."
    STEP_ORDER = "A step's left operand is not the result before it, or its right operand is no input."
    CAST_CHANGES_VALUES = "The cast is not the identity on f32."
    SPLIT_OVERLAPS = "Split into several thunks, the first result would overwrite a later right operand."
    NOT_IN_PLACE = "A lone activation whose input is not its output stays a region."
    # packed MLP
    SCHEME = "The packed format of the weights has no fused form."
    K_NOT_BLOCKS = "The row length is no multiple of 128, which this packed format's fused form wants."
    NOT_HALVES = "The slices are not the two halves of the packed matmul's row, gate first."
    NOT_SAME_INPUT = "Gate and up differ in their input, their lengths or their packed format."
    NO_DOWN = "No one-row packed matmul of a fusable format reads the product."
    NO_RESIDUAL = "The down projection's result is not added to a residual of equal length."
    # norms, conv, slices
    NOT_A_PROJECTION = "Neither side of the sum comes from a projection."
    TOO_FAR = "More than two live thunks stand between the sum and the norm."
    NOT_DEPTHWISE = "The convolution is not depthwise: groups, inputs and outputs differ."
    CONV_SHAPE = "The convolution has a height, stride, dilation, padding or several output steps."
    TRANSPOSE_STRIDES = "A transpose around the convolution is not exactly the swap of channels and width."
    NO_TRANSPOSE_BACK = "No transpose brings the convolution's result back to channels last."
    NOT_A_PARTITION = "The slices of the value leave gaps or overlap, so they do not partition its axis."
