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
Addresses = list[int | None]
Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Signature = tuple[Any, ...]


class Repeat(Protocol):
    """Makes calls of one signature again, on its GPU while that is the current one."""

    device: int

    def __call__(self, inputs: Inputs, addresses: Addresses, out: torch.Tensor | None) -> Result:
        """Compute without checks, into ``out`` or tensors of its own.

        ``addresses`` are those of the inputs, None for None, and of ``out`` where it is given.
        """


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
        # To compare takes less time than to hash.
        self._last: tuple[list[Any] | None, Repeat | None] = (None, None)

    def call(self, inputs: Inputs, options: tuple[Any, ...], out: torch.Tensor | None) -> Result:
        """Compute, by a repetition where the signature is known and launches can be made again."""
        if not is_direct() or (signed := _sign(inputs, options, out)) is None:
            return self._compute(*inputs, *options, out)
        parts, addresses = signed
        last, repeat = self._last
        if parts != last:
            if not PLAIN.issuperset(map(type, options)):
                return self._compute(*inputs, *options, out)
            repeat = self._repeats.get(tuple(parts))
            self._last = (parts, repeat)
        if repeat is not None:
            if repeat.device == current_device():
                return repeat(inputs, addresses, out)
            with torch.cuda.device(repeat.device):
                return repeat(inputs, addresses, out)
        with recording() as launches:
            result = self._compute(*inputs, *options, out)
        found, lse = result if isinstance(result, tuple) else (result, None)
        queries = inputs[0]
        assert queries is not None
        results = ResultBuffers(queries, dict(zip(self._names, inputs, strict=True)), found, lse, is_made=out is None)
        if (repeat := self._repeat_of(launches, results, queries.device)) is not None:
            if len(self._repeats) >= KEPT:
                self._repeats.clear()  # in one step: other threads may be here, and a lock would not outlive a fork
            self._repeats[tuple(parts)] = repeat
            self._last = (parts, repeat)
        return result

    def __len__(self) -> int:
        return len(self._repeats)


def _sign(inputs: Inputs, options: tuple[Any, ...], out: torch.Tensor | None) -> tuple[list[Any], Addresses] | None:
    """Return the parts of a call's signature, and the addresses of its tensors; None of what is no tensor or has none.

    Options equal only those of their type: True is no scale, and 1.0 is one. Types are compared first, so that options
    which are not plain, and never known, are not compared at all.
    """
    parts: list[Any] = [tuple(map(type, options)), options]
    addresses: Addresses = []
    bits = 0
    try:
        for tensor in inputs if out is None else (*inputs, out):
            if tensor is None:
                parts.append(None)
                addresses.append(None)
                continue
            gradient = tensor.requires_grad and torch.is_grad_enabled()
            parts.append((type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, gradient))
            address = tensor.data_ptr()
            addresses.append(address)
            bits |= address
    except (AttributeError, RuntimeError):
        return None
    if bits % ALIGNMENT:
        parts.append(tuple([address is None or address % ALIGNMENT == 0 for address in addresses]))
    return parts, addresses
