"""Flash attention over split widths as the framework sees it."""

from typing import Any, Final

import torch

from autotune.kernels.flash_attention.dense_kernel import DenseKernel
from autotune.kernels.flash_attention.triton_split_width.forward import flash_attention_pieces_forward
from autotune.kernels.flash_attention.triton_split_width.launch import launch
from autotune.kernels.flash_attention.triton_split_width.repeat import repeat_of
from autotune.kernels.relaunch import observe
from autotune.kernels.tensors import check_device, require_context

observe(flash_attention_pieces_forward)


def prepare(options: dict[str, Any], q: torch.Tensor) -> None:
    """Refuse a device that Triton does not launch on; descriptors need its context."""
    check_device(q.device, q.dtype)
    if options["loads"] == "descriptor":
        require_context(q.device)


KERNEL: Final = DenseKernel(launch, prepare, repeat_of)
