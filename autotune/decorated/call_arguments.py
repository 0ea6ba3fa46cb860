"""A kernel's arguments for a shape, made from what ``inputs=`` and the signature say, or seen in a call."""

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from autotune.decorated.key_shapes import JOINT, LARGEST, KernelShape, dtype_name
from autotune.decorated.recorded_call import RecordedCall
from autotune.decorated.signature import Signature
from autotune.errors import InvalidShapeError, UsageError, one_line, suggestion

Inputs = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
STRIDE: Final = "stride"


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of one shape by name, without the config's.

    A launch writes its ``outputs``: to tensors that it is given, or else to ``scratch``.

    Attributes:
        values: tensors, tensor descriptors and plain values, as the kernel takes them.
        scratch: a tensor like each output, so that what ``values`` holds stays as it was made.
    """

    shape: KernelShape
    values: dict[str, Any]
    outputs: tuple[str, ...]
    scratch: tuple[torch.Tensor, ...]


def tensor_of(value: Any) -> torch.Tensor | None:
    """Return the tensor that an argument is, or that a tensor descriptor describes; None for a plain value."""
    if isinstance(value, torch.Tensor):
        return value
    base = getattr(value, "base", None)
    return base if isinstance(base, torch.Tensor) else None


def with_tensor(value: Any, tensor: torch.Tensor) -> Any:
    """Return an argument with another tensor in its place, or described by it."""
    return tensor if isinstance(value, torch.Tensor) else replace(value, base=tensor)


def dtypes_of(values: Mapping[str, Any], names: Sequence[str]) -> tuple[str, str]:
    """Return the dtype of the first floating-point tensor, else of the first, and those of all, in the names' order."""
    found = [tensor for name in names if (tensor := tensor_of(values.get(name))) is not None]
    all_names = [dtype_name(each.dtype) for each in found]
    floating = [name for name, each in zip(all_names, found, strict=True) if each.is_floating_point()]
    return next(iter(floating or all_names), "float16"), JOINT.join(all_names)


class Maker:
    """Makes the arguments of a kernel for a shape.

    Args:
        name: of the kernel, in errors.
        inputs: sizes of each tensor (a tuple of integers and names of the key, with a dtype at its end where that is
            not the shape's ``dtype``) and values of other parameters, by name; or a function of the shape that returns
            all arguments by name, tensors included, on torch's default device.
        key: the names of the key, with their types.
        given: parameters that configs and heuristics give.

    Without ``inputs`` arguments are like those of the last launch of a shape, in ``calls``.
    """

    def __init__(
        self, name: str, signature: Signature, inputs: Inputs | None, key: Mapping[str, type], given: frozenset[str]
    ) -> None:
        if inputs is not None and not isinstance(inputs, Mapping) and not callable(inputs):
            raise UsageError(
                f"inputs={reprlib.repr(inputs)} is not allowed; expected a dict by argument, or a function of the shape"
            )
        self._name = name
        self._signature = signature
        self._inputs = inputs
        self._key = key
        self._wanted = [name for name in signature.names if name not in given]
        self.calls: dict[KernelShape, RecordedCall] = {}
        if isinstance(inputs, Mapping):
            self._check_declared(inputs)

    @property
    def is_declared(self) -> bool:
        return self._inputs is not None

    @property
    def size_names(self) -> dict[str, str]:
        """The names of the key that are sizes of declared tensors, each with the first of these."""
        if not isinstance(self._inputs, Mapping):
            return {}
        tensors = {name: said for name, said in self._inputs.items() if _is_tensor(said, self._inputs)}
        return {size: name for name, said in reversed(tensors.items()) for size in _sizes(said) if size in self._key}

    def _check_declared(self, inputs: Mapping[str, Any]) -> None:
        for name, said in inputs.items():
            if name not in self._wanted:
                expected = f"{suggestion(name, self._wanted)}; expected {', '.join(self._wanted)}"
                raise UsageError(f"inputs has {name!r}, which is no argument here{expected}")
            for each in said if _is_tensor(said, inputs) else ():
                self._check_size(f"inputs[{name!r}]={said!r} has {each!r}", each, inputs)
        if not any(_is_tensor(said, inputs) for said in inputs.values()):
            example = f"{{{self._wanted[0]!r}: ({self._example()},), ...}}"
            raise UsageError(
                f"inputs={reprlib.repr(dict(inputs))} says the sizes of no tensor; expected such as {example}"
            )

    def _check_size(self, where: str, said: Any, inputs: Mapping[str, Any]) -> None:
        names = ", ".join(name for name, kind in self._key.items() if kind is int) or "of which none is an integer"
        expected = f"expected integers from 0 and integers of the key, {names}"
        if type(said) is int and said < 0:
            raise UsageError(f"{where}; {expected}")
        if isinstance(said, str):
            if self._key.get(said) is str:
                raise UsageError(f"{where}, a text of the key; {expected}")
            if said not in self._key and said not in inputs and not _is_dtype(said):
                raise UsageError(f"{where}; {expected}")

    def follow(self, shape: Any) -> str:
        """Return the dtypes of all tensors of a shape that gives one."""
        inputs = self._inputs
        if isinstance(inputs, Mapping):
            said = (inputs.get(name) for name in self._wanted)
            return JOINT.join(_dtype_at_end(each) or shape.dtype for each in said if _is_tensor(each, inputs))
        return dtypes_of(self._call(shape, "meta", 0), self._wanted)[1] if inputs is not None else shape.dtype

    def make(self, shape: KernelShape, *, device: str, seed: int = 0, data: str = "normal") -> dict[str, Any]:
        """Make arguments by name; on the device ``meta`` tensors have no data.

        Raises:
            UsageError: neither ``inputs``, the signature nor a launch says what an argument is.
        """
        if self._inputs is None:
            return self._like_launched(shape, device, seed, data)
        if not isinstance(self._inputs, Mapping):
            return self._call(shape, device, seed)
        return self._declared(self._inputs, shape, device, seed, data)

    def _like_launched(self, shape: KernelShape, device: str, seed: int, data: str) -> dict[str, Any]:
        if (call := self.calls.get(shape)) is None:
            raise UsageError(
                f"{self._name}: inputs= is not given, so no arguments can be made for {shape}; "
                f"give it, such as inputs={{{self._wanted[0]!r}: ({self._example()},), ...}}; a launch with "
                'mode="first_call" searches without'
            )
        generator = _generator(device, seed)
        return call.make(
            device=device, draw=lambda name, size, dtype: _draw(name, [size], dtype, device, generator, data)
        )

    def _example(self) -> str:
        return next((repr(name) for name in self._key if name not in self._signature.constants), "4096")

    def _call(self, shape: Any, device: str, seed: int) -> dict[str, Any]:
        assert callable(self._inputs)
        try:
            with torch.device(device), torch.random.fork_rng(devices=[], enabled=device != "cuda"):
                torch.manual_seed(seed)
                made = self._inputs(shape)
        except Exception as error:
            if device != "meta" and isinstance(error, RuntimeError):  # such as for want of memory
                raise
            raise UsageError(f"{self._name}: inputs({shape}) raised {one_line(error)}") from error
        if not isinstance(made, Mapping):
            given = f"inputs({shape}) returned {type(made).__name__}"
            raise UsageError(f"{self._name}: {given}; expected a dict of {', '.join(self._wanted)}")
        missing = [name for name in self._wanted if name not in made and name not in self._signature.defaults]
        strange = [name for name in made if name not in self._wanted]
        if missing or strange:
            problem = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(strange)}"
            raise UsageError(f"{self._name}: inputs({shape}) {problem}; expected a dict of {', '.join(self._wanted)}")
        return dict(made)

    def _declared(
        self, inputs: Mapping[str, Any], shape: KernelShape, device: str, seed: int, data: str
    ) -> dict[str, Any]:
        generator = _generator(device, seed)
        dtypes = _spread(shape, [name for name in self._wanted if _is_tensor(inputs.get(name), inputs)])
        made: dict[str, Any] = {}
        for name in dtypes:
            sizes = [each if type(each) is int else getattr(shape, each) for each in _sizes(inputs[name])]
            _check_sizes(f"inputs[{name!r}] of {shape}", sizes, dtypes[name])
            made[name] = _draw(name, sizes, dtypes[name], device, generator, data)
        strides = self._strides(inputs, made)
        for name in self._wanted:
            if name in made:
                continue
            if name in inputs:
                made[name] = self._value(inputs[name], shape, made)
            elif name in self._key:
                made[name] = _plain(getattr(shape, name))
            elif name in strides:
                made[name] = strides[name]
            elif name not in self._signature.defaults:
                unsaid = f"{name!r}, which is neither in the key nor has a default"
                raise UsageError(f"{self._name}: inputs= says nothing of {unsaid}")
        return {name: made[name] for name in self._wanted if name in made}

    def _value(self, said: Any, shape: KernelShape, made: Mapping[str, Any]) -> Any:
        if isinstance(said, tuple):  # the tensor and the dimension of a stride
            return made[said[0]].stride(said[1])
        return getattr(shape, said) if isinstance(said, str) and said in self._key else said

    def _strides(self, inputs: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """Give parameters such as ``stride_am`` the strides of the tensors in order, where their names agree."""
        named = [name for name in self._wanted if name.startswith(STRIDE) and name not in inputs]
        places = [(name, each) for name, tensor in tensors.items() for each in range(tensor.dim())]
        agree = len(named) == len(places) and all(
            stride.removeprefix(STRIDE).lstrip("_")[:1].lower() == tensor[:1].lower()
            for stride, (tensor, _) in zip(named, places, strict=True)
        )
        if not agree:
            return {}
        return {name: tensors[of].stride(place) for name, (of, place) in zip(named, places, strict=True)}


def _is_tensor(said: Any, inputs: Mapping[str, Any]) -> bool:
    return isinstance(said, tuple) and not _is_stride(said, inputs)


def _is_stride(said: tuple[Any, ...], inputs: Mapping[str, Any]) -> bool:
    return len(said) == 2 and said[0] in inputs and type(said[1]) is int


def _is_dtype(text: str) -> bool:
    try:
        return bool(dtype_name(text))
    except InvalidShapeError:
        return False


def _dtype_at_end(said: Any) -> str | None:
    last = said[-1] if said else None
    return dtype_name(last) if not isinstance(last, int) and last is not None and _is_dtype(str(last)) else None


def _sizes(said: tuple[Any, ...]) -> tuple[Any, ...]:
    return said if _dtype_at_end(said) is None else said[:-1]


def _spread(shape: KernelShape, names: Sequence[str]) -> dict[str, torch.dtype]:
    """Give each tensor its dtype."""
    words = str(shape.as_dict()["dtypes"]).split(JOINT)
    words = words * len(names) if len(words) == 1 else words
    if len(words) != len(names):
        expected = f"expected one, or one for each of {', '.join(names)}"
        raise InvalidShapeError(f"dtypes={JOINT.join(words)!r} is not allowed; {expected}")
    return {name: getattr(torch, word) for name, word in zip(names, words, strict=True)}


def _check_sizes(tensor: str, sizes: Sequence[int], dtype: torch.dtype) -> None:
    if min(sizes, default=0) < 0 or math.prod(sizes) * dtype.itemsize > LARGEST:
        expected = "expected 0 or more, and less than 2**63 bytes"
        raise InvalidShapeError(f"{tensor}: sizes={tuple(sizes)} are not allowed; {expected}")


def _plain(value: Any) -> Any:
    return None if value == "None" else value


def _generator(device: str, seed: int) -> torch.Generator:
    return torch.Generator(device="cpu" if device == "meta" else device).manual_seed(seed)


def _draw(
    name: str, sizes: Sequence[int], dtype: torch.dtype, device: str, generator: torch.Generator, data: str
) -> torch.Tensor:
    if device == "meta":
        return torch.empty(*sizes, dtype=dtype, device=device)
    if not dtype.is_floating_point:
        raise UsageError(
            f"inputs[{name!r}] is of {dtype}, which cannot be drawn at random; make inputs= a function of the shape"
        )
    drawn = torch.randn(*sizes, generator=generator, device=device)
    if data == "large":
        drawn *= 4.0
    elif data == "tails":  # few values that outweigh the rest
        drawn *= 1.0 + 15.0 * (torch.rand(*sizes, generator=generator, device=device) < 1 / 64)
    return drawn.to(dtype)
