"""The default that is served: the choice of the architecture's portfolio, with what is expected of it."""

import math
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import choose, get_kernel
from autotune.dispatch.portfolio import choose_all
from autotune.errors import NoTunedKernelError
from autotune.implementation import installed_version
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import Assignment
from autotune.trial import Trial
from tests import flex_sample, sample
from tests.dispatch.tables import H200, SLOWER, THIRD, Tables, default_of, in_fresh_process

H100: Final = replace(NVIDIA_H200, name="NVIDIA H100 80GB HBM3", memory_mib=81559)
SHORT, LONG = sample.shape(512), sample.shape(8192)
ROOT: Final = Path(__file__).resolve().parents[2]


def chosen(shape: AttentionShape, *rows: Assignment) -> Config | None:
    found = choose(rows, IMPLEMENTATION, shape, NVIDIA_H200)
    return None if found is None else found.config


def test_the_nearest_recorded_shapes_decide() -> None:
    rows = [sample.assignment(SHORT), sample.assignment(LONG, SLOWER)]
    assert chosen(sample.shape(1024), *rows) == sample.FAST
    assert chosen(sample.shape(4096), *rows) == SLOWER
    assert chosen(sample.shape(4096), *rows[::-1]) == SLOWER


def test_two_shapes_outvote_one_that_is_as_near() -> None:
    rows = [sample.assignment(sample.shape(512), SLOWER), sample.assignment(sample.shape(4096))]
    asked = sample.shape(1448)  # half-way, a little nearer to the first
    assert chosen(asked, *rows) == SLOWER
    assert chosen(asked, *rows, sample.assignment(sample.shape(4096, batch=8))) == sample.FAST


def test_a_winner_alone_decides_only_where_more_is_not_known_near() -> None:
    alone = sample.assignment(SHORT, SLOWER, timed=2)
    assert chosen(sample.shape(800), alone, sample.assignment(sample.shape(2048))) == sample.FAST
    assert chosen(sample.shape(800), alone, sample.assignment(sample.shape(16384))) == SLOWER
    assert chosen(SHORT, alone) == SLOWER


def test_what_is_invalid_gives_way_to_the_next_member() -> None:
    asked = sample.shape(seq_q=64, seq_kv=1024)
    small = sample.config(BLOCK_Q=64, num_warps=4)
    assert chosen(asked, sample.assignment(sample.shape(512))) is None  # BLOCK_Q=128
    assert chosen(asked, sample.assignment(sample.shape(512)), sample.assignment(LONG, small)) == small


def test_all_members_are_told_in_the_order_in_which_they_would_be_chosen() -> None:
    rows = [sample.assignment(SHORT), sample.assignment(LONG, SLOWER)]
    for shape, order in ((sample.shape(1024), [sample.FAST, SLOWER]), (sample.shape(4096), [SLOWER, sample.FAST])):
        found = list(choose_all(rows, IMPLEMENTATION, shape, NVIDIA_H200))
        assert [choice.config for choice in found] == order
        assert found[0] == choose(rows, IMPLEMENTATION, shape, NVIDIA_H200)
        assert found[1].expectation.regret is None


def test_the_rule_may_be_the_member() -> None:
    found = choose([sample.assignment(is_default=True)], IMPLEMENTATION, SHORT, NVIDIA_H200)
    assert found is not None
    assert (found.config, found.is_default) == (default_of(SHORT), True)


@pytest.mark.parametrize("change", [{"dtype": "float32"}, {"head_dim": 64}, {"head_dim_v": 64}], ids=str)
def test_other_types_and_widths_have_members_of_their_own(change: dict[str, Any]) -> None:
    assert chosen(sample.shape(**change), sample.assignment()) is None


@pytest.mark.parametrize(
    "change", [{"dtype": "float16"}, {"head_dim": 120}, {"causal": False}, {"window": 512}, {"softcap": True}], ids=str
)
def test_what_a_config_hardly_feels_does_not_part_shapes(change: dict[str, Any]) -> None:
    assert chosen(sample.shape(**change), sample.assignment()) == sample.FAST


def expected(shape: AttentionShape, *rows: Assignment, device: Device = NVIDIA_H200) -> tuple[float | None, int]:
    """The expected regret, to a millionth, and the number of measurements."""
    found = choose(rows, IMPLEMENTATION, shape, device)
    assert found is not None
    return rounded(found.expectation.regret), found.expectation.evidence


def rounded(regret: float | None) -> float | None:
    return None if regret is None else round(regret, 6)


def test_the_mean_of_what_was_left_out_is_expected() -> None:
    rows = [
        sample.assignment(sample.shape(seq), left_out_regret=regret)
        for seq, regret in ((512, 0.01), (1024, 0.0), (2048, 0.05), (4096, None))
    ]
    assert expected(sample.shape(1500), *rows) == (0.02, 3)
    assert expected(sample.shape(1500), *rows[:2]) == (None, 0)  # two say nothing


def recorded(**changes: Any) -> list[Assignment]:
    """Three shapes that were left out."""
    return [sample.assignment(sample.shape(seq), **changes) for seq in (512, 1024, 2048)]


def test_less_than_a_race_tells_apart_is_not_promised() -> None:
    assert expected(sample.shape(1500), *recorded(left_out_regret=0.0)) == (0.01, 3)


def test_only_shapes_of_the_same_features_count() -> None:
    full = [sample.assignment(sample.shape(seq, causal=False), left_out_regret=0.5) for seq in (512, 1024, 2048)]
    assert expected(sample.shape(1500), *recorded(), *full) == (0.01, 3)
    assert expected(sample.shape(1500), *recorded()[:2], *full) == (None, 0)


def test_only_the_same_model_of_device_counts() -> None:
    assert expected(sample.shape(1500), *recorded(), device=H100) == (None, 0)
    assert expected(sample.shape(1500), *recorded(), device=replace(NVIDIA_H200, power_cap_watts=500)) == (0.01, 3)
    assert expected(sample.shape(1500), *recorded(device=H100)) == (None, 0)
    assert expected(sample.shape(1500), *recorded(), *recorded(device=H100, left_out_regret=0.5)) == (0.01, 3)


def test_nothing_is_expected_of_a_second_choice() -> None:
    small = sample.config(BLOCK_Q=64, num_warps=4)
    rows = [sample.assignment(sample.shape(seq_q=queries, seq_kv=1024), small) for queries in (32, 64, 128)]
    asked = sample.shape(seq_q=64, seq_kv=1024, batch=15)
    assert expected(asked, *rows) == (0.01, 3)
    first = sample.assignment(asked, left_out_regret=None)  # its BLOCK_Q is longer than the queries
    assert chosen(asked, *rows, first) == small
    assert expected(asked, *rows, first) == (None, 0)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"source_hash": "ab" * 32}, "the kernel source has changed since it was measured"),
        ({"triton_version": "3.5.0"}, "measured with triton 3.5.0, here is 3.6.0"),
    ],
    ids=str,
)
def test_a_portfolio_of_another_source_or_triton_says_so_and_promises_nothing(
    change: dict[str, Any], note: str, tables: Tables
) -> None:
    tables.cover(*recorded())
    why = get_kernel(sample.shape(1500), device=H200).provenance
    assert (why.notes, why.evidence) == ((), 3)
    tables.cover(*recorded(**change))
    why = get_kernel(sample.shape(1500), device=H200).provenance
    assert (why.rung, why.notes, why.expected_regret, why.evidence) == ("default", (note,), None, 0)


def test_a_portfolio_that_another_library_was_measured_with_says_which_is_here(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the library's version by its hash alone, and of a space's default nothing was tuned."""
    flex_sample.install(monkeypatch, "2.13.0")
    default = flex_sample.default(sample.shape(512))
    tables.cover(sample.assignment(sample.shape(512), default, implementation="flex", source_hash=flex_sample.SOURCE))
    why = get_kernel(sample.shape(8192), device=H200, among=("flex",)).provenance
    assert (why.rung, why.notes) == ("default", ("measured with another torch, here is 2.13.0",))


def test_rows_of_another_source_are_no_evidence(tables: Tables) -> None:
    older, *rest = recorded()
    assert expected(sample.shape(2048), *rest, replace(older, source_hash="ab" * 32)) == (None, 0)


def test_the_nearest_of_many_count() -> None:
    near = [sample.assignment(sample.shape(1024, batch=batch), left_out_regret=0.02) for batch in range(16, 24)]
    far = [sample.assignment(sample.shape(seq), left_out_regret=0.5) for seq in (256, 8192)]
    assert expected(sample.shape(1024), *near, *far) == (0.02, 8)


@pytest.mark.parametrize(
    "shape",
    [sample.shape(200), sample.shape(16384), sample.shape(1024, batch=1, heads=2), sample.shape(1024, softcap=True)],
    ids=str,
)
def test_nothing_is_expected_beyond_what_was_recorded(shape: AttentionShape) -> None:
    rows = [sample.assignment(sample.shape(seq)) for seq in (512, 1024, 2048, 4096)]
    assert expected(sample.shape(256), *rows) == (0.01, 4)
    found = choose(rows, IMPLEMENTATION, shape, NVIDIA_H200)
    assert found is not None
    assert (found.config, found.expectation.regret, found.expectation.evidence) == (sample.FAST, None, 0)


def test_it_is_served_on_the_rung_default_and_says_why(tables: Tables) -> None:
    tables.ship(sample.trial(SHORT))
    tables.cover(*(sample.assignment(sample.shape(seq), SLOWER) for seq in (1024, 4096, 8192)))
    asked = sample.shape(3000)
    kernel = get_kernel(asked, device=H200)
    why = kernel.provenance
    assert (kernel.config, why.rung, why.row, why.origin, why.distance) == (SLOWER, "default", None, "", None)
    assert (rounded(why.expected_regret), why.evidence) == (0.01, 3)
    assert why.reason == (
        "no tuned shape of flash_attention/triton or gluon_hopper on NVIDIA H200 is within a distance of 1 "
        f"(a factor of two in one size); the nearest, {SHORT}, is {asked.distance(SHORT):.2f} away: "
        f"the config that the portfolio of sm_90 has for {sample.shape(4096)} on NVIDIA H200"
    )
    assert str(why.expectation) == "expected about 1 % behind the best, 3 measurements"


def test_every_device_of_the_architecture_is_served_it_and_no_other(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.cover(sample.assignment(chosen=SLOWER))
    served = get_kernel(sample.shape(), device="H100")
    assert served.config == SLOWER
    assert "on NVIDIA H100 80GB HBM3 (sm_90): the config that the portfolio of sm_90 has" in served.provenance.reason
    assert served.provenance.default == "portfolio's default"
    tables.cover(sample.assignment(chosen=default_of(sample.shape()), is_default=True))
    keeps = "the space's default, learned from recordings, which the portfolio of sm_90 keeps"
    assert get_kernel(sample.shape(), device=H200).provenance.reason.endswith(keeps)
    recorded_elsewhere = f"{keeps}, recorded on NVIDIA H200"
    assert get_kernel(sample.shape(), device="H100").provenance.reason.endswith(recorded_elsewhere)
    tables.cover(sample.assignment(chosen=SLOWER))
    monkeypatch.setattr(platforms, "current_device", lambda index=0: H100)
    assert get_kernel(sample.shape()).config == SLOWER
    a100 = replace(NVIDIA_H200, name="NVIDIA A100-SXM4-80GB", arch="sm_80")
    monkeypatch.setattr(platforms, "current_device", lambda index=0: a100)
    why = get_kernel(sample.shape(1000)).provenance
    assert ": the space's default, chosen by compiled resources" in why.reason
    assert why.default == "space's default"
    with pytest.warns(RuntimeWarning, match="Voodoo"):  # its architecture is assumed: nothing is known of it
        served = get_kernel(sample.shape(), device="Voodoo 2")
    assert served.provenance.reason == "no table knows the device Voodoo 2, taken for an sm_80: the space's default"


def test_a_row_of_the_very_shape_comes_first(tables: Tables) -> None:
    tables.ship(sample.trial())
    tables.cover(*(sample.assignment(sample.shape(seq), SLOWER, left_out_regret=0.0) for seq in (512, 1024, 2048)))
    kernel = get_kernel(sample.shape(), device=H200)
    assert (kernel.config, kernel.provenance.rung) == (sample.FAST, "exact")
    assert (kernel.provenance.expected_regret, kernel.provenance.evidence) == (0.01, 1)


NEAR: Final = sample.shape(batch=12)  # 0.42 from what is asked


@pytest.mark.parametrize(
    ("lost", "rung", "regret"),
    [(0.0, "nearest", 0.01), (0.2, "nearest", 0.05 * math.log2(16 / 12)), (0.4, "default", 0.03)],
)
def test_of_a_near_winner_and_the_portfolio_the_one_expected_nearer_the_best_is_served(
    tables: Tables, lost: float, rung: str, regret: float
) -> None:
    tables.tune(sample.trial(NEAR))
    rows = recorded(chosen=THIRD, left_out_regret=0.03)
    tables.cover(*(replace(row, transfer_distance=4.0, transfer_regret=lost) for row in rows))
    kernel = get_kernel(sample.shape(), device=H200, on_miss="error")  # a near winner is there: no miss
    why = kernel.provenance
    assert (why.rung, why.evidence) == (rung, 3)
    assert why.expected_regret == pytest.approx(regret)
    if rung == "default":
        assert kernel.config == THIRD
        near = f"tuned for the nearest shape ({NEAR}; 0.42 away) on NVIDIA H200"
        assert why.reason.startswith(f"expected nearer the best than what is {near}: the config that")


@pytest.mark.parametrize(
    "change",
    [
        {"transfer_regret": None, "transfer_distance": None},
        {"transfer_regret": math.inf},
        {"shape": sample.shape(512, causal=False)},
        {"device": H100},
        {"source_hash": "ab" * 32},
    ],
    ids=str,
)
def test_fewer_than_three_pairs_like_the_shape_say_nothing_of_a_near_winner(
    change: dict[str, Any], tables: Tables
) -> None:
    tables.tune(sample.trial(NEAR))
    first, *others = (replace(row, transfer_distance=4.0, transfer_regret=0.2) for row in recorded(chosen=THIRD))
    tables.cover(first, *others)
    assert get_kernel(sample.shape(), device=H200).provenance.evidence == 3
    tables.cover(replace(first, **change), *others)
    why = get_kernel(sample.shape(), device=H200).provenance
    assert (why.rung, why.expected_regret, why.evidence) == ("nearest", None, 0)
    assert str(why.expectation) == "nothing recorded says how near the best"


@pytest.mark.parametrize(
    ("keep", "shape", "left_out", "rung"),
    [
        (Tables.ship, NEAR, 0.01, "default"),
        (Tables.ship, NEAR, 0.5, "default"),
        (Tables.ship, NEAR, None, "default"),  # whatever is known of the choice
        (Tables.ship, sample.shape(batch=15), 0.01, "nearest"),  # 0.09 from what is asked
        (Tables.tune, NEAR, 0.01, "nearest"),  # a user's row had no vote
    ],
)
def test_a_winner_that_ships_and_is_not_near_gives_way_to_a_choice_that_it_had_a_vote_in(
    keep: Callable[[Tables, Trial], None], shape: AttentionShape, left_out: float | None, rung: str, tables: Tables
) -> None:
    keep(tables, sample.trial(shape))
    tables.cover(*recorded(chosen=THIRD, left_out_regret=left_out))
    why = get_kernel(sample.shape(), device=H200, on_miss="error").provenance
    assert (why.rung, why.expected_regret) == (rung, pytest.approx(left_out) if rung == "default" else None)
    if rung == "default":
        near = f"tuned for the nearest shape ({shape}; 0.42 away) on NVIDIA H200"
        assert why.reason.startswith(
            f"the portfolio, which weighs more shapes, comes before what is {near}: the config"
        )


def test_a_far_winner_under_another_power_cap_gives_way_as_well(tables: Tables) -> None:
    """It ships as rows under this cap do, and had its vote."""
    capped = replace(NVIDIA_H200, power_cap_watts=600)
    elsewhere = sample.trial(sample.shape(causal=False))  # by which the name stands for the higher cap
    tables.ship(elsewhere, replace(sample.trial(NEAR), device=capped))
    assert get_kernel(sample.shape(), device=H200).provenance.rung == "same model"
    tables.cover(*recorded(chosen=THIRD))
    assert get_kernel(sample.shape(), device=H200).config == THIRD


def test_it_is_a_miss_still(tables: Tables) -> None:
    tables.cover(sample.assignment(chosen=SLOWER))
    with pytest.raises(
        NoTunedKernelError, match="flash_attention/triton or gluon_hopper on NVIDIA H200 \\(sm_90\\); shape: "
    ):
        get_kernel(sample.shape(), device=H200, on_miss="error")


def test_the_spaces_default_is_the_last_resort(tables: Tables) -> None:
    tables.cover(sample.assignment(chosen=SLOWER))
    short = sample.shape(16)  # its BLOCK_Q is longer
    kernel = get_kernel(short, device=H200)
    assert kernel.config == default_of(short)
    assert (kernel.provenance.expected_regret, kernel.provenance.evidence) == (None, 0)
    assert (
        kernel.provenance.reason
        == "no tuned shape of flash_attention/triton or gluon_hopper or triton_split_keys on NVIDIA H200 (sm_90): "
        "the space's default"
    )


WINNERS: Final = "nvidia_h200/flash_attention/triton.parquet"
DAMAGE: Final = {
    "flipped": lambda path: path.write_bytes(b"\0" + path.read_bytes()[1:]),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "missing": lambda path: path.unlink(),
    "a table of winners": lambda path: shutil.copy(
        path.parents[3] / "nvidia_h200/flash_attention/triton.parquet", path
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_portfolio_is_warned_of_once_and_the_spaces_default_is_served(tables: Tables, damage: Any) -> None:
    tables.ship(sample.trial())
    path = tables.cover(sample.assignment(chosen=SLOWER))
    damage(path)
    asked = sample.shape(16384)
    with pytest.warns(RuntimeWarning) as caught:
        assert get_kernel(asked, device=H200).config == default_of(asked)
    assert len(caught) == 1
    assert str(path) in str(caught[0].message)
    with warnings.catch_warnings(action="error"):
        assert get_kernel(sample.shape(), device=H200).config == sample.FAST


LOOK_UP: Final = """
import sys
from autotune import AttentionShape, PagedShape, get_kernel
dense = AttentionShape(batch=2, heads=16, kv_heads=2, seq_q=512, head_dim=256, causal=True)
paged = PagedShape(batch=64, heads=32, kv_heads=8, max_context=16384, head_dim=128)
picks = [get_kernel(paged, device="NVIDIA H200", operation="paged_decode")]
picks += [get_kernel(dense, device=name) for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")]
rungs, regrets = zip(*((each.provenance.rung, each.provenance.expected_regret) for each in picks))
print(sorted(set(rungs)), *regrets, sep=";")
print(sorted({"optuna", "torch", "triton"} & sys.modules.keys()))
"""


def test_what_ships_is_served_without_optuna(tmp_path: Path) -> None:
    """Recordings of an H200 and of an H100 let expect something of dense attention on either."""
    found, loaded = in_fresh_process(LOOK_UP, tmp_path, PYTHONPATH=str(ROOT)).splitlines()
    rungs, *regrets = found.split(";")
    assert (rungs, loaded) == ("['default']", "[]")
    if installed_version("triton") in ("", "3.6.0"):  # with another nothing is expected
        assert all(0.01 <= float(regret) <= 0.05 for regret in regrets)
    else:
        assert regrets == ["None"] * 3
