"""Paged prefill over pages laid side by side as the framework sees it, and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.errors import InvalidShapeError
from autotune.kernels.flash_attention_varlen.gluon_hopper import kernel as packed
from autotune.kernels.paged_prefill.gluon_hopper.gather import gather_pages
from autotune.kernels.paged_prefill.gluon_hopper.launch import launch_gathered
from autotune.kernels.paged_prefill.gluon_hopper.repeat import repeat_of
from autotune.kernels.paged_prefill.inputs import Inputs
from autotune.kernels.paged_prefill.triton.kernel import BoundPrefill, PagedPrefillKernel
from autotune.kernels.relaunch import observe
from autotune.search_spaces.paged_prefill.gluon_hopper import unsupported_gathered
from autotune.shape import PagedShape
from autotune.space import Config

assert packed.KERNEL  # whose import lets recordings see the launches of packed sequences
observe(gather_pages)


class BoundGathered(BoundPrefill):
    """Attention of packed queries over pages that are laid side by side first, as ``BoundPrefill`` says.

    Raises:
        UnsupportedCallError: the page table has room for more than is copied, or TMA cannot copy tiles of a tensor.
    """

    _launch_prefill = staticmethod(launch_gathered)
    _repeat_of = staticmethod(repeat_of)


class GatheredPrefillKernel(PagedPrefillKernel):
    """Implements ``autotune.implementation.Kernel`` for ``PagedShape``."""

    def _launch(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor | None, **settings: Any) -> Sequence[Any]:
        return launch_gathered(*(*inputs.tensors, out, lse), **(inputs.features | settings))

    def bind(self, config: Config, shape: PagedShape) -> Callable[..., Any]:
        if (problem := unsupported_gathered(shape)) is not None:
            raise InvalidShapeError(problem)
        return BoundGathered(config, shape)


KERNEL: Final = GatheredPrefillKernel()
