"""Flash attention over split keys as the framework sees it."""

from typing import Any, Final

import torch

from autotune.kernels.flash_attention.dense_kernel import DenseKernel
from autotune.kernels.flash_attention.triton_split_keys.forward import attend_shares, combine_shares
from autotune.kernels.flash_attention.triton_split_keys.launch import launch
from autotune.kernels.flash_attention.triton_split_keys.repeat import repeat_of
from autotune.kernels.relaunch import observe
from autotune.kernels.tensors import check_device, require_context

for _function in (attend_shares, combine_shares):
    observe(_function)


def prepare(options: dict[str, Any], q: torch.Tensor) -> None:
    """Refuse a device that Triton does not launch on; descriptors need its context."""
    check_device(q.device, q.dtype)
    if options["loads"] == "descriptor":
        require_context(q.device)


KERNEL: Final = DenseKernel(launch, prepare, repeat_of)
