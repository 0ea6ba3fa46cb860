"""One op of ``torch.library`` with its rules: real and fake tensors, gradients, autocast, vmap."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch.autograd import forward_ad

from autotune.errors import NotDifferentiableError, UsageError
from autotune.kernels.tensors import check_gradients, check_tensors

NAMESPACE: Final = "autotune"
LIBRARY: Final = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
TAGS: Final = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
AUTOCAST_KEYS: Final = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}  # a ROCm GPU is of the type "cuda", too

# Bits of a set of dispatch keys: below autograd there is more to do than to compute on the CPU or a GPU. Tensors are
# fake, traced, functionalized or transformed, or of a class, a layout or a device of their own.
PLAIN: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU) | torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
INDIRECT: Final = torch._C._after_autograd_keyset.raw_repr() & ~PLAIN.raw_repr()

Arguments = dict[str, Any]  # of a call, by name, in the order of the schema
Cast = Callable[[Arguments, torch.dtype], Arguments]


class Fold(Protocol):
    """A rule for ``torch.vmap``: calls the op once over all that is mapped."""

    def __call__(
        self, op: Callable[..., Any], arguments: Arguments, mapped: Mapping[str, int | None], size: int
    ) -> tuple[Any, Any]:
        """Return the results and the dimension of each along which they are mapped, of ``size``."""


class TensorOp:
    """An op; call it with all of its arguments by position, as its rules are.

    Args:
        name: unique in the namespace.
        parameters: the types of its parameters in the language of schemas, by name.
        returns: the type of its result likewise.
        compute: what it does, over real tensors.
        fake: makes its results without their values, of tensors of which sizes may be symbols; raises what it can tell.
        cast: returns the arguments as autocast to this dtype wants them.
        fold: the rule for ``torch.vmap``; without one that is refused.
    """

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, str],
        returns: str,
        *,
        compute: Callable[..., Any],
        fake: Callable[..., Any],
        cast: Cast,
        fold: Fold | None = None,
    ) -> None:
        self.name = f"{NAMESPACE}::{name}"
        self._parameters = tuple(parameters)
        schema = ", ".join(f"{kind} {parameter}" for parameter, kind in parameters.items())
        LIBRARY.define(f"{name}({schema}) -> {returns}", tags=TAGS)  # type: ignore[no-untyped-call]
        self._op = getattr(getattr(torch.ops, NAMESPACE), name).default
        implement: Callable[..., None] = partial(LIBRARY.impl, name)
        self._compute = compute
        self._tensors = [(each, i) for i, each in enumerate(parameters) if parameters[each].startswith("Tensor")]
        implement(compute, "CompositeExplicitAutograd")
        implement(self._compute_without_gradients, "Autograd", with_keyset=True)
        for device_type, key in AUTOCAST_KEYS.items():
            implement(self._casting(cast, device_type, key), key)
        torch.library.register_fake(self.name, fake, lib=LIBRARY)
        torch.library.register_vmap(self.name, self._folding(fold), lib=LIBRARY)

    def __call__(self, *values: Any) -> Any:
        return self._op(*values)

    def _name(self, values: tuple[Any, ...]) -> Arguments:
        return dict(zip(self._parameters, values, strict=True))

    def _compute_without_gradients(self, keys: torch._C.DispatchKeySet, *values: Any) -> Any:
        """Compute; through another dispatch, half an eager call's time, only where more than that is left to do."""
        if torch.is_grad_enabled() or forward_ad._current_level >= 0:
            self._refuse_derivatives(values)
        if not keys.raw_repr() & INDIRECT:
            return self._compute(*values)
        with torch._C._AutoDispatchBelowAutograd():
            return self._op.redispatch(keys & torch._C._after_autograd_keyset, *values)

    def _refuse_derivatives(self, values: tuple[Any, ...]) -> None:
        is_dual = forward_ad._current_level >= 0
        for name, place in self._tensors:
            if (tensor := values[place]) is None:
                continue
            if tensor.requires_grad:
                check_gradients({name: tensor})
            if is_dual and forward_ad.unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
                raise NotDifferentiableError(f"{name} has a tangent, and there is no forward derivative")

    def _casting(self, cast: Cast, device_type: str, key: str) -> Callable[..., Any]:
        """Return the op under autocast. ``torch.library.register_autocast`` knows one dtype, and not autocast's own."""
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

        def call(*values: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return self._op(*cast(self._name(values), torch.get_autocast_dtype(device_type)).values())

        return call

    def _folding(self, fold: Fold | None) -> Callable[..., Any]:
        def call(info: Any, dimensions: tuple[int | None, ...], *values: Any) -> tuple[Any, Any]:
            if fold is None:
                raise UsageError(f"{self.name} has no rule for torch.vmap; give it all problems as one batch")
            return fold(self, self._name(values), dict(zip(self._parameters, dimensions, strict=True)), info.batch_size)

        return call


def check_traced(tensors: Sequence[str], arguments: Arguments) -> None:
    """Raise in traced code, as eager calls do, for what is no tensor and for gradients.

    What an op raises while Dynamo traces it reaches the user inside an error of Dynamo's.
    """
    check_tensors({name: arguments[name] for name in tensors})
    check_gradients(_tensors_of(arguments))


def is_known(arguments: Arguments) -> bool:
    """Return if no size and no option is a symbol."""
    sizes = (size for tensor in _tensors_of(arguments).values() for size in tensor.shape)
    return not any(isinstance(value, torch.SymInt | torch.SymFloat) for value in (*sizes, *arguments.values()))


def _tensors_of(arguments: Arguments) -> dict[str, torch.Tensor]:
    return {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
