"""The arguments of one launch as plain data, of which other processes make the like: ``inputs=`` is then not needed."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from autotune.decorated.key_shapes import dtype_name
from autotune.errors import UsageError

ALIGNMENT: Final = 16  # bytes: Triton compiles a binary of its own for pointers that are no multiple of it

Draw = Callable[[str, int, torch.dtype], torch.Tensor]  # of a tensor's name, elements and dtype
Grid = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """A tensor without what it holds; ``shift`` are the elements by which its address is off a multiple of 16 bytes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    shift: int = 0

    @property
    def span(self) -> int:
        """The elements from the first to the last one in memory."""
        if 0 in self.sizes:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))

    @property
    def is_drawn(self) -> bool:
        """Return True if random numbers may stand for what it holds: whole numbers are indices, lengths or flags."""
        return bool(getattr(torch, self.dtype).is_floating_point)


@dataclass(frozen=True, slots=True)
class RecordedDescriptor:
    """A tensor descriptor that was made before the launch: its class, its tensor, and its other fields."""

    kind: type
    base: RecordedTensor
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class RecordedCall:
    """The arguments of a launch by name, and its grid.

    Attributes:
        arguments: plain values, and tensors and descriptors without data.
        grids: of each listed config, in their order; None where the launch's grid raised.
        held: a file with what the tensors of whole numbers hold; empty where only their form is known.
    """

    arguments: Mapping[str, Any]
    grids: tuple[Grid | None, ...] = ()
    held: str = ""

    def make(self, *, device: str, draw: Draw) -> dict[str, Any]:
        """Make arguments like these: floating-point tensors are drawn, those of whole numbers hold what they held.

        On the device ``meta`` no tensor has data.

        Raises:
            UsageError: what the tensors of whole numbers held is not known.
        """
        held: dict[str, torch.Tensor] = {}
        if self.held and device != "meta":
            with np.load(self.held, allow_pickle=False) as arrays:
                held = {name: torch.from_numpy(arrays[name]) for name in arrays.files}

        def flat(name: str, tensor: RecordedTensor) -> torch.Tensor:
            dtype, count = getattr(torch, tensor.dtype), tensor.shift + tensor.span
            if device == "meta" or not count:
                return torch.empty(count, dtype=dtype, device=device)
            if tensor.is_drawn:
                return draw(name, count, dtype)
            if name not in held:
                raise UsageError(f"{name} is of {tensor.dtype}, and what it holds is not known; give inputs=")
            found = torch.empty(count, dtype=dtype, device=device)
            found[tensor.shift :] = held[name]
            return found

        return {name: _made(value, partial(flat, name)) for name, value in self.arguments.items()}

    def to_text(self) -> str:
        """Return the call as one text, for another process.

        Raises:
            UsageError: an argument is neither a tensor nor a plain value, so that no other process can make it.
        """
        arguments = {name: _to_plain(value, name) for name, value in self.arguments.items()}
        return json.dumps({"arguments": arguments, "grids": self.grids, "held": self.held})

    @classmethod
    def from_text(cls, text: str) -> "RecordedCall":
        """Read what ``to_text`` returned."""
        found = json.loads(text)
        arguments = {name: _from_plain(value) for name, value in found["arguments"].items()}
        grids = tuple(None if each is None else tuple(each) for each in found["grids"])
        return cls(arguments, grids, found["held"])


def record(named: Mapping[str, Any]) -> RecordedCall:
    """Describe the arguments of a launch; what tensors hold is not read."""
    return RecordedCall({name: _described(value) for name, value in named.items()})


def hold(call: RecordedCall, named: Mapping[str, Any], path: Path) -> RecordedCall:
    """Write to a file what the tensors of whole numbers hold; waits for the GPU."""
    found = {}
    for name, value in call.arguments.items():
        tensor, given = (
            (value.base, named[name].base) if isinstance(value, RecordedDescriptor) else (value, named[name])
        )
        if isinstance(tensor, RecordedTensor) and not tensor.is_drawn:
            found[name] = given.as_strided((tensor.span,), (1,), given.storage_offset()).numpy(force=True)
    if not found:
        return call
    np.savez(path, **found)
    return replace(call, held=str(path))


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _described_tensor(value)
    if is_dataclass(value) and isinstance(base := getattr(value, "base", None), torch.Tensor):
        others = {each.name: getattr(value, each.name) for each in fields(value) if each.name != "base"}
        return RecordedDescriptor(type(value), _described_tensor(base), others)
    return value


def _described_tensor(tensor: torch.Tensor) -> RecordedTensor:
    shift = tensor.data_ptr() % ALIGNMENT // tensor.element_size()
    return RecordedTensor(tuple(tensor.shape), tuple(tensor.stride()), dtype_name(tensor.dtype), shift)


def _made(value: Any, flat: Callable[[RecordedTensor], torch.Tensor]) -> Any:
    if isinstance(value, RecordedTensor):
        return flat(value).as_strided(value.sizes, value.strides, value.shift)
    if isinstance(value, RecordedDescriptor):
        return value.kind(base=_made(value.base, flat), **value.fields)
    return value


def _to_plain(value: Any, name: str) -> Any:
    """Return a value as JSON has it; an object of one field names the type of what JSON has not."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, RecordedTensor):
        return {"tensor": [value.sizes, value.strides, value.dtype, value.shift]}
    if isinstance(value, RecordedDescriptor) and value.kind is _host_descriptor():
        others = {each: _to_plain(given, name) for each, given in value.fields.items()}
        return {"descriptor": [_to_plain(value.base, name), others]}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [_to_plain(each, name) for each in value]}
    if isinstance(value, torch.dtype):
        return {"torch": str(value).removeprefix("torch.")}
    for known, dtype in _triton_dtypes():
        if value is dtype:
            return {"triton": known}
    raise UsageError(
        f"{name}={value!r} is neither a tensor nor a plain value, so the processes of a search cannot have it; "
        "expected inputs= of the decorator, a function that makes it"
    )


def _from_plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        sizes, strides, dtype, shift = held
        return RecordedTensor(tuple(sizes), tuple(strides), dtype, shift)
    if kind == "descriptor":
        base, others = held
        named = {each: _from_plain(given) for each, given in others.items()}
        return RecordedDescriptor(_host_descriptor(), _from_plain(base), named)
    if kind == "torch":
        return getattr(torch, held)
    if kind == "triton":
        return dict(_triton_dtypes())[held]
    items = [_from_plain(each) for each in held]
    return tuple(items) if kind == "tuple" else items


def _host_descriptor() -> type:
    from triton.tools.tensor_descriptor import TensorDescriptor

    found: type = TensorDescriptor
    return found


def _triton_dtypes() -> Iterator[tuple[str, Any]]:
    import triton.language as tl

    return ((name, each) for name, each in vars(tl).items() if isinstance(each, tl.dtype))
