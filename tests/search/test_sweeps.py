"""A shipped sweep is named after its problem, and after its policy where that is not the usual one."""

import pytest

from autotune.search.sweeps import sweep_name
from autotune.search_spaces.flash_attention import OPERATION
from autotune.shape import AttentionShape
from autotune.trial import Policy

PLAIN = {"batch": 2, "heads": 8, "seq_q": 64, "head_dim": 128}


@pytest.mark.parametrize(
    ("changes", "policy", "name"),
    [
        ({}, Policy(), "b2_h8_s64_d128_full_bfloat16"),
        ({"causal": True, "dtype": "float16"}, Policy(), "b2_h8_s64_d128_causal_float16"),
        ({"kv_heads": 2, "seq_kv": 128}, Policy(), "b2_h8_s64_d128_kv_heads2_seq_kv128_full_bfloat16"),
        ({"window": 32, "softcap": True}, Policy(), "b2_h8_s64_d128_window32_softcap_full_bfloat16"),
        ({}, Policy("eager", "warm"), "b2_h8_s64_d128_full_bfloat16_eager_warm"),
    ],
)
def test_a_sweep_is_named_after_its_problem(changes: dict[str, object], policy: Policy, name: str) -> None:
    shape = AttentionShape(**{**PLAIN, **changes})  # type: ignore[arg-type]
    assert sweep_name(OPERATION, shape, policy) == f"flash_attention_{name}"
