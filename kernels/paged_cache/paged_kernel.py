"""Kernels over a paged cache as the framework sees them, and the parts that their callables share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autotune.kernels.known_calls import KnownCalls, RepeatOf, Result
from autotune.kernels.paged_cache.fit import Expected, check_fit, expected_of
from autotune.kernels.tensors import check_apart, check_device, check_out, launch_options, on_device_of
from autotune.shape import PagedShape
from autotune.space import Config


class PagedKernel(ABC):
    """Implements ``autotune.implementation.Kernel`` for ``PagedShape``, but for ``bind``."""

    @abstractmethod
    def _empty_inputs(self, shape: PagedShape) -> Any:
        """Return inputs on the meta device, with the strides that ``make_inputs`` and ``PagedKVCache`` give."""

    @abstractmethod
    def _launch(
        self, inputs: Any, out: torch.Tensor, lse: torch.Tensor | None, *, options: dict[str, Any], compile_only: bool
    ) -> Sequence[Any]:
        """Launch, or compile alone, and return the compiled kernels in order."""

    def launch(self, config: Config, inputs: Any, outputs: tuple[torch.Tensor, ...]) -> None:
        lse = outputs[1] if len(outputs) > 1 else None
        self._launch(inputs, outputs[0], lse, options=launch_options(config), compile_only=False)

    def warmup(self, config: Config, shape: PagedShape, *, every_output: bool = False) -> Sequence[Any]:
        """Compile over tensors of the meta device.

        Strides of caches and scales are part of the binary: caches that lie otherwise than those of ``make_inputs`` are
        compiled for anew, at their first launch.
        """
        inputs = self._empty_inputs(shape)
        sizes = inputs.q.shape[:-1]
        out = inputs.q.new_empty((*sizes, shape.head_dim_v))
        lse = inputs.q.new_empty(sizes, dtype=torch.float32) if every_output else None
        return self._launch(inputs, out, lse, options=launch_options(config), compile_only=True)


class BoundPaged(ABC):
    """One shape with one config: the checks of a call, its outputs, its launch. A query's size of None may be any."""

    def __init__(
        self,
        config: Config,
        shape: PagedShape,
        launch: Callable[..., Any],
        query_sizes: tuple[int | None, ...],
        inputs: Sequence[str],
        repeat_of: RepeatOf,
    ) -> None:
        self._calls = KnownCalls(inputs, self._compute, repeat_of)
        self._launch = launch
        self._shape = shape
        self._options = launch_options(config)
        self._expected = expected_of(shape, query_sizes)

    @abstractmethod
    def _compute(self, *arguments: Any, check: bool = False) -> Result:
        """Check a call and compute, given the inputs, ``scale``, ``softcap``, ``return_lse`` and ``out``."""

    def _check(
        self,
        tensors: dict[str, torch.Tensor],
        features: dict[str, torch.Tensor | None],
        scale: float | None,
        softcap: float | None,
        expected: Expected | None = None,
    ) -> None:
        """Refuse what does not fit the shape, features that the kernel was not picked for, and a device without it."""
        check_fit(self._shape, tensors, features, expected or self._expected, scale=scale, softcap=softcap)
        check_device(tensors["q"].device, tensors["q"].dtype)

    def _check_out(
        self,
        out: torch.Tensor | None,
        tensors: dict[str, torch.Tensor],
        features: dict[str, torch.Tensor | None],
    ) -> None:
        """Refuse a buffer that the kernel cannot write; it writes rows one after another."""
        if out is not None:
            check_out(out, (*tensors["q"].shape[:-1], self._shape.head_dim_v), tensors, contiguous=True)
            check_apart(out, tensors | {name: values for name, values in features.items() if values is not None})

    def _attend(
        self,
        tensors: dict[str, torch.Tensor],
        features: dict[str, torch.Tensor | None],
        scale: float | None,
        softcap: float | None,
        return_lse: bool,
        out: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute over checked tensors, into ``out`` or a tensor of its own; the log-sum-exp is None if not asked."""
        q, shape = tensors["q"], self._shape
        if out is None:
            out = torch.empty((*q.shape[:-1], shape.head_dim_v), dtype=q.dtype, device=q.device)
        else:
            torch.autograd.graph.increment_version(out)  # written behind torch's back
        lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device) if return_lse else None
        with on_device_of(q):
            self._launch(
                *(*tensors.values(), out, lse),
                layout=shape.layout,
                scale=shape.head_dim**-0.5 if scale is None else scale,
                window=shape.window,
                softcap=softcap,
                options=self._options,
                **features,
            )
        return out, lse
