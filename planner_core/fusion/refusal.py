"""Owns the closed set of reasons why a fusion rule leaves a candidate alone."""

from __future__ import annotations

from enum import Enum

__all__ = ["Refusal"]


class Refusal(Enum):
    """Why a candidate was refused; the value is the sentence a person reads."""

    SHARED = "a value inside the pattern is read elsewhere too, so it has to be written anyway"
    OUTPUT = "a value inside the pattern is a graph output"
    READ_LATER = "the sum is read again later, so the fused kernel would not save writing it"
    DTYPE = "the target's kernel does not take this dtype"
    MIXED_DTYPES = "the operands have different dtypes"
    SHAPE = "the shapes do not fit the fused kernel"
    UNKNOWN_SHAPE = "an extent is not known before the run"
    BROADCAST = "an operand broadcasts in a way the kernel cannot address"
    RANK = "the kernel has no form of this rank"
    AXIS = "the operation runs along another axis than the kernel's"
    ACTIVATION = "the kernel has no form with this activation"
    NOT_CONSTANT = "a value that the kernel takes as a constant is computed in the graph"
    CONSTANT = "a constant has another value than the pattern wants"
    NO_DATA = "the weights' values are not known, so nothing can be computed ahead"
    GROWS = "computing it ahead would take more bytes than it reads"
    TOO_LARGE = "it is larger than what is computed ahead"
    MASK = "the mask is of no kind that the kernel knows"
    SCALE = "the scores are scaled by something that is no constant"
    HEADS = "the heads are not split or shared in a way the kernel knows"
    LAYOUT = "the axes are not in an order the kernel reads"
    ROTATION = "the rotation pairs its values in no way the kernel knows"
    EPILOGUE = "the kernel already has an epilogue"
    INPUTS = "it would read more inputs than one kernel takes"
    ROWS = "the target's kernel reads a bank transposed only for a few rows"
    STEPS = "it would have more steps than one kernel takes"
    KIND = "the kernel has no such step"
    RECOMPUTE = "a shared value would be computed twice, at more cost than reading it"
    SAVES_NOTHING = "the fused form writes as much and dispatches as often"
    COMMAND_PASS = "this form belongs to a command pass on the target (option decode_forms takes it here)"
    QUANTISATION = "the quantised weight is not in a layout that the kernel reads"
    ORDER = "an operand is only ready after the place where the fused kernel would run"
    OVERWRITTEN = "an append writes into the bytes of a value before the fused kernel, or its reader, would read it"
    LASTING = "an append would write into bytes that outlive the run: a param, a constant, or what is made of them"
    LIMIT = "the search stopped at its limit"
