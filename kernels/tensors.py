"""Checks of arguments that all kernels share, and the options and the device of their launches.

Each check raises ``InputMismatchError``, whose message names the argument, what it is and what is expected; of
gradients, ``NotDifferentiableError``.
"""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from numbers import Real
from typing import Any

import torch

from autotune.errors import InputMismatchError, NotDifferentiableError
from autotune.shape import Shape
from autotune.space import Config


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(value: object) -> str:
    """Describe an argument in a few words: sizes and dtype of a tensor, a plain value, or else its type."""
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {dtype_name(value.dtype)}"
    return repr(value) if isinstance(value, bool | int | float | str | None) else f"a {type(value).__name__}"


def check_tensors(tensors: Mapping[str, object]) -> None:
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise InputMismatchError(f"{name} is {describe(value)}; expected a tensor")


def check_together(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors of several devices, and gradients."""
    first = next(iter(tensors))
    device = tensors[first].device
    elsewhere = [f"{name} on {tensor.device}" for name, tensor in tensors.items() if tensor.device != device]
    if elsewhere:
        raise InputMismatchError(f"{first} is on {device}, {', '.join(elsewhere)}; expected one device")
    check_gradients(tensors)


def check_gradients(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors that require gradients, where torch would record them."""
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if tensor.requires_grad:
                raise NotDifferentiableError(
                    f"{name} requires gradients, and there is no backward kernel; call it under torch.no_grad()"
                )


def check_out(
    out: object,
    sizes: tuple[int, ...],
    inputs: Mapping[str, torch.Tensor],
    *,
    contiguous: bool = False,
    dtypes: Sequence[torch.dtype] = (),
) -> None:
    """Refuse a buffer that cannot hold an output of these sizes, of the dtype and on the device of the first input.

    ``dtypes`` may be others that it can have.

    ``contiguous``: the kernel writes one row after another; otherwise it takes any strides with a unit last one.
    """
    first, like = next(iter(inputs.items()))
    dtypes = dtypes or (like.dtype,)
    if not isinstance(out, torch.Tensor) or tuple(out.shape) != sizes or out.dtype not in dtypes:
        raise InputMismatchError(f"out is {describe(out)}; expected {sizes} {' or '.join(map(dtype_name, dtypes))}")
    if out.device != like.device or out.requires_grad:
        check_together({first: like, "out": out})
    if contiguous and not out.is_contiguous():
        raise InputMismatchError(f"out has the strides {out.stride()}; expected a contiguous tensor")
    if out.shape[-1] > 1 and out.stride(-1) != 1:
        raise InputMismatchError(f"out has the strides {out.stride()}; expected 1 in the last dimension")


def check_apart(out: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> None:
    """Refuse a buffer with strides of 0, and one that may share memory with an input.

    A buffer in the range of an input passes where equal strides show that they are apart: slices of one packed tensor.
    """
    if out.numel() == 0:
        return
    strides = out.stride()
    if 0 in strides and any(size > 1 for size, stride in zip(out.shape, strides, strict=True) if stride == 0):
        raise InputMismatchError(f"out has the strides {strides}; expected memory of its own for each element")
    start = out.data_ptr()
    end = start + range_bytes(out)
    for name, tensor in inputs.items():
        begin = tensor.data_ptr()
        if begin < end and start < begin + range_bytes(tensor) and _may_meet(out, tensor, begin - start):
            raise InputMismatchError(f"out shares memory with {name}; expected a buffer of its own")


def range_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + last) * tensor.element_size()


def _may_meet(one: torch.Tensor, other: torch.Tensor, offset: int) -> bool:
    """Return False if no element of ``other``, which begins ``offset`` bytes behind ``one``, can be one of its own."""
    reach: tuple[Counter[int], ...] = (Counter(), Counter())
    for found, tensor in zip(reach, (one, other), strict=True):
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            found[stride] += size - 1
    if one.dtype != other.dtype or offset % one.element_size() or (+reach[0]).keys() != (+reach[1]).keys():
        return True  # not shown
    steps = [(stride, -reach[1][stride], reach[0][stride]) for stride in sorted(+reach[0], reverse=True)]
    return _is_sum(offset // one.element_size(), steps)


def _is_sum(total: int, steps: Sequence[tuple[int, int, int]]) -> bool:
    """Return if integers between each pair of bounds, times the strides (the greatest first), can add up to a total."""
    if not steps:
        return total == 0
    (stride, low, high), *others = steps
    rest = sum(each * max(-least, most) for each, least, most in others)
    first, last = -((rest - total) // stride), (total + rest) // stride
    return any(_is_sum(total - times * stride, others) for times in range(max(low, first), min(high, last) + 1))


def check_device(device: torch.device, computed: torch.dtype | None = None) -> None:
    """Refuse the CPU, unless Triton interprets there, and bfloat16 even so: it computes it on raw bits (3.6.0)."""
    if device.type != "cpu":
        return
    import triton  # not at the top: a cache on the CPU needs none

    if not triton.knobs.runtime.interpret:
        raise InputMismatchError("the tensors are on the CPU; expected a GPU (or TRITON_INTERPRET=1, to check numbers)")
    if computed == torch.bfloat16:
        raise InputMismatchError(
            "the tensors are bfloat16 on the CPU, which Triton's interpreter gets wrong; expected float16 or float32"
        )


def require_context(device: torch.device) -> None:
    """Make a CUDA context current in a thread that has none yet.

    Triton's launcher does so itself, but encodes descriptors before, which cuTensorMapEncodeTiled refuses without a
    context ("invalid device context", Triton 3.6.0); torch's allocator may answer a thread from what it holds, without
    a call of CUDA's runtime.
    """
    if device.type == "cuda" and not getattr(_thread, "has_context", False):
        torch.cuda.mem_get_info(device)
        _thread.has_context = True


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Return a context in which Triton launches on a tensor's GPU: it launches on the current one.

    Example:
        >>> with on_device_of(q):
        ...     launch(q, k, v, out)
    """
    device = tensor.device
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _CURRENT
    return torch.cuda.device(device)


_CURRENT: AbstractContextManager[object] = nullcontext()
_thread = threading.local()


def launch_options(config: Config) -> dict[str, Any]:
    """Return a config as keyword arguments of the launch, without the parameters of other backends."""
    return {name: value for name, value in config.items() if value is not None}


def check_offsets(name: str, offsets: torch.Tensor, total: int, of: str) -> None:
    """Read the offsets of packed sequences, and refuse those that are none; waits for the GPU.

    There are ``total`` packed rows, which are named ``of``.
    """
    found = offsets.tolist()
    if found[0] != 0 or found[-1] != total:
        raise InputMismatchError(
            f"{name} begins with {found[0]} and ends with {found[-1]}; expected 0 and the {total} {of}"
        )
    for sequence, (begin, end) in enumerate(pairwise(found)):
        if end < begin:
            raise InputMismatchError(
                f"{name}[{sequence + 1}]={end} is less than {begin} before it; expected offsets that never fall"
            )


def check_positive(name: str, value: float | None) -> None:
    """Refuse a number that makes no softmax; True is none, though Python takes it for 1."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 < value < float("inf"):
        raise InputMismatchError(f"{name}={describe(value)} is not allowed; expected a positive number")


def check_softcap(softcap: float | None, picked: bool) -> None:
    """Refuse a softcap that is no positive number, and one that the kernel was not picked for, or was."""
    check_positive("softcap", softcap)
    if (softcap is None) != picked:
        return
    if picked:
        raise InputMismatchError("softcap=None; this kernel was picked with a softcap, pass it: softcap=30.0, say")
    raise InputMismatchError(f"softcap={softcap}; this kernel was picked without one, see the shape's softcap")


def refuse_options(call: Callable[..., Any], shape: Shape, given: Mapping[str, object]) -> None:
    """Refuse options that a bound kernel's call does not have, and name the field of the shape that has one."""
    name, fields = next(iter(given)), shape.as_dict()
    if name in fields:
        raise InputMismatchError(
            f"{name} is no option of the call but a field of {type(shape).__name__}, and this kernel was picked for "
            f"{name}={fields[name]!r}; pick another with get_kernel"
        )
    parameters = inspect.signature(call).parameters.values()
    options = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    raise InputMismatchError(f"{name} is no option of this kernel; allowed: {', '.join(options)}")
