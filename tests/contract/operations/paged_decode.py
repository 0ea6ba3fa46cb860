"""Paged decode: problems and their truth."""

from typing import Any, Final

import torch

from autotune.kernels.paged_cache.quantization import dequantize
from autotune.kernels.paged_decode.inputs import CheckShape
from autotune.shape import PagedShape
from tests.contract.covering import Factors, Row
from tests.contract.operations.data import OperationData
from tests.kernels.paged_decode.numerics import HALF_STEPS, dense_decode

LENGTHS: Final = ((37,), (0, 90, 1), (33, 17, 110), (80, 3))
FIELDS: Final[Factors] = {
    "dtypes": (("float16", None), ("float16", "int8"), ("float16", "float8_e5m2"), ("float32", None)),
    "head_dims": ((16, 16), (64, 64), (128, 128), (72, 96), (512, 512)),
    "page": ((1, "NHD"), (16, "HND"), (16, "NHD"), (528, "HND")),
    "heads": ((2, 2), (8, 2), (7, 1), (16, 16), (18, 1)),
    "seq_q": (1, 3),
    "window": (None, 9, 70),
    "softcap": (False, True),
    "sinks": (False, True),
    "alibi": (False, True),
    "lengths": LENGTHS,
}
# Of latents: sizes that the interpreter computes in seconds.
LATENT_FIELDS: Final[Factors] = {
    **FIELDS,
    "dtypes": (("float16", None),),
    "head_dims": ((576, 512), (320, 256), (288, 256)),
    "page": ((1, "NHD"), (1, "HND"), (16, "HND"), (64, "NHD")),
    "heads": ((16, 1), (5, 1), (33, 1)),
    "lengths": ((37,), (0, 130, 1), (17, 90)),
}
# Of latents in Gluon, which copies pages by TMA or gathers rows.
HOPPER_LATENT_FIELDS: Final[Factors] = {
    **LATENT_FIELDS,
    "page": ((1, "NHD"), (16, "NHD"), (32, "HND"), (64, "NHD"), (528, "HND")),
    "heads": ((70, 1), (16, 1), (5, 1)),
    "window": (None,),
    "softcap": (False,),
    "alibi": (False,),
    "lengths": ((37,), (0, 130, 1), (17, 390)),
}


def fields_of(row: Row) -> dict[str, Any]:
    """Return the fields of a paged shape that are no sizes of its batch."""
    dtype, kv_dtype = row.get("dtypes", (row.get("dtype"), None))
    head_dim, head_dim_v = row["head_dims"]
    page_size, layout = row["page"]
    heads, kv_heads = row["heads"]
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "head_dim_v": head_dim_v}
    stored = {"dtype": dtype, "kv_dtype": kv_dtype or dtype, "page_size": page_size, "layout": layout}
    return {**sizes, **stored, **{name: row[name] for name in ("window", "softcap", "sinks", "alibi")}}


def large(row: Row) -> PagedShape:
    """One long sequence, which is split, or many."""
    batch, context = (1, 131072) if len(row["lengths"]) == 1 else (64 * len(row["lengths"]), 8192)
    return PagedShape(**fields_of(row), batch=batch, max_context=context, seq_q=row["seq_q"])


def small(row: Row) -> CheckShape:
    lengths = row["lengths"]
    sizes = {"batch": len(lengths), "max_context": max(lengths), "seq_q": row["seq_q"]}
    return CheckShape(**fields_of(row), **sizes, lengths=lengths, sm_count=4)


def dense_rows(inputs: Any, name: str, sequence: int) -> torch.Tensor:
    """Return a sequence's keys or values ``[length, H_kv, D]``: number j lies in slot ``j % page_size`` of its page."""
    cache, scale = getattr(inputs, f"{name}_cache"), getattr(inputs, f"{name}_scale")
    slots = cache if inputs.layout == "NHD" else cache.transpose(1, 2)
    place = torch.arange(int(inputs.seq_lens[sequence]), device=cache.device)
    pages = inputs.page_table[sequence].long()[place // slots.shape[1]].clamp(min=0)
    bits = slots.view(torch.uint8) if cache.itemsize == 1 else slots  # torch picks no rows of 8-bit floats by index
    rows: torch.Tensor = bits[pages, place % slots.shape[1]].view(cache.dtype)
    if scale is None:
        return rows.masked_fill(are_absent(inputs, sequence)[:, None, None], 0.0)
    if scale.ndim == 3:
        scale = (scale if inputs.layout == "NHD" else scale.transpose(1, 2))[pages, place % slots.shape[1]]
    found: torch.Tensor = dequantize(rows, scale, torch.float64)
    return found


def are_absent(inputs: Any, sequence: int) -> torch.Tensor:
    """Return which keys of a sequence have no page in its row of the table."""
    page_size = inputs.k_cache.shape[1 if inputs.layout == "NHD" else 2]
    place = torch.arange(int(inputs.seq_lens[sequence]), device=inputs.q.device)
    absent: torch.Tensor = inputs.page_table[sequence].long()[place // page_size] < 0
    return absent


def truth(inputs: Any, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return the output and the logarithm, sequence by sequence."""
    features = {name: getattr(inputs, name) for name in ("scale", "window", "softcap", "sinks", "alibi_slopes")}
    results = [
        dense_decode(
            *(q, *(dense_rows(inputs, name, sequence) for name in "kv")),
            **features,
            absent=are_absent(inputs, sequence),
            dtype=dtype,
        )
        for sequence, q in enumerate(inputs.q)
    ]
    return tuple(map(torch.stack, zip(*results, strict=True)))


def slack(inputs: Any) -> float:
    """As of dense attention, and of int8 keys: queries of 16 bits multiply them (docs/paged-attention.md)."""
    capped = 2 * torch.finfo(torch.float32).eps * (inputs.softcap or 0.0)
    if inputs.k_cache.dtype != torch.int8:
        return capped
    keys = [dense_rows(inputs, "k", sequence) for sequence in range(len(inputs.seq_lens))]
    most = max((each.abs().sum(-1).max().item() for each in keys if each.numel()), default=0.0)
    largest = inputs.q.abs().max().item()
    return float(capped + 8 * torch.finfo(torch.float32).eps + largest / HALF_STEPS * most * inputs.scale)


SIZES: Final[dict[str, Any]] = {"batch": 64, "heads": 32, "kv_heads": 8, "max_context": 8192, "head_dim": 128}
LATENT: Final[dict[str, Any]] = {"batch": 64, "max_context": 8192}
DATA: Final = OperationData(
    fields=FIELDS,
    large=large,
    small=small,
    truth=truth,
    slack=slack,
    compiled=(
        PagedShape(**SIZES),
        PagedShape(**SIZES, page_size=64, kv_dtype="int8", window=512, sinks=True),
        PagedShape(**LATENT, heads=128, head_dim=576, page_size=64),
        PagedShape(**LATENT, heads=16, head_dim=576, page_size=1),
        PagedShape(**LATENT, heads=16, head_dim=320, page_size=1, seq_q=2, window=512, sinks=True, softcap=True),
    ),
    own_fields={"triton_latent": LATENT_FIELDS, "gluon_hopper_latent": HOPPER_LATENT_FIELDS},
)
