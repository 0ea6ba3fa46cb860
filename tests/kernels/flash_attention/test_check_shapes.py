"""The small problems that a config of dense attention is checked on run its binary."""

from dataclasses import replace

import pytest

from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.shape import AttentionShape

SHAPE = AttentionShape(batch=4, heads=12, kv_heads=4, seq_q=8192, head_dim=64, causal=True, softcap=True, sinks=True)
SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_kv")  # which no binary is compiled for


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(8192, 8192), (300, 300), (2, 400), (400, 2), (9000, 70)])
@pytest.mark.parametrize("window", [None, 1, 128, 299, 4096])
def test_they_have_a_window_exactly_where_the_shape_has_one(
    causal: bool, lengths: tuple[int, int], window: int | None
) -> None:
    shape = replace(SHAPE, seq_q=lengths[0], seq_kv=lengths[1], causal=causal, window=window)
    for small in DEFINITION.check_shapes(shape):
        assert small.seq_q <= 512
        assert small.seq_kv <= 512
        if max(small.seq_kv, 1 if causal else small.seq_q) > 1:  # of one key nothing can be hidden
            assert (small.window is None) == (shape.window is None)
        changed = {name: getattr(small, name) for name in (*SIZES, "window")}
        assert replace(shape, **changed) == small
