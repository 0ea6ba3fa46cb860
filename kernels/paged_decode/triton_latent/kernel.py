"""Decode over latents in Triton as the framework sees it: launch, compile-ahead, and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.known_calls import Result
from autotune.kernels.paged_cache.layout import is_prefix
from autotune.kernels.paged_cache.paged_kernel import PagedKernel
from autotune.kernels.paged_decode.inputs import Inputs, empty_inputs
from autotune.kernels.paged_decode.triton.combine import combine_partials
from autotune.kernels.paged_decode.triton.kernel import BoundDecode
from autotune.kernels.paged_decode.triton_latent.forward import latent_decode_split
from autotune.kernels.paged_decode.triton_latent.launch import launch_latent
from autotune.kernels.relaunch import observe
from autotune.shape import PagedShape
from autotune.space import Config

for _function in (latent_decode_split, combine_partials):
    observe(_function)


class BoundLatent(BoundDecode):
    """Decode over latents for one shape with one config: what ``get_kernel`` hands out.

    Example (on a GPU):
        >>> shape = PagedShape(batch=64, heads=128, max_context=8192, head_dim=576, page_size=64)
        >>> kernel = autotune.get_kernel(shape)
        >>> out = kernel(q, latents, latents[..., :512], page_table, seq_lens)  # q [64, 128, 576], out [64, 128, 512]
    """

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        seq_lens: torch.Tensor,
        **options: Any,
    ) -> Result:
        """Compute as ``BoundDecode`` does; pages that are negative in the table are left out.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape, or ``v_cache`` is not the first columns of
                ``k_cache``, where they lie.
            NotDifferentiableError: gradients are required.
        """
        if (
            isinstance(k_cache, torch.Tensor)
            and isinstance(v_cache, torch.Tensor)
            and k_cache.ndim == v_cache.ndim == 4
        ):
            self._require_prefix(k_cache, v_cache)
        return super().__call__(q, k_cache, v_cache, page_table, seq_lens, **options)

    def _require_prefix(self, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
        """Refuse values of their own at every call: no signature tells where they lie."""
        if not is_prefix(k_cache, v_cache):
            width = self._shape.head_dim_v
            raise InputMismatchError(
                f"v_cache is not the first {width} columns of k_cache, which are the values of latents; expected "
                f"k_cache[..., :{width}], no copy of it"
            )


class LatentDecodeKernel(PagedKernel):
    """Implements ``autotune.implementation.Kernel`` for a ``PagedShape`` of latents."""

    def _empty_inputs(self, shape: PagedShape) -> Inputs:
        return empty_inputs(shape, pages=2, device="meta")

    def _launch(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor | None, **settings: Any) -> Sequence[Any]:
        features: dict[str, Any] = {**inputs.features, **settings}
        return launch_latent(*(*inputs.tensors, out, lse), **features)

    def bind(self, config: Config, shape: PagedShape) -> Callable[..., Any]:
        return BoundLatent(config, shape, launch_latent)


KERNEL: Final = LatentDecodeKernel()
