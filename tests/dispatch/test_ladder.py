"""Which row is served: the very shape's, else the nearest valid one of its family, else the space's default."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import evidence, get_kernel
from autotune.table import is_valid
from autotune.trial import Policy, Trial
from tests import sample
from tests.dispatch.tables import H200, SLOWER, THIRD, Tables, default_of


def test_the_row_of_the_very_shape_is_exact(tables: Tables) -> None:
    row = sample.trial(sample.shape(1024))
    tables.ship(row, sample.trial(sample.shape(2048), SLOWER))
    kernel = get_kernel(sample.shape(1024), device=H200)
    assert kernel.config == sample.FAST
    why = kernel.provenance
    assert (why.rung, why.row, why.origin, why.distance, why.notes) == ("exact", row, "shipped", 0.0, ())
    assert str(why) == why.reason == "tuned for this shape on NVIDIA H200"
    assert (kernel.operation, kernel.shape) == ("flash_attention", sample.shape(1024))
    assert "exact" in repr(kernel)


def test_the_nearest_of_several_shapes_is_borrowed(tables: Tables) -> None:
    row = sample.trial(sample.shape(2048), SLOWER)
    tables.ship(sample.trial(sample.shape(1024)), row, sample.trial(sample.shape(512), THIRD))
    kernel = get_kernel(sample.shape(1500), device=H200)
    why = kernel.provenance
    assert (kernel.config, why.rung, why.row) == (SLOWER, "nearest", row)
    assert why.distance == pytest.approx(0.7123, abs=1e-4)  # hypot(log2(10 / 8), 2 x log2(2048 / 1500))
    assert why.reason == f"tuned for the nearest shape ({sample.shape(2048)}; 0.71 away) on NVIDIA H200"


@pytest.mark.parametrize(("batch", "away"), [(8, None), (32, None), (7, "1.19"), (33, "1.04")])
def test_a_shape_further_than_a_factor_of_two_is_not_borrowed(tables: Tables, batch: int, away: str | None) -> None:
    near = sample.shape(batch=16)
    tables.ship(sample.trial(near), sample.trial(sample.shape(batch=256)))
    why = get_kernel(sample.shape(batch=batch), device=H200).provenance
    assert why.rung == ("default" if away else "nearest")
    if away:
        assert (why.row, why.distance, why.origin) == (None, None, "")
        assert why.reason == (
            "no tuned shape of flash_attention/triton or gluon_hopper on NVIDIA H200 is within a distance of 1 "
            f"(a factor of two in one size); the nearest, {near}, is {away} away: the space's default"
        )


def test_distances_are_not_rounded_to_what_they_are_not(tables: Tables) -> None:
    near = sample.shape(8192, batch=16)
    tables.ship(sample.trial(near))
    reasons = [
        get_kernel(sample.shape(seq, batch=batch), device=H200).provenance.reason
        for seq, batch in ((8191, 16), (8190, 8))
    ]
    assert f"({near}; less than 0.01 away)" in reasons[0]
    assert f"the nearest, {near}, is just over 1 away" in reasons[1]


def test_a_config_that_is_invalid_here_is_passed_over(tables: Tables) -> None:
    asked = sample.shape(seq_q=64, seq_kv=1024)
    nearer = sample.trial(sample.shape(seq_q=96, seq_kv=1024))  # its BLOCK_Q is longer than 64
    farther = sample.trial(sample.shape(seq_q=40, seq_kv=1024), sample.config(BLOCK_Q=64, num_warps=4))
    tables.ship(nearer, farther)
    assert get_kernel(asked, device=H200).provenance.row == farther
    tables.ship(nearer)
    kernel = get_kernel(asked, device=H200)
    assert (kernel.config, kernel.provenance.rung, kernel.provenance.row) == (default_of(asked), "default", None)
    assert kernel.provenance.reason == (
        "no tuned shape of flash_attention/triton or gluon_hopper or triton_split_keys on NVIDIA H200 has a config "
        f"that is valid here; the nearest, {nearer.shape}, is 0.58 away: the space's default"
    )


def test_a_row_that_is_invalid_for_its_own_shape_is_as_good_as_none(tables: Tables) -> None:
    short, valid = sample.shape(seq_q=64, seq_kv=1024), sample.config(BLOCK_Q=64, num_warps=4)
    tables.ship(sample.trial(short, valid), sample.trial(sample.shape(seq_q=512, seq_kv=1024)))
    tables.tune(sample.trial(short))  # its BLOCK_Q is longer than 64
    why = get_kernel(short, device=H200).provenance
    assert (why.rung, why.origin) == ("exact", "shipped")
    tables.ship(sample.trial(sample.shape(seq_q=512, seq_kv=1024)))
    assert get_kernel(short, device=H200).provenance.reason.endswith(
        f"the nearest, {sample.shape(seq_q=512, seq_kv=1024)}, is 3.00 away: the space's default"
    )
    mine = replace(NVIDIA_H200, name="NVIDIA H200 of mine")
    tables.tune(sample.trial(short, device=mine))
    with pytest.warns(RuntimeWarning, match="no table knows the device NVIDIA H200 of mine"):
        get_kernel(short, device=mine.name)


def test_rows_that_cannot_answer_are_not_judged(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule takes microseconds a row, and a table has hundreds; one row says that the device is known."""
    judged: list[Any] = []

    def note(trial: Trial) -> bool:
        judged.append(trial.shape.as_dict()["batch"])
        return is_valid(trial)

    monkeypatch.setattr("autotune.table.served.is_valid", note)
    monkeypatch.setattr("autotune.table.is_valid", note)
    tables.ship(*[sample.trial(sample.shape(batch=2**power)) for power in range(12)])
    assert get_kernel(sample.shape(batch=64)).provenance.rung == "exact"
    assert sorted(judged) == [32, 64, 128]
    judged.clear()
    assert get_kernel(sample.shape(batch=2**14)).provenance.rung == "default"
    assert judged == [2**11]
    judged.clear()
    assert get_kernel(sample.shape(batch=512), device=H200).provenance.rung == "exact"
    assert len(judged) == 4


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"dtype": "float16"}, "dtype (bfloat16, not float16)"),
        ({"head_dim": 120}, "head_dim (128, not 120), head_dim_v (128, not 120)"),
        ({"head_dim_v": 64}, "head_dim_v (128, not 64)"),
        ({"causal": False}, "causal (True, not False)"),
        ({"window": 512}, "window (None, not 512)"),
        ({"softcap": True}, "softcap (False, not True)"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else None,
)
def test_families_are_never_mixed_and_what_differs_is_said(
    tables: Tables, change: dict[str, Any], differs: str
) -> None:
    near = sample.shape(1024)
    others = sample.shape(512), sample.shape(1024, softcap=True, window=64)
    tables.ship(*[sample.trial(shape) for shape in (near, *others)])
    asked = sample.shape(1024, **change)
    kernel = get_kernel(asked, device=H200)
    assert (kernel.provenance.rung, kernel.config) == ("default", default_of(asked))
    assert kernel.provenance.reason == (
        "no tuned shape of flash_attention/triton or gluon_hopper on NVIDIA H200 is like it; "
        f"the nearest, {near}, differs in {differs}: the space's default"
    )


def test_heads_may_differ_as_sizes_do(tables: Tables) -> None:
    tables.ship(sample.trial(sample.shape(heads=16)))
    assert get_kernel(sample.shape(heads=16, kv_heads=8), device=H200).provenance.rung == "default"  # hypot(1, 1)
    assert get_kernel(sample.shape(heads=8), device=H200).provenance.rung == "nearest"


def test_of_two_shapes_equally_near_the_choice_does_not_hang_on_the_order_of_rows(tables: Tables) -> None:
    rows = [sample.trial(sample.shape(batch=8)), sample.trial(sample.shape(batch=32), SLOWER)]
    picks = set()
    for order in (rows, rows[::-1]):
        numbered = [replace(row, number=number) for number, row in enumerate(order)]
        tables.ship(*numbered)
        picks.add(get_kernel(sample.shape(batch=16), device=H200).config)
    assert len(picks) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"source_hash": "ab" * 32},
        {"toolchain": replace(sample.TOOLCHAIN, triton="3.5.0")},
        {"executor": "replay"},
        {"policy": Policy("eager", "warm")},
    ],
    ids=str,
)
def test_nothing_is_expected_of_a_row_that_was_not_measured_as_it_is_served(
    change: dict[str, Any], tables: Tables
) -> None:
    tables.tune(sample.trial())
    assert get_kernel(sample.shape(), device=H200).provenance.expected_regret == 0.01
    asked = sample.shape(512)
    tables.tune(sample.trial(asked, **change))
    why = get_kernel(asked, device=H200).provenance
    assert (why.rung, why.expected_regret, why.evidence) == ("exact", None, 0)


def test_accepted_differences_are_said(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "installed_version", lambda package: "3.9.1")
    tables.ship(sample.trial(source_hash="ab" * 32))
    why = get_kernel(sample.shape(), device=H200).provenance
    assert why.rung == "exact"
    assert why.notes == (
        "the kernel source has changed since it was measured",
        "measured with triton 3.6.0, here is 3.9.1",
    )
