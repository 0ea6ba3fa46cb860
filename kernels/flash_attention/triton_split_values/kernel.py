"""Flash attention over split values as the framework sees it."""

from typing import Final

from autotune.kernels.flash_attention.operand_kernel import OperandKernel
from autotune.kernels.flash_attention.triton_split_values.forward import flash_attention_columns_forward
from autotune.kernels.flash_attention.triton_split_values.launch import launch
from autotune.kernels.relaunch import observe

observe(flash_attention_columns_forward)

KERNEL: Final = OperandKernel(launch)
