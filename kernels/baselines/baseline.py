"""Parts that baselines share: refusals, calls over copies of inputs, and offsets of packed sequences."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import BaselineUnavailableError, MissingDependencyError, one_line
from autotune.operation import Baseline
from autotune.shape import AttentionShape, PagedShape, Shape

if TYPE_CHECKING:
    import torch


DTYPES: Final = ("float16", "bfloat16", "float32")  # of baselines that take every dtype


@dataclass(frozen=True, slots=True)
class OverCopies:
    """A baseline's call over copies of its inputs: in its users' layout, or without unwritten values.

    They stand for the inputs and are no memory of the baseline's own, but for what they take beyond the ``stored``
    bytes of these: padding. None: they have none.

    Example:
        >>> call = OverCopies(lambda: attend(q, keys, values), (keys, values))
        >>> out = call()
    """

    run: "Callable[[], torch.Tensor]"
    copies: "tuple[torch.Tensor, ...]"
    stored: int | None = None

    @property
    def input_bytes(self) -> int:
        """Bytes of the copies that stand for inputs."""
        taken = sum(copy.untyped_storage().nbytes() for copy in self.copies)
        return taken if self.stored is None else min(taken, self.stored)

    def __call__(self) -> "torch.Tensor":
        return self.run()


def refuse_unless_ready(baseline: Baseline, shape: Any) -> None:
    """Raise what ``Baseline.prepare`` raises before it does anything, for the reasons that a baseline gives itself."""
    if (missing := baseline.available()) is not None:
        raise MissingDependencyError(missing)
    if (reason := baseline.unsupported(shape)) is not None:
        raise BaselineUnavailableError(reason)


def refuse_elsewhere(name: str, tensor: "torch.Tensor", device: str) -> None:
    """Raise BaselineUnavailableError where a tensor is on a device of another type."""
    if tensor.device.type != device:
        raise BaselineUnavailableError(f"the tensors are on {tensor.device}: {name} takes them on {device}")


def refuse_pages(name: str, shape: object) -> None:
    """Raise BaselineUnavailableError for a paged cache, which would have to be copied without its NaN at each call."""
    if not isinstance(shape, AttentionShape):
        raise BaselineUnavailableError(f"{name} serves no paged cache: slots without a token may hold NaN")


@contextmanager
def refusals_of(name: str) -> Iterator[None]:
    """Raise what a library raises as ``BaselineUnavailableError``: compilers and CUDA have no exception in common."""
    try:
        yield
    except BaselineUnavailableError:
        raise
    except Exception as error:
        raise BaselineUnavailableError(f"{name} does not run here: {one_line(error)}") from error


def missing_operand(name: str, shape: Any, *, has: tuple[str, ...] = ()) -> str | None:
    """Return why a baseline with operands of these names alone does not take a dense shape, or None."""
    if not isinstance(shape, AttentionShape):
        return None
    asked = (each for each in ("attn_mask", "sinks", "kv_ends") if getattr(shape, each) and each not in has)
    return next((f"{each}={getattr(shape, each)!r}: {name} takes none here" for each in asked), None)


def wrong_shape(
    name: str, shape: Any, classes: tuple[Any, ...], dtypes: tuple[str, ...], *, has: tuple[str, ...] = ()
) -> str | None:
    """Return why a baseline over shapes of these classes, dtypes and operands does not take one, or None."""
    if not isinstance(shape, classes):
        titles = [f"{'an' if each.__name__[0] in 'AEIOU' else 'a'} {each.__name__}" for each in classes]
        return f"{type(shape).__name__}: {name} computes {' or '.join(titles)}"
    allowed = (" and " if len(dtypes) == 2 else ", ").join(dtypes)
    if shape.dtype not in dtypes:
        return f"dtype={shape.dtype}: {name} takes {allowed}"
    return missing_operand(name, shape, has=has)


def missing_feature(name: str, shape: Shape, *features: str) -> str | None:
    """Return which of these flags of a shape asks for something that the baseline has not, or None."""
    asked = (feature for feature in features if getattr(shape, feature))
    return next((f"{feature}=True: {name} has none" for feature in asked), None)


def missing_full_mask(name: str, shape: Shape) -> str | None:
    """Return that a baseline is causal over a paged cache where a shape is not, or None."""
    if not isinstance(shape, PagedShape) or shape.causal:
        return None
    return f"causal=False: {name} is causal over a paged cache"


def missing_module(module: str, install: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # one that was built for another torch or CUDA raises more than ImportError
        return f"{module} does not load ({one_line(error)}): {install}"
    return None


def missing_torch(name: str) -> str | None:
    try:
        import torch  # noqa: F401
    except Exception as error:  # a broken install raises more than ImportError
        return f"{name} needs torch ({error}): pip install torch"
    return None


def missing_nvidia_gpu(name: str) -> str | None:
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        return f"{name} needs an NVIDIA GPU, and this torch finds none: install a driver and a CUDA build of it"
    return None


def without_nan(cache: "torch.Tensor") -> "torch.Tensor":
    """Copy a cache, strides too, with finite numbers in slots without a token, which libraries read."""
    import torch

    return torch.nan_to_num(cache, out=cache.new_empty_strided(cache.shape, cache.stride()))


def offsets_of(lengths: "torch.Tensor") -> "torch.Tensor":
    """Return where each of ``lengths [B]`` begins and the last one ends, int32 ``[B + 1]``."""
    import torch

    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
