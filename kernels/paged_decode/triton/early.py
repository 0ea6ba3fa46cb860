# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Programmatic dependent launch: a kernel is brought onto the GPU while the one before it still runs.

CUDA programming guide, "Programmatic Dependent Launch and Synchronization"; NVIDIA's GPUs since sm_90. A kernel that is
launched so, by ``launch_pdl``, may touch nothing of another before it has waited. The next one may come when every
program of this one has let it, or has ended.
"""

import triton
import triton.language as tl


@triton.jit
def wait_for_previous():
    """Wait until the kernel before has ended and what it wrote can be read."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_begin():
    """Let the next kernel begin: its programs take the place of those that end first."""
    tl.extra.cuda.gdc_launch_dependents()
