"""A decorated kernel as an operation on tensors: its inputs, its outputs, and what is correct."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from autotune.decorated.call_arguments import Arguments, Maker, tensor_of
from autotune.decorated.key_shapes import KernelShape
from autotune.decorated.launch import Launched
from autotune.decorated.signature import Signature
from autotune.errors import AutotuneError, UsageError, one_line
from autotune.space import Config

CHECKED: Final = 512  # sizes are cut to this in checks, and what they leave over by it: so tiles of a part stay parts
SMALL: Final = 16
ODD: Final = (333, 457, 251)  # multiples of no block size
FIRST_CONFIG: Final = "compared with the first config's numbers, as no reference= is given"
# In the last place of the largest value: two correct configs add in another order, and fp32 sums of a few thousand
# terms then differ by several units; without a reference nothing says which of them is right.
UNITS: Final = 16.0

Prune = Callable[[KernelShape], tuple[Config, ...]]


class KernelDefinition:
    """Implements ``autotune.operation.Definition`` for a decorated kernel.

    Outputs are the tensors that the kernel writes. Those that ``outputs=`` names are believed; else they are the
    tensors among the bases of what the source stores to (``signature.read_source``). The source is asked, and not a run
    whose changes are compared: what a kernel writes is then the same in every process, for every config and before
    anything is compiled, and an element that happens to be written with its old value is not overlooked.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        maker: Maker,
        launched: Launched,
        prune: Prune,
        *,
        outputs: Sequence[str] | None,
        zero: Sequence[str],
        restored: Sequence[str],
        reference: Callable[..., Any] | None,
        check_shapes: Callable[[Any], Sequence[Any]] | None,
    ) -> None:
        self._name = name
        self._signature = signature
        self._maker = maker
        self._launched = launched
        self._prune = prune
        self._outputs = None if outputs is None else tuple(outputs)
        self._zero = frozenset(zero)
        self._restored = frozenset(restored)
        self._reference = reference
        self._given_shapes = check_shapes

    @property
    def note(self) -> str:
        """The rows' note of how numbers were checked; empty for a reference of the user's."""
        return "" if self._reference is not None else FIRST_CONFIG

    @property
    def units(self) -> float | None:
        """The units in the last place that every output may differ by; None: as usual."""
        return None if self._reference is not None else UNITS

    def make_inputs(self, shape: KernelShape, *, seed: int, device: str, data: str = "normal") -> Arguments:
        values = self._maker.make(shape, device=device, seed=seed, data=data)
        outputs = self._find_outputs(values)
        scratch = tuple(_like(values[name]) for name in outputs)
        return Arguments(shape, values, outputs, scratch)

    def why_unsearchable(self, shape: KernelShape) -> str | None:
        """Return why a search can make no arguments of a shape or has no grid to launch, or None; needs no device."""
        for name, tensor in self._maker.size_names.items():
            if (size := getattr(shape, name)) < 1:
                expected = f"expected 1 or more, as it is a size of {tensor}"
                return f"{self._name}: {name}={size} is not allowed in a search; {expected}"
        try:
            values = self._maker.make(shape, device="meta")
            for name in (*self._zero, *self._restored):
                if values.get(name) is not None and tensor_of(values[name]) is None:
                    return f"{self._name}: reset_to_zero and restore_value are of tensors, which {name} is not"
            outputs = {name: tensor_of(values[name]) for name in self._find_outputs(values)}
            if not any(made is not None and made.numel() for made in outputs.values()):
                return f"{self._name}: {', '.join(outputs)} would be empty; expected some elements to write"
            self._launched.check_grid(shape, values, self._prune(shape), first=self._reference is None)
            self.check_shapes(shape)
        except AutotuneError as error:
            return str(error)
        return None

    def _find_outputs(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        wanted = self._signature.source.written if self._outputs is None else self._outputs
        found = tuple(name for name in wanted if tensor_of(values.get(name)) is not None)
        if not found or (self._outputs is not None and len(found) < len(self._outputs)):
            expected = "expected outputs=[...], the names of the tensors that it writes"
            raise UsageError(
                f"{self._name}: outputs are not known ({', '.join(wanted) or 'no store found'}); {expected}"
            )
        return found

    def check_shapes(self, shape: KernelShape) -> Sequence[Any]:
        """Return the shape with its sizes cut, and one with odd sizes if the kernel masks what it loads or stores.

        Where arguments are those of a launch, no other shape's can be made: it is checked itself.
        """
        if self._given_shapes is not None:
            try:
                found = tuple(self._given_shapes(shape))
            except Exception as error:
                raise UsageError(f"{self._name}: check_shapes({shape}) raised {one_line(error)}") from error
            if strange := [each for each in found if type(each) is not type(shape)]:
                expected = f"expected shapes, such as [{shape!r}]"
                raise UsageError(f"{self._name}: check_shapes({shape}) returned {strange[0]!r}; {expected}")
            return found
        if not self._maker.is_declared:
            return (shape,)
        sizes = {name: getattr(shape, name) for name in shape.SIZES}
        cut = {name: size if size <= CHECKED else CHECKED + size % CHECKED for name, size in sizes.items()}
        small = replace(shape, **cut)
        if not self._signature.source.has_masks:
            return (small,)
        odd = {
            name: min(size - 1, ODD[place % len(ODD)]) if size > SMALL else size
            for place, (name, size) in enumerate(sizes.items())
        }
        return tuple(dict.fromkeys((small, replace(shape, **odd))))

    def empty_outputs(self, inputs: Arguments) -> tuple[torch.Tensor, ...]:
        return tuple(self._begin(name, inputs) for name in inputs.outputs)

    def _begin(self, name: str, inputs: Arguments) -> torch.Tensor:
        """Make an output as a launch expects it: zero, a copy of what it reads, or else full of NaN."""
        made = tensor_of(inputs.values[name])
        assert made is not None
        if name in self._zero:
            return torch.zeros_like(made)
        if name in self._restored or name in self._signature.source.read or not made.is_floating_point():
            return made.clone()
        return torch.full_like(made, float("nan"), dtype=torch.float32).to(made.dtype)

    def statistic_slack(self, inputs: Arguments) -> float:
        return 0.0

    def reference(self, inputs: Arguments, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        """Call the user's reference, in fp64 or as it is; without one, launch the first config."""
        if self._reference is None:
            outputs = self.empty_outputs(inputs)
            self._launched.launch(self._prune(inputs.shape)[0], inputs, outputs)
            return tuple(each.double() if each.is_floating_point() else each for each in outputs)
        values = {name: _cast(value, dtype) for name, value in inputs.values.items()}
        with torch.no_grad():
            found = self._reference(**_accepted(self._reference, values))
        returned = tuple(found) if isinstance(found, tuple | list) else (found,)
        likes = [tensor_of(inputs.values[name]) for name in inputs.outputs]
        if len(returned) != len(likes):
            names = ", ".join(inputs.outputs)
            raise UsageError(f"reference= of {self._name} returned {len(returned)} tensors; expected {names}")
        return tuple(
            self._fit(name, each, like, dtype)
            for name, each, like in zip(inputs.outputs, returned, likes, strict=True)
            if like is not None
        )

    def _fit(self, name: str, output: Any, like: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        if not isinstance(output, torch.Tensor) or output.numel() != like.numel():
            got = getattr(output, "shape", type(output).__name__)
            raise UsageError(
                f"reference= of {self._name} returned {got} for {name}; expected sizes {tuple(like.shape)}"
            )
        found: torch.Tensor = output.reshape(like.shape)
        if not like.is_floating_point():
            return found.to(like.dtype)
        return found.double() if dtype is None else found.to(like.dtype)


def _like(value: Any) -> torch.Tensor:
    tensor = tensor_of(value)
    assert tensor is not None
    return torch.empty_like(tensor).copy_(tensor)


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    tensor = tensor_of(value)
    if tensor is None:
        return value
    return tensor.double() if dtype is None and tensor.is_floating_point() else tensor


def _accepted(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a function has parameters for."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return dict(values)
    return {name: value for name, value in values.items() if name in parameters}
