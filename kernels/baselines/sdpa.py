"""torch's scaled_dot_product_attention, one callable for each of its backends."""

from collections.abc import Callable
from typing import Any

import torch


def sdpa_backends(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
) -> dict[str, Callable[[], Any]]:
    """Calls over ``[B, S, H, D]`` tensors, each forced to one backend; one that refuses the inputs raises RuntimeError.

    The tensors are passed as ``[B, H, S, D]`` views, which every backend takes without a copy.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {
        "sdpa cudnn": SDPBackend.CUDNN_ATTENTION,
        "sdpa flash": SDPBackend.FLASH_ATTENTION,
        "sdpa efficient": SDPBackend.EFFICIENT_ATTENTION,
        "sdpa math": SDPBackend.MATH,
    }
    grouped = q.shape[2] != k.shape[2]

    def call(backend: Any) -> Callable[[], Any]:
        def run() -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q.transpose(1, 2),
                    k.transpose(1, 2),
                    v.transpose(1, 2),
                    is_causal=causal,
                    scale=scale,
                    enable_gqa=grouped,
                )

        return run

    return {name: call(backend) for name, backend in backends.items()}
