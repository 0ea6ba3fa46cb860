"""Dense attention: problems and their truth."""

from typing import Any, Final

import torch

from autotune.shape import AttentionShape
from tests.contract.covering import Factors, Row
from tests.contract.operations.data import OperationData
from tests.kernels.numerics import dense_attention

FP8: Final = torch.float8_e4m3fn
MASKS: Final = ((False, None), (True, None), (False, 9), (True, 40))  # causal, window
# Of small problems, and those of the problems that they stand for.
LENGTHS: Final = {
    (1, 90): (1, 32768),
    **dict.fromkeys(((7, 200), (7, 70)), (64, 32768)),
    **dict.fromkeys(((65, 130), (130, 65), (150, 150), (70, 33), (66, 66)), (4096, 4096)),
}


def make_shape(row: Row, **sizes: Any) -> AttentionShape:
    head_dim, head_dim_v = row["head_dims"]
    heads, kv_heads = row["heads"]
    causal, window = row["mask"]
    fields: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "head_dim_v": head_dim_v}
    features: dict[str, Any] = {"causal": causal, "window": window, "softcap": row["softcap"]}
    features |= {name: row[name] for name in ("attn_mask", "sinks") if name in row}
    features["kv_ends"] = causal and row.get("kv_ends", False)
    return AttentionShape(**fields, **features, dtype=row["dtype"], **sizes)


def large(row: Row) -> AttentionShape:
    seq_q, seq_kv = LENGTHS[row["lengths"]]
    batch = 8 if seq_q == seq_kv else {1: 1, 2: 16}[row["batch"]]  # keys are split in many shares, and in few
    return make_shape(row, batch=batch, seq_q=seq_q, seq_kv=seq_kv)


def small(row: Row) -> AttentionShape:
    seq_q, seq_kv = row["lengths"]
    return make_shape(row, batch=row["batch"], seq_q=seq_q, seq_kv=seq_kv)


def truth(inputs: Any, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    names = ("causal", "window", "softcap", "scale", "attn_mask", "sinks", "kv_ends")
    features = {name: getattr(inputs, name) for name in names}
    if inputs.q.dtype != FP8:
        return dense_attention(inputs.q, inputs.k, inputs.v, **features, dtype=dtype)
    if dtype == torch.float64:
        return dense_attention(*meant(inputs), **features)
    return dense_attention(*meant(inputs), **features, dtype=torch.float32, round_weights=to_e4m3)


def meant(inputs: Any) -> tuple[torch.Tensor, ...]:
    """Return the values of queries, keys and values of e4m3 by their scales: a number, [H] and [B, H]."""
    assert isinstance(inputs.q_scale, float)
    k_scale, v_scale = inputs.k_scale.double(), inputs.v_scale.double()
    q, k, v = (tensor.double() for tensor in (inputs.q, inputs.k, inputs.v))
    return q * inputs.q_scale, k * k_scale[:, None], v * v_scale[:, None, :, None]


def to_e4m3(weights: torch.Tensor) -> torch.Tensor:
    """Weights as a product of e4m3 takes them, the largest of a row at 256."""
    largest = weights.amax(-1, keepdim=True).clamp(min=1e-30)
    return (weights / largest * 256).to(FP8).to(weights.dtype) / 256 * largest


def slack(inputs: Any) -> float:
    """A capped score is as exact as tanh is at its largest value, not at each of its own.

    One of e4m3 is a sum of which each step over 32 columns cuts 33 addends off below 2 ** -13 of the largest.
    """
    if inputs.q.dtype == FP8:
        q, k, _ = meant(inputs)
        steps = -(-q.shape[3] // 32)
        return float(inputs.scale * steps * 33 * 2.0**-13 * q.norm(dim=3).max() * k.norm(dim=3).max())
    return 2 * torch.finfo(torch.float32).eps * (inputs.softcap or 0.0)


FIELDS: Final[Factors] = {
    "dtype": ("float16", "float32", "float8_e4m3fn"),
    "head_dims": ((16, 16), (40, 40), (64, 64), (128, 128), (192, 128), (80, 24)),
    "mask": MASKS,
    "softcap": (False, True),
    "heads": ((2, 2), (6, 2), (5, 1)),
    "lengths": tuple(LENGTHS),
    "batch": (1, 2),
}
OPERANDS: Final[Factors] = {
    "attn_mask": (None, "boolean", "additive"),
    "sinks": (False, True),
    "kv_ends": (False, True),
}
# Of heads that are cut in pieces: keys and values, and one of them alone.
CUT: Final[Factors] = {
    "dtype": ("float16", "float32"),
    "head_dims": ((40, 40), (72, 72), (80, 80), (192, 128), (64, 72)),
    "heads": ((6, 2), (5, 1)),
    "lengths": ((7, 200), (130, 65), (150, 150)),
}
# Of wider heads than others compute, in one part of the values and in several.
WIDE: Final[Factors] = {
    "dtype": ("float16", "float32"),
    "head_dims": ((512, 512), (320, 384), (512, 64), (128, 512)),
    "heads": ((6, 2), (5, 1)),
    "lengths": ((7, 70), (70, 33), (66, 66)),
}
DATA: Final = OperationData(
    fields=FIELDS,
    large=large,
    small=small,
    truth=truth,
    slack=slack,
    compiled=(
        AttentionShape(batch=1, heads=16, seq_q=4096, head_dim=64, causal=True),
        AttentionShape(batch=1, heads=16, seq_q=4096, head_dim=256, window=512, softcap=True, dtype="float16"),
        AttentionShape(batch=1, heads=32, kv_heads=8, seq_q=16, seq_kv=32768, head_dim=128, causal=True),
        AttentionShape(batch=1, heads=16, seq_q=4096, head_dim=128, causal=True, dtype="float8_e4m3fn"),
        AttentionShape(batch=1, heads=16, seq_q=4096, head_dim=256, dtype="float8_e4m3fn"),
        AttentionShape(batch=2, heads=16, seq_q=4096, head_dim=128, attn_mask="boolean", sinks=True),
        AttentionShape(batch=2, heads=8, seq_q=4096, head_dim=64, attn_mask="additive", dtype="float16"),
        AttentionShape(batch=1, heads=8, seq_q=4096, head_dim=256, causal=True, window=512, attn_mask="additive"),
        AttentionShape(batch=2, heads=16, seq_q=4096, head_dim=72),
        AttentionShape(batch=1, heads=8, kv_heads=4, seq_q=4096, head_dim=512, causal=True),
        AttentionShape(batch=1, heads=8, kv_heads=4, seq_q=16, seq_kv=32768, head_dim=512, causal=True),
        AttentionShape(batch=1, heads=8, seq_q=4096, head_dim=512, causal=True, attn_mask="boolean", dtype="float16"),
    ),
    own_fields={
        "triton_masked": {**FIELDS, **OPERANDS, "dtype": ("float16", "float32")},
        "triton_split_keys": {**FIELDS, "head_dims": (*FIELDS["head_dims"], (512, 512))},
        "triton_split_width": {**FIELDS, **CUT},
        "triton_split_values": {**FIELDS, **OPERANDS, **WIDE},
    },
)
