"""Dense attention: problems and their truth."""

from typing import Any, Final

import torch

from autotune.shape import AttentionShape
from tests.contract.covering import Row
from tests.contract.operations.data import OperationData
from tests.kernels.numerics import dense_attention

MASKS: Final = ((False, None), (True, None), (False, 9), (True, 40))  # causal, window
# Of small problems, and those of the problems that they stand for.
LENGTHS: Final = {
    (1, 90): (1, 32768),
    (7, 200): (64, 32768),
    **dict.fromkeys(((65, 130), (130, 65), (150, 150)), (4096, 4096)),
}


def make_shape(row: Row, **sizes: Any) -> AttentionShape:
    head_dim, head_dim_v = row["head_dims"]
    heads, kv_heads = row["heads"]
    causal, window = row["mask"]
    fields: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "head_dim_v": head_dim_v}
    features: dict[str, Any] = {"causal": causal, "window": window, "softcap": row["softcap"]}
    return AttentionShape(**fields, **features, dtype=row["dtype"], **sizes)


def large(row: Row) -> AttentionShape:
    seq_q, seq_kv = LENGTHS[row["lengths"]]
    batch = 8 if seq_q == seq_kv else {1: 1, 2: 16}[row["batch"]]  # keys are split in many shares, and in few
    return make_shape(row, batch=batch, seq_q=seq_q, seq_kv=seq_kv)


def small(row: Row) -> AttentionShape:
    seq_q, seq_kv = row["lengths"]
    return make_shape(row, batch=row["batch"], seq_q=seq_q, seq_kv=seq_kv)


def truth(inputs: Any, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    features = {name: getattr(inputs, name) for name in ("causal", "window", "softcap", "scale")}
    return dense_attention(inputs.q, inputs.k, inputs.v, **features, dtype=dtype)


def slack(inputs: Any) -> float:
    """A capped score is as exact as tanh is at its largest value, not at each of its own."""
    return 2 * torch.finfo(torch.float32).eps * (inputs.softcap or 0.0)


DATA: Final = OperationData(
    fields={
        "dtype": ("float16", "float32"),
        "head_dims": ((16, 16), (40, 40), (64, 64), (128, 128), (192, 128), (80, 24)),
        "mask": MASKS,
        "softcap": (False, True),
        "heads": ((2, 2), (6, 2), (5, 1)),
        "lengths": tuple(LENGTHS),
        "batch": (1, 2),
    },
    large=large,
    small=small,
    truth=truth,
    slack=slack,
    compiled=(
        AttentionShape(batch=1, heads=16, seq_q=4096, head_dim=64, causal=True),
        AttentionShape(batch=1, heads=16, seq_q=4096, head_dim=256, window=512, softcap=True, dtype="float16"),
        AttentionShape(batch=1, heads=32, kv_heads=8, seq_q=16, seq_kv=32768, head_dim=128, causal=True),
    ),
)
