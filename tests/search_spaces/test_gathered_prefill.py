"""The space of paged prefill over pages laid side by side: that of packed sequences, and what it leaves to others."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import InvalidShapeError
from autotune.search_spaces.flash_attention_varlen import gluon_hopper as packed
from autotune.search_spaces.paged_prefill.gluon_hopper import IMPLEMENTATION, LEAST_ROWS, as_packed
from autotune.shape import PagedShape

SPACE = IMPLEMENTATION.space


def shape_of(**fields: Any) -> PagedShape:
    sizes = {"batch": 4, "heads": 32, "kv_heads": 8, "seq_q": 512, "max_context": 4096, "head_dim": 128}
    return PagedShape(**{**sizes, **fields})


@pytest.mark.parametrize("width", [(8, 8), (64, 64), (128, 128), (192, 128), (256, 256)])
def test_the_default_is_that_of_packed_sequences_and_valid(width: tuple[int, int]) -> None:
    for causal in (True, False):
        shape = shape_of(head_dim=width[0], head_dim_v=width[1], causal=causal)
        default = SPACE.default(shape, NVIDIA_H200)
        assert default == packed.default(as_packed(shape), NVIDIA_H200)
        assert SPACE.why_invalid(default, shape, NVIDIA_H200) is None, shape


def test_a_mixed_batch_is_one_chunk_among_single_queries() -> None:
    shape = as_packed(shape_of(batch=64, seq_q=33, mean_context=1024))
    assert (shape.batch, shape.max_seq_q, shape.mean_seq_q) == (64, 64 * 33 - 63, 33)
    assert (shape.max_seq_kv, shape.mean_seq_kv) == (4096, 1024)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"seq_q": LEAST_ROWS // 4}, None),
        ({"seq_q": LEAST_ROWS // 4 - 1}, "copies keys, which pays from 256 rows of queries, not for 252"),
        ({"mean_context": 1024}, "copies keys, which pays from 256 rows of queries, not for 4"),  # of one that decodes
        ({"kv_dtype": "float8_e4m3fn"}, None),
        ({"kv_dtype": "int8"}, "takes a scale for each KV head, and caches of int8 have one for each token"),
        ({"dtype": "float32"}, "computes 16 bits, not float32"),
        ({"alibi": True}, "has no ALiBi slopes"),
        ({"head_dim": 512}, "takes heads of up to 256, not head_dim=512"),
        ({"batch": 16, "max_context": 16384}, None),
        ({"batch": 17, "max_context": 16384}, "copies 1073741824 bytes of keys and values at most, not 1140850688"),
    ],
)
def test_what_is_left_to_others_is_said(fields: dict[str, Any], reason: str | None) -> None:
    found = IMPLEMENTATION.supports(shape_of(**fields), NVIDIA_H200)
    assert found == (None if reason is None else f"paged_prefill/gluon_hopper {reason}")
    if reason is not None:
        with pytest.raises(InvalidShapeError, match=reason):
            SPACE.default(shape_of(**fields), NVIDIA_H200)


def test_other_architectures_are_refused() -> None:
    assert "sm_100" in str(IMPLEMENTATION.supports(shape_of(), replace(NVIDIA_H200, arch="sm_100")))
