"""The default of ``gluon_hopper`` where its order of tiles matters most, by the shipped grid that timed it."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention import hopper_ranking
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION
from autotune.search_spaces.flash_attention.tile_order import end_of
from autotune.search_spaces.flash_attention.tile_times import LONGEST
from autotune.search_spaces.flash_attention.usual_schedule import usual_schedule
from autotune.shape import MAX_LENGTH, AttentionShape
from autotune.table.portfolios import shipped_portfolios
from autotune.tuning import nearest_rank

TIMED = [
    (row.shape, row.default_regret)
    for row in shipped_portfolios("flash_attention", implementation="gluon_hopper")
    if row.is_broad and row.default_regret is not None and isinstance(row.shape, AttentionShape)
]
WIDE = [(shape, lost) for shape, lost in TIMED if 64 < shape.head_dim <= 128 and not shape.softcap]
NARROW = [lost for shape, lost in WIDE if shape.window == 128]
LONG = [lost for shape, lost in WIDE if shape.causal and shape.window is None and shape.seq_q >= 8192]


@pytest.mark.parametrize("regrets", [NARROW, LONG], ids=["narrow windows", "long prompts"])
def test_its_tiles_come_in_the_order_that_won(regrets: list[float]) -> None:
    """Of most shapes: the other order lost as much in one cell of an H100, 9 %, and what is drawn later may join it."""
    assert len(regrets) >= 4
    assert nearest_rank(regrets, 0.8) < 0.07
    assert sum(regrets) / len(regrets) < 0.04


CAPPED = [lost for shape, lost in TIMED if 64 < shape.head_dim <= 256 and shape.softcap]


def test_softcap_takes_blocks_and_sections_that_won() -> None:
    assert len(CAPPED) >= 15
    assert nearest_rank(CAPPED, 0.9) < 0.07
    assert sum(CAPPED) / len(CAPPED) < 0.025


@pytest.mark.parametrize(
    "fields",
    [
        *({"window": 100, "causal": False}, {"softcap": True, "head_dim": 64}),
        *({"seq_q": LONGEST + 1}, {"seq_q": MAX_LENGTH}),
    ],
    ids=str,
)
def test_what_is_not_recorded_takes_the_usual_schedule(fields: dict[str, Any]) -> None:
    """Of the longest, estimates would take minutes."""
    sizes: dict[str, Any] = {"batch": 1, "heads": 48, "kv_heads": 8, "seq_q": 640, "head_dim": 128, "causal": True}
    shape = AttentionShape(**sizes | fields)
    found = IMPLEMENTATION.space.default(shape, NVIDIA_H200)
    assert found == usual_schedule(shape, NVIDIA_H200)
    assert IMPLEMENTATION.space.estimate(found, shape, NVIDIA_H200) is None


@pytest.mark.parametrize(
    ("batch", "heads", "seq_q", "seq_kv", "changed"),
    [
        (5, 24, 1386, 1387, {"workers"}),  # 132 programs over 11 tiles a head: each has the same rows of every head
        (2, 12, 100, 5000, {"consumers"}),  # 24 tiles of two consumers
        (4, 16, 4096, 4096, set()),
    ],
)
def test_where_nothing_is_ranked_another_order_is_taken_that_ends_much_sooner(
    batch: int, heads: int, seq_q: int, seq_kv: int, changed: set[str]
) -> None:
    shape = AttentionShape(batch=batch, heads=heads, seq_q=seq_q, seq_kv=seq_kv, head_dim=96, causal=True)
    usual = usual_schedule(shape, NVIDIA_H200)
    with hopper_ranking.nothing_ranked():
        found = IMPLEMENTATION.space.default(shape, NVIDIA_H200)
    assert IMPLEMENTATION.space.why_invalid(found, shape, NVIDIA_H200) is None
    assert changed <= {name for name in usual if usual[name] != found[name]}
    if not changed:
        assert found == usual
    else:
        assert end_of(found, shape, NVIDIA_H200) < 0.9 * end_of(usual, shape, NVIDIA_H200)


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_a_few_multiprocessors_have_a_default(count: int) -> None:
    """As a part of a GPU may."""
    device = replace(NVIDIA_H200, sm_count=count)
    for seq_q, seq_kv in ((129, 43), (129, 1000)):
        shape = AttentionShape(batch=15, heads=6, kv_heads=2, seq_q=seq_q, seq_kv=seq_kv, head_dim=128, causal=True)
        assert IMPLEMENTATION.space.why_invalid(IMPLEMENTATION.space.default(shape, device), shape, device) is None


def test_a_section_has_not_about_as_many_tiles_as_there_are_multiprocessors() -> None:
    for seq, section in ((1024, 4), (2048, 4), (4096, 16)):
        shape = AttentionShape(batch=2, heads=32, kv_heads=8, seq_q=seq, head_dim=64, causal=True)
        assert usual_schedule(shape, NVIDIA_H200)["section"] == section, seq
