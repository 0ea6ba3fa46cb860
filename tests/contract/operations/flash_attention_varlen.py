"""Attention over packed sequences: problems and their truth."""

from typing import Any, Final

import torch

from autotune.kernels.flash_attention_varlen.inputs import check_shape
from autotune.varlen_shape import VarlenShape
from tests.contract.covering import Row
from tests.contract.operations.data import OperationData
from tests.contract.operations.flash_attention import MASKS
from tests.kernels.flash_attention_varlen.numerics import truth

# Queries and keys of each sequence.
SEQUENCES: Final = (
    ((70, 70),),
    ((40, 200), (2, 3)),
    ((1, 37), (0, 0), (65, 130), (0, 20)),
    ((33, 33), (17, 5), (3, 0), (150, 150)),
)


def make_shape(row: Row, **sizes: Any) -> VarlenShape:
    """As it is tuned: of two sizes, so that configs are valid or not."""
    head_dim, head_dim_v = row["head_dims"]
    heads, kv_heads = row["heads"]
    causal, window = row["mask"]
    fields: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "head_dim_v": head_dim_v}
    fields |= {"causal": causal, "window": window, **{name: row[name] for name in ("dtype", "softcap", "sinks")}}
    return VarlenShape(**fields, batch=16, max_seq_q=4096, mean_seq_q=900)


def slack(inputs: Any) -> float:
    """As of dense attention; and a score is as exact as its partial sums are large, at most |q| |k|."""
    eps = torch.finfo(torch.float32).eps
    largest = inputs.q.float().norm(dim=-1).max().item() if inputs.q.numel() else 0.0
    return float(2 * eps * (inputs.softcap or 0.0) + eps * inputs.scale * largest**2)


DATA: Final = OperationData(
    fields={
        "dtype": ("float16", "float32"),
        "head_dims": ((16, 16), (40, 40), (64, 64), (128, 128), (192, 128), (80, 24)),
        "mask": MASKS,
        "softcap": (False, True),
        "sinks": (False, True),
        "heads": ((2, 2), (6, 2), (5, 1)),
        "sequences": SEQUENCES,
    },
    large=make_shape,
    small=lambda row: check_shape(make_shape(row), row["sequences"]),
    truth=truth,
    slack=slack,
    compiled=(
        VarlenShape(batch=64, heads=32, kv_heads=8, max_seq_q=8192, mean_seq_q=1000, head_dim=128, causal=True),
        VarlenShape(batch=16, heads=16, max_seq_q=512, max_seq_kv=4096, head_dim=64, softcap=True, dtype="float16"),
        VarlenShape(batch=8, heads=8, kv_heads=1, max_seq_q=4096, head_dim=256, causal=True, window=512, sinks=True),
    ),
)
