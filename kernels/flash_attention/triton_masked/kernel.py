"""Flash attention with operands in Triton as the framework sees it."""

from typing import Final

from autotune.kernels.flash_attention.operand_kernel import OperandKernel
from autotune.kernels.flash_attention.triton_masked.forward import flash_attention_masked_forward
from autotune.kernels.flash_attention.triton_masked.launch import launch
from autotune.kernels.relaunch import observe

observe(flash_attention_masked_forward)

KERNEL: Final = OperandKernel(launch)
