"""Calls of a bound kernel by signature: checked and launched the ordinary way once, and then only repeated.

A signature is all that the checks of a call and its binaries depend on: everything but addresses, beyond their
alignment, and contents. So two calls of one signature are accepted or refused alike, but for an ``out`` that shares
memory with an input, which is looked at every time.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch

from autotune.kernels.relaunch import PastLaunch, is_direct, recording
from autotune.kernels.result_buffers import ResultBuffers

ALIGNMENT: Final = 16  # bytes: Triton has other binaries for addresses that are no multiples, TMA no descriptors
KEPT: Final = 256  # calls of a kernel, some kilobytes each; prefill has one for each number of packed queries

PLAIN: Final = frozenset({type(None), bool, int, float})  # types of options

# Without the check of torch's own, which is for processes that have not used a GPU: who repeats a call has.
current_device: Final[Callable[[], int]] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)

Inputs = tuple[torch.Tensor | None, ...]
Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Signature = tuple[Any, ...]


class Repeat(Protocol):
    """Makes calls of one signature again, on its GPU while that is the current one."""

    device: int

    def __call__(self, inputs: Inputs, out: torch.Tensor | None) -> Result:
        """Compute without checks, into ``out`` or tensors of its own."""


RepeatOf = Callable[[Sequence[PastLaunch], ResultBuffers, torch.device], Repeat | None]


class KnownCalls:
    """Makes the calls of one kernel, and remembers those that can be repeated, ``KEPT`` of them at most."""

    def __init__(self, names: Sequence[str], compute: Callable[..., Result], repeat_of: RepeatOf) -> None:
        """Take the names of the inputs, the first of them the queries.

        ``compute`` checks and computes, given inputs, options and ``out``; ``repeat_of`` returns what does so again
        without checks, given what the first call has launched, or None where there is no such way.
        """
        self._names = tuple(names)
        self._compute = compute
        self._repeat_of = repeat_of
        self._repeats: dict[Signature, Repeat] = {}
        self._last: tuple[Signature | None, Repeat | None] = (None, None)  # to compare takes less time than to hash

    def call(self, inputs: Inputs, options: tuple[Any, ...], out: torch.Tensor | None) -> Result:
        """Compute, by a repetition where the signature is known and launches can be made again."""
        if not is_direct() or (signature := _sign(inputs, options, out)) is None:
            return self._compute(*inputs, *options, out)
        last, repeat = self._last
        if signature != last:
            repeat = self._repeats.get(signature)
            self._last = (signature, repeat)
        if repeat is not None:
            if repeat.device == current_device():
                return repeat(inputs, out)
            with torch.cuda.device(repeat.device):
                return repeat(inputs, out)
        with recording() as launches:
            result = self._compute(*inputs, *options, out)
        found, lse = result if isinstance(result, tuple) else (result, None)
        queries = inputs[0]
        assert queries is not None
        results = ResultBuffers(queries, dict(zip(self._names, inputs, strict=True)), found, lse, is_made=out is None)
        if (repeat := self._repeat_of(launches, results, queries.device)) is not None:
            if len(self._repeats) >= KEPT:
                self._repeats.clear()  # in one step: other threads may be here, and a lock would not outlive a fork
            self._repeats[signature] = repeat
            self._last = (signature, repeat)
        return result

    def __len__(self) -> int:
        return len(self._repeats)


def _sign(inputs: Inputs, options: tuple[Any, ...], out: torch.Tensor | None) -> Signature | None:
    """Return the signature of a call; None of what is no tensor, or has no address, and for options that are not plain.

    Those are for the checks. Options equal only those of their type: True is no scale, and 1.0 is one.
    """
    kinds = tuple(map(type, options))
    if not PLAIN.issuperset(kinds):
        return None
    try:
        tensors = [  # written out: a function for each takes a tenth of the call
            None
            if tensor is None
            else (
                type(tensor),
                tensor.shape,
                tensor.stride(),
                tensor.dtype,
                tensor.device,
                tensor.data_ptr() % ALIGNMENT == 0,
                tensor.requires_grad and torch.is_grad_enabled(),
            )
            for tensor in (inputs if out is None else (*inputs, out))
        ]
    except (AttributeError, RuntimeError):
        return None
    return (out is None, kinds, options, *tensors)
