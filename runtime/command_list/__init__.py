"""Commands: operands, thunk declarations with their host kernels, and the list of them."""

from runtime.command_list import thunks
from runtime.command_list.commands import Binding, CommandList, Constant, SlotLife
from runtime.command_list.operand import In, InOut, Operand, Out, Role, is_weight_off, raw_off, tag_weight_off
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, registry, thunk, thunk_from_json
from runtime.command_list.thunks.host import kernels, register_kernel

__all__ = [
    "Binding", "CommandList", "Constant", "In", "InOut", "Operand", "Out", "Role", "Scratch", "SlotLife", "Thunk",
    "is_weight_off", "kernels", "raw_off", "register_kernel", "registry", "scratch_for", "tag_weight_off", "thunk",
    "thunk_from_json", "thunks",
]
