"""Decode over latents in Gluon as the framework sees it: launch, compile-ahead, and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.kernels.known_calls import KnownCalls
from autotune.kernels.paged_cache.paged_kernel import PagedKernel
from autotune.kernels.paged_decode.gluon_hopper_latent.forward import latent_decode_hopper
from autotune.kernels.paged_decode.gluon_hopper_latent.launch import launch_latent
from autotune.kernels.paged_decode.gluon_hopper_latent.repeat import repeat_of
from autotune.kernels.paged_decode.inputs import Inputs, empty_inputs
from autotune.kernels.paged_decode.triton.combine import combine_partials
from autotune.kernels.paged_decode.triton.repeat import NAMES
from autotune.kernels.paged_decode.triton_latent.kernel import BoundLatent
from autotune.kernels.relaunch import observe
from autotune.kernels.tensors import require_context
from autotune.shape import PagedShape
from autotune.space import Config

for _function in (latent_decode_hopper, combine_partials):
    observe(_function)


class BoundHopperLatent(BoundLatent):
    """Decode over latents for one shape with one config, as ``BoundLatent`` says.

    Raises:
        UnsupportedCallError: the cache cannot be copied by 16 bytes, for its address or its strides.
    """

    def __init__(self, config: Config, shape: PagedShape) -> None:
        super().__init__(config, shape, launch_latent)
        self._calls = KnownCalls(NAMES, self._compute, repeat_of)


class HopperLatentKernel(PagedKernel):
    """Implements ``autotune.implementation.Kernel`` for a ``PagedShape`` of latents."""

    def _empty_inputs(self, shape: PagedShape) -> Inputs:
        return empty_inputs(shape, pages=2, device="meta")

    def _launch(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor | None, **settings: Any) -> Sequence[Any]:
        if inputs.q.device.type != "meta":
            require_context(inputs.q.device)
        features: dict[str, Any] = {**inputs.features, **settings}
        return launch_latent(*(*inputs.tensors, out, lse), **features)

    def bind(self, config: Config, shape: PagedShape) -> Callable[..., Any]:
        return BoundHopperLatent(config, shape)


KERNEL: Final = HopperLatentKernel()
