"""Paged prefill: problems and their truth."""

from typing import Any, Final

import torch

from autotune.kernels.paged_prefill.inputs import check_shape
from autotune.shape import PagedShape
from tests.contract.covering import Factors, Row
from tests.contract.operations import paged_decode
from tests.contract.operations.data import OperationData
from tests.contract.operations.paged_decode import fields_of
from tests.kernels.paged_prefill.numerics import truth

# Keys of each sequence, those of its new queries included, and its new queries.
SEQUENCES: Final = (((70,), (70,)), ((200, 3), (40, 2)), ((37, 0, 130), (1, 0, 65)), ((33, 17), (33, 1)))


def make_shape(row: Row) -> PagedShape:
    """As it is tuned: of even lengths, and of others where a row has the most sequences."""
    mean = 4096 if len(row["sequences"][0]) < 3 else 1024
    return PagedShape(**fields_of(row), causal=row["causal"], batch=4, seq_q=512, max_context=4096, mean_context=mean)


def slack(inputs: Any) -> float:
    """As of dense attention; of int8, whose scales' exponents are added to scores and taken off; and a score is as
    exact as its partial sums are large, at most |q| |k|."""
    largest = inputs.q.float().norm(dim=-1).max().item() if inputs.q.numel() else 0.0
    exponents = 8.0 if inputs.k_cache.dtype == torch.int8 else 0.0
    units = 2.0 * (inputs.softcap or 0.0) + exponents + inputs.scale * largest**2
    return float(torch.finfo(torch.float32).eps * units)


FIELDS: Final[Factors] = {
    **{name: values for name, values in paged_decode.FIELDS.items() if name not in ("seq_q", "lengths")},
    "causal": (True, False),
    "sequences": SEQUENCES,
}
# Over pages laid side by side: the features that packed sequences have in Gluon.
SIDE_BY_SIDE: Final[Factors] = {
    **FIELDS,
    "dtypes": (("float16", None), ("float16", "float8_e4m3fn"), ("float16", "float8_e5m2")),
    "head_dims": ((16, 16), (64, 64), (128, 128), (72, 96)),
    "alibi": (False,),
}
SIZES: Final[dict[str, Any]] = {"heads": 32, "kv_heads": 8, "max_context": 32768}
DATA: Final = OperationData(
    fields=FIELDS,
    large=make_shape,
    small=lambda row: check_shape(make_shape(row), *row["sequences"]),
    truth=truth,
    slack=slack,
    compiled=(
        PagedShape(**SIZES, batch=1, seq_q=2048, head_dim=128),
        PagedShape(**SIZES, batch=1, seq_q=2048, head_dim=128, kv_dtype="float8_e4m3fn", causal=False),
        PagedShape(**SIZES, batch=4, seq_q=512, head_dim=128, kv_dtype="int8", window=512, sinks=True),
        PagedShape(**SIZES, batch=64, seq_q=33, head_dim=64, page_size=64, layout="HND", softcap=True, alibi=True),
    ),
    own_fields={"gluon_hopper": SIDE_BY_SIDE},
)
