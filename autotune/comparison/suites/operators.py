"""Which rows of a torch profile are operators or kernels; the others are frames, or the profiler's and compiler's."""

import re
from typing import Any, Final

# What the profiler spends itself: overheadKindString of kineto's libkineto/src/cupti_strings.cpp, and memory that no
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
# What torch.compile records before its kernels (torch 2.11 to 2.13), a step as a whole, and the frames of Python's
# stacks. Built-in functions stay: what torch.compile made for a CPU is one of them, "<built-in function kernel>".
FRAME: Final = re.compile(
    r"^(ProfilerStep|PyTorch Profiler|Torch-Compiled Region|TorchDynamo |Pregraph bytecode|AOTDispatcher )"
    r"|\(\d+\): |pybind11_builtins"
)
GRAPH: Final = "## Call "  # a compiled graph, around its kernels; without stacks the only row of those of a CPU


def is_operator(event: Any, *, on_device: bool) -> bool:
    """Whether one of the profiler's averages is an operator, or a kernel, by whatever name its library gave it.

    ``on_device``: it is the time of a device that is of interest, where the kernels of a compiled graph have rows.

    Example:
        >>> [event.key for event in profiler.key_averages() if is_operator(event, on_device=True)]
        ['aten::mm', 'triton_tem_fused_flex_attention_4']
    """
    name = str(event.key)
    if name in OVERHEAD or FRAME.search(name) is not None or (on_device and name.startswith(GRAPH)):
        return False
    return not getattr(event, "is_user_annotation", False)
