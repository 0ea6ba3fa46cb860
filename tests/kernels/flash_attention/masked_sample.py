"""Compiles the defaults of attention with operands for sm_90 without a GPU, and prints what their binaries take.

``python -m tests.kernels.flash_attention.masked_sample sm_90`` prints JSON: registers a thread and spilled bytes.
"""

import json
import sys
from typing import Any, Final

from autotune.device import NVIDIA_H200, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import compile_candidate, use_target
from autotune.kernels.flash_attention.triton_masked import KERNEL
from autotune.search_spaces.flash_attention.triton_masked import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.trial import Candidate

PROBLEMS: Final[dict[str, dict[str, Any]]] = {
    "boolean": {"attn_mask": "boolean"},
    "additive": {"attn_mask": "additive"},
    "additive, causal": {"attn_mask": "additive", "causal": True, "sinks": True},
    "sinks": {"sinks": True, "causal": True, "window": 128},
}
WIDTHS: Final = (64, 128, 256)


def compile_default(head_dim: int, fields: dict[str, Any]) -> dict[str, int | None]:
    """Compile the default with every output, and return what it takes."""
    shape = AttentionShape(batch=2, heads=16, seq_q=4096, head_dim=head_dim, **fields)
    candidate = Candidate(IMPLEMENTATION.name, IMPLEMENTATION.space.default(shape, NVIDIA_H200))
    outcome = compile_candidate(KERNEL, candidate, shape, NVIDIA_H200, every_output=True)
    assert outcome.resources is not None, outcome.message
    return {"registers": outcome.resources.registers, "spill_bytes": outcome.resources.spill_bytes}


def main() -> None:
    messages = take_standard_output()
    use_target(architecture(sys.argv[1]))
    found = {f"{name} of {width}": compile_default(width, PROBLEMS[name]) for name in PROBLEMS for width in WIDTHS}
    messages.write(json.dumps(found).encode())


if __name__ == "__main__":
    main()
