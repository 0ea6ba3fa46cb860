"""The default of ``gluon_hopper`` where its order of tiles matters most, by the shipped grid that timed it."""

import pytest

from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION
from autotune.search_spaces.flash_attention.gluon_hopper_default import usual_schedule
from autotune.shape import AttentionShape
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
    ("fields", "chosen"),
    [
        # Short blocks, and four of them, where causal rows or few keys leave much of long ones empty.
        ((7, 40, 40, 128, 304, True), {"consumers": 2, "BLOCK_K": 64, "slots": 4}),  # 0.94 times as long as two slots
        ((12, 40, 40, 128, 298, False), {"consumers": 2, "BLOCK_K": 64, "slots": 4}),  # 0.94
        ((17, 112, 112, 128, 337, True), {"BLOCK_K": 64, "slots": 4}),  # 0.81 times as long as blocks of 128
        ((2, 40, 10, 128, 328, True), {"BLOCK_K": 64, "slots": 4}),  # 0.91
        # Estimated to gain between 2.5 and 5 %.
        ((14, 128, 8, 128, 414, False), {"BLOCK_K": 64}),  # 0.93
        ((8, 64, 4, 128, 1133, True), {"workers": "sm-1"}),  # 0.96
        # What begins with the longest tiles or alternates ends evenly.
        ((2, 32, 4, 128, 13413, True), {"workers": "sm", "section": 1, "row_order": "alternating"}),  # 0.90
        ((2, 96, 8, 128, 519, True), {"row_order": "reversed"}),
        # Nothing is recorded of short causal prompts over heads of 96.
        ((9, 40, 40, 96, 373, True), {"BLOCK_K": 128, "slots": 2}),
    ],
)
def test_estimates_choose_what_took_less_time(
    fields: tuple[int, int, int, int, int, bool], chosen: dict[str, object]
) -> None:
    """Of the very shapes, drawn, that a search timed on an NVIDIA H200 (2026-11-28; ``benchmarks.served_regret``)."""
    batch, heads, kv_heads, head_dim, seq, causal = fields
    shape = AttentionShape(
        batch=batch, heads=heads, kv_heads=kv_heads, seq_q=seq, head_dim=head_dim, causal=causal, dtype="bfloat16"
    )
    found = IMPLEMENTATION.space.default(shape, NVIDIA_H200)
    assert {name: found[name] for name in chosen} == chosen


def test_no_order_in_natural_rows_where_others_end_as_soon() -> None:
    """6 x 32 heads of 64 over 555 tokens took 1.22 times as long in it as the best (NVIDIA H200, 2026-11-28)."""
    shape = AttentionShape(batch=6, heads=32, kv_heads=8, seq_q=555, head_dim=64, causal=True)
    assert IMPLEMENTATION.space.default(shape, NVIDIA_H200)["row_order"] != "natural"


def test_a_section_has_not_about_as_many_tiles_as_there_are_multiprocessors() -> None:
    for seq, section in ((1024, 4), (2048, 4), (4096, 16)):
        shape = AttentionShape(batch=2, heads=32, kv_heads=8, seq_q=seq, head_dim=64, causal=True)
        assert usual_schedule(shape, NVIDIA_H200)["section"] == section, seq
