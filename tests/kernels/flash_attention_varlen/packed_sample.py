"""Compiles configs of packed sequences in Gluon for sm_90 without a GPU; a process of its own, as ``gluon_sample``.

What the binaries take is printed as JSON.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import torch

from autotune.device import NVIDIA_H200, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import read_resources, use_target
from autotune.kernels.flash_attention_varlen.gluon_hopper import KERNEL
from autotune.kernels.flash_attention_varlen.gluon_hopper.launch import launch_packed
from autotune.kernels.tensors import launch_options
from autotune.platforms.nvidia_machine_code import disassembled, steady_spills
from autotune.search_spaces.flash_attention_varlen.gluon_hopper import IMPLEMENTATION, shared_bytes
from autotune.space import Config
from autotune.varlen_shape import VarlenShape
from tests.kernels.flash_attention.gluon_sample import overlapped


def shape_of(head_dim: int, **features: Any) -> VarlenShape:
    sizes: dict[str, Any] = {"batch": 16, "heads": 16, "max_seq_q": 4096, "mean_seq_q": 900, "head_dim": head_dim}
    return VarlenShape(**sizes | features)


def samples() -> dict[str, tuple[VarlenShape, Config]]:
    """Name shapes and configs: the default of each, and one that differs from it."""
    shapes = {
        "default 128 causal": shape_of(128, causal=True, sinks=True),
        "default 128 window and softcap": shape_of(128, causal=True, window=512, softcap=True),
        "default 256": shape_of(256, causal=True),
        "default 192 and 128 causal": shape_of(192, head_dim_v=128, causal=True),
        "one consumer": shape_of(64, max_seq_q=64, mean_seq_q=30, max_seq_kv=4096, causal=True),
    }
    found = {name: (shape, IMPLEMENTATION.space.default(shape, NVIDIA_H200)) for name, shape in shapes.items()}
    causal = shape_of(64, causal=True)
    default = IMPLEMENTATION.space.default(causal, NVIDIA_H200)
    padded = shape_of(128, kv_heads=8, causal=True)
    return found | {
        "three consumers": (causal, Config({**default, "consumers": 3, "slots": 3})),
        "padded 128 causal": (padded, IMPLEMENTATION.space.default(padded, NVIDIA_H200)),
    }


def compile_padded(config: Config, shape: VarlenShape, *, batch: int, queries: int) -> Sequence[Any]:
    """Compile for a batch padded on the right to so many queries, every output of it."""
    heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
    tensors = [torch.empty(batch, queries, each, shape.head_dim, dtype=torch.bfloat16, device="meta") for each in heads]
    lens = torch.empty(batch, dtype=torch.int32, device="meta")
    q, k, v, out = tensors
    lse = torch.empty(batch, queries, shape.heads, device="meta")
    features: dict[str, Any] = {"causal": shape.causal, "window": shape.window, "softcap": None, "sinks": None}
    return launch_packed(
        *(q, k, v, None, None, out, lse),
        seqused_q=lens,
        seqused_k=lens,
        scale=0.1,
        **features,
        options=launch_options(config),
        compile_only=True,
    )


def compile_one(shape: VarlenShape, config: Config, *, is_padded: bool) -> dict[str, Any]:
    assert IMPLEMENTATION.space.why_invalid(config, shape, NVIDIA_H200) is None
    if is_padded:
        _, table, forward = compile_padded(config, shape, batch=16, queries=4096)
        others = [compile_padded(config, shape, batch=batch, queries=queries) for batch, queries in ((3, 41), (1, 48))]
        assert {each[2].hash for each in others} == {forward.hash}, "a binary of its own for sizes of a batch"
    else:
        table, forward = KERNEL.warmup(config, shape, every_output=True)
    own, other = (read_resources((each,), architecture(sys.argv[1])) for each in (forward, table))
    code = disassembled(forward.asm["cubin"])
    return {
        "shared": own.shared_bytes,
        "expected": shared_bytes(config, shape),
        "registers": own.registers,
        "spills": own.spill_bytes,
        "steady_spills": steady_spills(code),
        "overlapped": overlapped(code),
        "table_spills": other.spill_bytes,
    }


def main() -> None:
    messages = take_standard_output()
    use_target(architecture(sys.argv[1]))
    found = {name: compile_one(*sample, is_padded=name.startswith("padded")) for name, sample in samples().items()}
    messages.write(json.dumps(found).encode())


if __name__ == "__main__":
    main()
