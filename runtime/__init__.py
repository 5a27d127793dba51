"""Command lists and executors: a planned graph, run on exactly the bytes that the plan gave it."""

from runtime import control_flow
from runtime.command_list import CommandList, Operand, Thunk, register_kernel
from runtime.compile import Compilation, CompileOptions, compile_graph
from runtime.errors import LoweringError, PaddingWarning, RunError, SanitizeError
from runtime.executors import HostExecutor
from runtime.lowering import lower_graph
from runtime.passes import PassOptions, run_passes
from runtime.profile import Profile
from runtime.session import CompiledGraph, Device, DeviceError, PrecisionPolicy, Session

__all__ = [
    "CommandList", "Compilation", "CompileOptions", "CompiledGraph", "Device", "DeviceError", "HostExecutor", "LoweringError",
    "Operand", "PaddingWarning", "PassOptions", "PrecisionPolicy", "Profile", "RunError", "SanitizeError", "Session", "Thunk", "compile_graph",
    "control_flow", "lower_graph", "register_kernel", "run_passes",
]
