"""A program for a profiler: launch naive attention's three kernels and the served one, each once.

``python -m autotune.lab.roofline.launch_once '{"batch": 2, ...}'`` takes the fields of an ``AttentionShape`` as JSON,
and the device's kind. Naive attention runs once, as it is prepared; other kernels (random numbers) have other names.
"""

import json
import sys
from typing import Any, Final

from autotune.shape import AttentionShape

KERNELS: Final = ("attention_scores", "softmax_rows", "weighted_sum", "flash_attention_forward")


def launch_all(fields: dict[str, Any], device: str) -> None:
    """Launch the kernels over random inputs, and wait for them."""
    import torch

    from autotune.functional import attention
    from autotune.kernels.baselines.naive import Naive
    from autotune.kernels.flash_attention.definition import DEFINITION

    shape = AttentionShape(**fields)
    inputs = DEFINITION.make_inputs(shape, seed=0, device=device)
    Naive().prepare(shape, inputs)
    attention(inputs.q, inputs.k, inputs.v, causal=shape.causal)
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    launch_all(json.loads(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cuda")
