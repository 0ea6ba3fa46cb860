"""The rows of a torch profile that are operators or kernels; other rows are frames, or of the profiler and compiler."""

import re
from typing import Any, Final

# Overhead of the profiler itself: overheadKindString of kineto's libkineto/src/cupti_strings.cpp, and memory that no
# operator asked for.
OVERHEAD: Final = (
    "Unknown",
    "Driver Compiler",
    "Buffer Flush",
    "Instrumentation",
    "Resource",
    "Runtime Triggered Module Loading",
    "Lazy Function Loading",
    "Command Buffer Full",
    "Activity Buffer Request",
    "Force Int",
    "Unrecognized",
    "[memory]",
)
# Rows that torch.compile records before its kernels (torch 2.11 to 2.13), a step as a whole, and the frames of Python's
# stacks. Built-in functions stay: a kernel that torch.compile made for a CPU is one, "<built-in function kernel>".
FRAME: Final = re.compile(
    r"^(ProfilerStep|PyTorch Profiler|Torch-Compiled Region|TorchDynamo |Pregraph bytecode|AOTDispatcher )"
    r"|\(\d+\): |pybind11_builtins"
)
GRAPH: Final = "## Call "  # a compiled graph, around its kernels; without stacks the only row of those of a CPU


def is_operator(event: Any, *, on_device: bool) -> bool:
    """Return True if one of the profiler's averages is an operator or a kernel, whatever its library named it.

    With ``on_device`` the time of a GPU is wanted, where the kernels of a compiled graph have rows of their own.

    Example:
        >>> [event.key for event in profiler.key_averages() if is_operator(event, on_device=True)]
        ['aten::mm', 'triton_tem_fused_flex_attention_4']
    """
    name = str(event.key)
    if name in OVERHEAD or FRAME.search(name) is not None or (on_device and name.startswith(GRAPH)):
        return False
    return not getattr(event, "is_user_annotation", False)
