"""Intensities, tiles and the claims that are put to the test."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.lab.machine.ceilings import Ceilings, Rate
from autotune.lab.machine.processor import Processor
from autotune.lab.roofline.derivation import claims, closed_forms, derivation_data, intensities, tiles
from autotune.shape import AttentionShape

ASSIGNMENT = [AttentionShape(batch=1, heads=8, seq_q=seq, head_dim=64, dtype="float32") for seq in (128, 1024)]
PROCESSOR = Processor("cpu", "a CPU", 2**25, 8)


def ceilings(ridge: float) -> Ceilings:
    return Ceilings(PROCESSOR, "float32", (Rate("copy", 100.0),), (Rate("product", ridge / 10.0),))


def test_naive_intensity_rises_towards_a_quarter_of_the_width() -> None:
    lengths = [replace(ASSIGNMENT[0], seq_q=seq, seq_kv=seq) for seq in (128, 1024, 16384, 131072)]
    values = [item.naive for item in intensities(lengths)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(128 * 64 / (4 * (64 + 128)))
    assert values[-1] == pytest.approx(64 / 4, rel=1e-3)


def test_fused_intensity_grows_with_the_length_and_without_an_l2_ends_at_the_tile() -> None:
    lengths = [AttentionShape(batch=1, heads=2, seq_q=seq, head_dim=64) for seq in (1024, 65536)]
    short, long = intensities(lengths)
    assert (short.fused, long.fused) == (1024 / 2, 65536 / 2)  # S / b
    assert long.without_l2 == pytest.approx(2 * 128 / 2, rel=0.005)  # 2 BLOCK_Q / b


def test_the_closed_forms_name_the_limits() -> None:
    naive, _, without_l2 = closed_forms(ASSIGNMENT[0])
    assert "16 FLOP/B" in naive
    assert "64 FLOP/B" in without_l2


def test_tiles_longer_than_the_sequences_are_left_out() -> None:
    pairs = [(found.block_q, found.block_k) for found in tiles(replace(ASSIGNMENT[0], seq_q=64, seq_kv=64))]
    assert pairs == [(32, 32), (32, 64), (64, 32), (64, 64)]
    assert [found.block_q for found in tiles(replace(ASSIGNMENT[0], seq_q=8, seq_kv=8))] == [32]


def test_the_assignments_claim_is_said_to_be_wrong_with_its_numbers() -> None:
    falling = claims(ASSIGNMENT)[0]
    assert "falls as S grows" in falling.text
    assert not falling.holds
    assert "10.7 at 128, 15.1 at 1024" in falling.why
    assert "D / b = 16" in falling.why
    assert not claims(ASSIGNMENT[:1])[0].holds  # one length is compared with half of it


def test_the_order_of_the_lengths_does_not_matter() -> None:
    assert claims(ASSIGNMENT[::-1])[0] == claims(ASSIGNMENT)[0]


def test_tile_claims_hold_where_they_do() -> None:
    _, linear, block_k, _ = claims(ASSIGNMENT)
    assert not linear.holds
    assert "4.5x" in linear.why
    assert not block_k.holds
    whole = [AttentionShape(batch=1, heads=8, seq_q=128, head_dim=64)]
    assert claims(whole)[1].holds  # one block of queries reads once


def test_whether_queries_are_read_again_is_a_matter_of_the_blocks_of_keys() -> None:
    """The claim is trivially true of one block of 64 keys, and of no more."""
    for seq_kv, holds in ((64, True), (65, False)):
        (*_, found) = claims([AttentionShape(batch=1, heads=8, seq_q=1024, seq_kv=seq_kv, head_dim=64)])
        assert found.text.startswith("Q is read again")
        assert found.holds is holds
        assert "1.0 MiB of Q once" in found.why
        assert ("it would be 2.0 MiB" in found.why) is not holds
        assert found.why.endswith("no query sees a second block") is holds


def test_whether_long_sequences_are_compute_bound_is_the_devices_ridge() -> None:
    assert claims(ASSIGNMENT, ceilings(15.9))[-1].holds
    past = claims(ASSIGNMENT, ceilings(16.1))[-1]
    assert not past.holds
    assert "16.1" in past.why


MASKS: dict[str, tuple[dict[str, Any], str]] = {
    "full": ({}, "D / b = 64"),
    "causal": ({"causal": True}, "0.5 D / b = 32"),
    "wide values": ({"head_dim_v": 64}, "(D + D_v) / 2b = 48"),
    "wide values, causal": ({"head_dim_v": 64, "causal": True}, "0.5 (D + D_v) / 2b = 24"),
    "half as many queries": ({"seq_q": 2**16, "causal": True}, "0.75 D / b = 48"),
    "twice as many queries": ({"seq_q": 2**18, "causal": True}, "0.25 D / b = 16"),
    "window": ({"window": 64}, "0 D / b = 0"),
    "causal window": ({"window": 64, "causal": True}, "0 D / b = 0"),
}


@pytest.mark.parametrize(("fields", "limit"), MASKS.values(), ids=list(MASKS))
def test_where_long_sequences_end_is_what_the_formula_tends_to(fields: dict[str, Any], limit: str) -> None:
    shape = AttentionShape(**{"batch": 1, "heads": 1, "seq_q": 2**17, "seq_kv": 2**17, "head_dim": 128, **fields})
    value = float(limit.split(" = ")[1])
    assert intensities([shape])[0].naive == pytest.approx(value, rel=5e-3, abs=0.1)
    for ridge, holds in ((value - 1.0, True), (value + 1.0, False)):
        if ridge > 0.0:
            found = claims([shape], ceilings(ridge))[-1]
            assert found.holds is holds
            assert f"ends at {limit} FLOP/B, {'past' if holds else 'below'} this" in found.why


def test_a_causal_shape_is_judged_by_the_pairs_that_it_sees() -> None:
    """bf16, D 128: 31.9 FLOP/B at 16384, towards 32 and not 64, which lies past a ridge of 50."""
    lengths = [AttentionShape(batch=1, heads=1, seq_q=seq, head_dim=128, causal=True) for seq in (1024, 4096, 16384)]
    falling, *_, long = claims(lengths, ceilings(50.0))
    assert "28.5 at 1024, 31.0 at 4096, 31.8 at 16384 FLOP/B, towards 0.5 D / b = 32: " in falling.why
    assert not long.holds
    assert "memory-bound at every length" in long.why


def test_a_window_of_half_the_keys_or_more_leaves_nothing_of_long_sequences() -> None:
    """Half of its sequence, to which it is compared, has no window."""
    falling = claims([AttentionShape(batch=1, heads=1, seq_q=1024, head_dim=128, window=600)])[0]
    assert "51.2 at 512, 47.1 at 1024 FLOP/B, towards 0 D / b = 0: it falls" in falling.why


def test_a_window_leaves_long_sequences_memory_bound_and_says_nothing_of_short_ones() -> None:
    """Its intensity rises up to the window and falls past it: at 1024 it is above a ridge of 20."""
    shape = AttentionShape(batch=1, heads=1, seq_q=1024, head_dim=128, window=512)
    found = claims([shape], ceilings(20.0))[-1]
    assert intensities([shape])[0].naive > 20.0
    assert not found.holds
    assert "memory-bound for long S" in found.why


def test_plain_data_holds_every_part() -> None:
    data = derivation_data(ASSIGNMENT)
    assert set(data) == {"shape", "works", "movements", "tiles", "intensities"}
    assert data["shape"]["seq_q"] == 1024
    assert sum(movement["bytes"] for movement in data["movements"]["naive"]) == 8 * 4 * (4 * 1024 * 64 + 4 * 1024**2)
