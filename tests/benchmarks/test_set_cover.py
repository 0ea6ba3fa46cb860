"""Portfolios of recordings made by hand: the fewest members that cover, who is assigned which, and what carries."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table.portfolios import write_portfolio
from autotune.trial import Conditions, Policy, Stage, Status, Trial
from benchmarks import set_cover
from benchmarks.recorded_shapes import RecordedShape, find_behind, read_recordings
from benchmarks.set_cover import assign, cover
from tests import sample

pytestmark = pytest.mark.usefixtures("nothing_ranked")

A, B, C, D = sample.FAST, *(sample.config(num_stages=stages) for stages in (3, 4, 5))
FILLERS: Final = [
    sample.config(BLOCK_K=block_k, num_stages=stages, loads="pointer")
    for block_k in (16, 32, 64, 128)
    for stages in (1, 2, 3, 4, 5)
]


def recorded(
    shape: AttentionShape,
    ratios: Mapping[Config, float],
    *,
    default: float = 1.3,
    broad: bool = True,
    refused: tuple[Config, ...] = (),
) -> RecordedShape:
    """A shape where these configs take so many times the best, and, if it is recorded in full, all others more."""
    rule = IMPLEMENTATION.space.default(shape, NVIDIA_H200)
    others = {config: 2.0 + number / 100 for number, config in enumerate(FILLERS)} if broad else {}
    return RecordedShape(
        shape=shape,
        device=NVIDIA_H200,
        ratios={**others, rule: default, **ratios},
        refused=frozenset(refused),
        default=rule,
        source_hash=IMPLEMENTATION.source_hash,
        triton="3.6.0",
    )


def lengths(*ratios: Mapping[Config, float]) -> list[RecordedShape]:
    """Shapes of doubling length."""
    return [recorded(sample.shape(512 * 2**number), each) for number, each in enumerate(ratios)]


def test_the_config_that_covers_most_comes_first_and_the_fewest_are_taken() -> None:
    found = lengths({A: 1.0, B: 1.0199, C: 1.5}, {A: 1.1, B: 1.0, C: 1.01}, {B: 1.019, C: 1.0}, {D: 1.0, B: 1.021})
    assert cover(IMPLEMENTATION, found) == [B, D]


def test_of_equal_covers_the_rule_comes_first_then_the_least_regret_then_parameter_order() -> None:
    both = {A: 1.01, B: 1.0}
    assert cover(IMPLEMENTATION, lengths(both, both)) == [B]
    assert cover(IMPLEMENTATION, lengths({A: 1.0, B: 1.0}, {A: 1.0, B: 1.0})) == [A]
    assert cover(IMPLEMENTATION, [recorded(sample.shape(), {A: 1.0}, default=1.0199)]) == [None]
    assert cover(IMPLEMENTATION, []) == []


def test_the_order_of_recordings_decides_nothing() -> None:
    found = [
        recorded(sample.shape(seq, causal=causal), dict.fromkeys((A, B, C, D), 1.0 + rows / 97))
        for rows, (seq, causal) in enumerate((seq, causal) for seq in (512, 1024, 4096) for causal in (True, False))
    ]
    first = {row.shape: row for row in assign(IMPLEMENTATION, found)}
    for seed in range(5):
        random.Random(seed).shuffle(found)
        assert {row.shape: row for row in assign(IMPLEMENTATION, found)} == first


def test_each_shape_is_assigned_the_first_member_that_covers_it_with_its_regret() -> None:
    found = lengths({A: 1.0, B: 1.2}, {A: 1.015, B: 1.0}, {A: 1.0, B: 1.1}, {A: 1.1, B: 1.0})
    rows = assign(IMPLEMENTATION, found)
    assert [(row.config, row.regret) for row in rows] == [
        (A, 0.0),
        (A, pytest.approx(0.015)),
        (A, 0.0),
        (B, 0.0),
    ]
    assert [row.default_regret for row in rows] == [pytest.approx(0.3)] * 4
    assert {(row.timed, row.is_default, row.is_broad) for row in rows} == {(22, False, True)}


def test_a_shape_that_is_left_out_is_chosen_for_by_the_others() -> None:
    found = lengths({A: 1.0, B: 1.2}, {A: 1.1, B: 1.0}, {A: 1.0, B: 1.07})
    # The neighbours of the middle one have A, and both others are nearer to it, B's, than to each other.
    assert [row.left_out_regret for row in assign(IMPLEMENTATION, found)] == [
        pytest.approx(0.2),
        pytest.approx(0.1),
        pytest.approx(0.07),
    ]


def test_the_same_shape_on_another_device_is_left_out_with_it() -> None:
    found = lengths({A: 1.0, B: 1.1}, {B: 1.0, A: 1.2})
    h100 = replace(found[1], device=replace(NVIDIA_H200, name="NVIDIA H100"))
    rows = assign(IMPLEMENTATION, [*found, h100])
    assert [row.left_out_regret for row in rows] == [pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.2)]


def test_a_winners_row_says_nothing_of_wrong_choices() -> None:
    found = [*lengths({A: 1.0}, {A: 1.0}), recorded(sample.shape(4096), {A: 1.0}, broad=False)]
    assert [row.left_out_regret for row in assign(IMPLEMENTATION, found)] == [0.0, 0.0, None]


def test_a_grid_that_did_not_time_the_choice_counts_it_as_the_worst_member() -> None:
    """Or only choices that are good would be counted: what won elsewhere is left untried where it was hopeless."""
    found = lengths(*[{A: 1.0, B: 1.2}] * 4, {B: 1.0, A: 1.4})
    some = dict(list(found[1].ratios.items())[:9])  # a grid times few configs, and not A, which the others choose
    some[found[1].default] = 1.3
    grid = replace(found[1], shape=sample.shape(128), ratios=some | {B: 1.0})
    assert (grid.timed, grid.is_broad) == (11, True)
    for ratios, expected in (({B: 1.0}, 0.02), ({B: 1.25, C: 1.0}, 0.25)):
        rows = assign(IMPLEMENTATION, [*found, replace(grid, ratios=some | ratios)])
        assert {row.shape: row for row in rows}[grid.shape].left_out_regret == pytest.approx(expected)


def test_a_class_whose_choices_do_not_beat_the_rule_keeps_it() -> None:
    found = lengths({A: 1.0, B: 1.5}, {A: 1.5, B: 1.0})
    rows = assign(IMPLEMENTATION, found)
    assert [(row.is_default, row.config) for row in rows] == [(True, each.default) for each in found]
    assert [row.regret for row in rows] == [pytest.approx(0.3)] * 2
    assert [row.left_out_regret for row in rows] == [pytest.approx(0.3)] * 2


def test_a_rule_that_was_not_timed_loses_what_it_did_on_another_device_and_what_devices_differ_by() -> None:
    shapes = [sample.shape(512 * 2**number) for number in range(4)]
    ratios = [{A: 1.0, B: 1.5}, {A: 1.5, B: 1.0}] * 2
    h100 = replace(NVIDIA_H200, name="NVIDIA H100")
    h200s = [recorded(shape, known, default=1.01) for shape, known in zip(shapes, ratios, strict=True)]
    h100s = [
        replace(recorded(shape, known, default=1.03), device=h100) for shape, known in zip(shapes, ratios, strict=True)
    ]
    untimed = replace(h100s[3], ratios=ratios[3])

    def left_out(*found: RecordedShape) -> dict[AttentionShape, float | None]:
        rows = assign(IMPLEMENTATION, [*h200s, *found])
        assert all(row.is_default for row in rows)
        return {row.shape: row.left_out_regret for row in rows if row.device == h100}  # type: ignore[misc]

    assert left_out(*h100s[:3], untimed) == {
        **dict.fromkeys(shapes[:3], pytest.approx(0.03)),
        shapes[3]: pytest.approx(0.01 + 0.02),
    }
    # Two shapes do not say how far devices are apart, and what another config or source lost is no evidence.
    assert left_out(*h100s[:2], untimed)[shapes[3]] is None
    for change in ({"default": C}, {"source_hash": "ab" * 32}, {"triton": "3.9.0"}):
        changed: RecordedShape = replace(untimed, **change)
        assert left_out(*h100s[:3], changed)[shapes[3]] is None


def test_a_fitted_default_counts_as_fitted_without_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [recorded(sample.shape(seq), {A: 1.0}, default=1.03) for seq in (512, 1024, 2048)]
    assert not any(row.is_default for row in assign(IMPLEMENTATION, found))
    monkeypatch.setattr(set_cover, "is_fitted", lambda implementation, shape: True)
    for lost, is_kept in ((0.005, True), (0.4, False)):
        monkeypatch.setattr(set_cover, "left_out_loss", lambda *asked, lost=lost: lost)
        rows = assign(IMPLEMENTATION, found)
        assert [row.is_default for row in rows] == [is_kept] * 3
        assert [row.left_out_regret for row in rows] == [lost if is_kept else 0.0] * 3


def test_unknown_choices_count_as_twice_what_the_rule_loses() -> None:
    alone = [recorded(sample.shape(seq), {config: 1.0}, broad=False) for seq, config in ((512, A), (1024, B))]
    assert all(row.is_default for row in assign(IMPLEMENTATION, alone))
    agreeing = [recorded(sample.shape(seq), {A: 1.0}, broad=False) for seq in (512, 1024, 2048)]
    assert not any(row.is_default for row in assign(IMPLEMENTATION, agreeing))


@pytest.mark.parametrize("left", [1, 3], ids=["members", "rule"])
def test_a_rule_that_failed_somewhere_has_no_regret_there(left: int, tmp_path: Path) -> None:
    """Tables hold finite numbers: one failure must not keep all portfolios from being written."""
    found = [
        recorded(sample.shape(512 * 2**number), {A: 1.0} if number else {B: 1.0}, default=1.0 if number < left else 1.3)
        for number in range(4)
    ]
    found[-1] = recorded(sample.shape(4096), {A: 1.0}, default=math.inf)
    rows = {row.shape: row for row in assign(IMPLEMENTATION, found)}
    assert rows[found[-1].shape].default_regret is None
    assert rows[found[-2].shape].default_regret is not None
    assert write_portfolio(list(rows.values()), results=tmp_path).exists()


def test_classes_have_members_of_their_own() -> None:
    wide, narrow_tile = replace(sample.shape(), head_dim=256, head_dim_v=256), sample.config(BLOCK_K=32)
    found = [*lengths({A: 1.0, B: 1.3}, {A: 1.0, B: 1.3})]
    found += [recorded(replace(wide, seq_q=seq, seq_kv=seq), {narrow_tile: 1.0}) for seq in (512, 1024)]
    assert {(row.shape.as_dict()["head_dim"], row.config) for row in assign(IMPLEMENTATION, found)} == {
        (128, A),
        (256, narrow_tile),
    }


def test_of_a_winner_that_a_grid_did_not_try_here_nothing_is_known() -> None:
    found = lengths({A: 1.0}, {A: 1.1, B: 1.0})
    untried = replace(found[0], ratios={config: ratio for config, ratio in found[0].ratios.items() if config != B})
    rows = assign(IMPLEMENTATION, [untried, found[1]])
    assert [row.transfer_regret for row in rows] == [None, pytest.approx(0.1)]


def test_the_winner_of_the_nearest_of_the_family_is_timed_here() -> None:
    found = lengths({A: 1.0, B: 1.2}, {A: 1.1, B: 1.0}, {A: 1.0, B: 1.07})
    rows = assign(IMPLEMENTATION, [*found, recorded(sample.shape(1024, causal=False), {C: 1.0})])
    apart = sample.shape(512).distance(sample.shape(1024))
    assert [(row.transfer_distance, row.transfer_regret) for row in rows] == [
        (apart, pytest.approx(0.2)),
        (apart, pytest.approx(0.1)),
        (apart, pytest.approx(0.07)),
        (None, None),
    ]


def test_a_member_that_the_toolchain_refuses_gives_way_to_the_rule_where_it_is_left_out() -> None:
    """And not to the next member, C, though it has the best time there."""
    agreeing = lengths(*[{A: 1.0, C: 1.2}] * 4)
    other = recorded(sample.shape(16384), {C: 1.0, A: 1.5})
    refusing = recorded(sample.shape(1024, batch=8), {A: math.inf, C: 1.0}, refused=(A,))
    rows = assign(IMPLEMENTATION, [*agreeing, other, refusing])
    assert [row.config for row in rows] == [A] * 4 + [C] * 2
    assert [rows[-1].left_out_regret, rows[-1].transfer_regret] == pytest.approx([0.3, 0.3])


def test_a_class_that_would_serve_wrong_results_keeps_the_rule() -> None:
    """Wrong, and not refused: nothing would have stopped it from being served."""
    agreeing = lengths({A: 1.0}, {A: 1.0}, {A: 1.0})
    wrong = recorded(sample.shape(1024, batch=8), {A: math.inf, C: 1.0})
    assert not any(row.is_default for row in assign(IMPLEMENTATION, agreeing))
    rows = assign(IMPLEMENTATION, [*agreeing, wrong])
    assert all(row.is_default for row in rows)
    assert rows[3].transfer_regret == math.inf
    unknown = replace(
        wrong, ratios={config: ratio for config, ratio in wrong.ratios.items() if config != wrong.default}
    )
    assert all(row.is_default for row in assign(IMPLEMENTATION, [*agreeing, unknown]))


def test_where_nothing_of_the_others_is_valid_the_rule_is_served() -> None:
    short = recorded(sample.shape(64), {sample.config(BLOCK_Q=64, num_warps=4): 1.0})  # too short for the others
    rows = assign(IMPLEMENTATION, [*lengths({A: 1.0}, {A: 1.0}, {A: 1.0}), short])
    assert rows[3].left_out_regret == pytest.approx(0.3)


def test_a_sweep_is_read_by_its_race_and_then_its_screening() -> None:
    shape = sample.shape()
    trials = sample.sweep(shape)
    worst = max((trial for trial in trials if trial.timing), key=lambda trial: trial.timing.median_us)  # type: ignore[union-attr]
    failed = replace(worst, outcome=replace(worst.outcome, status=Status.COMPILE_ERROR, timing=None))
    slower = [
        replace(trial, outcome=replace(trial.outcome, timing=sample.timing(300.0)))
        if trial.stage is Stage.RACE and trial.config != sample.FAST
        else trial
        for trial in trials
        if trial is not worst
    ]
    (found,) = read_recordings(IMPLEMENTATION, [[*slower, failed]])
    assert (found.shape, found.device, found.best, found.regret(sample.FAST)) == (shape, NVIDIA_H200, sample.FAST, 0.0)
    raced = {trial.config for trial in slower if trial.stage is Stage.RACE} - {sample.FAST}
    assert {found.regret(config) for config in raced} == {0.5}
    assert found.regret(sample.config(num_stages=4, num_warps=16)) is None  # not valid, so not in the sweep
    assert found.ratios[worst.config] == math.inf
    assert found.refused == {worst.config}
    assert found.served_regret(worst.config) == found.regret(None)
    wrong = replace(failed, outcome=replace(failed.outcome, status=Status.WRONG_RESULT))
    (found,) = read_recordings(IMPLEMENTATION, [[*slower, wrong]])
    assert (found.refused, found.served_regret(worst.config)) == (frozenset(), math.inf)
    assert found.timed == len(found.ratios) - 1


def screened(chosen: Config, median: float) -> Trial:
    return sample.trial(chosen=chosen, stage=Stage.SCREEN, race_id="", timing=sample.timing(median))


def test_the_best_counts_though_the_race_had_no_place_for_it() -> None:
    """As where another implementation won by far: raced times count over it, by what a race takes longer."""
    other, raced = sample.config(num_stages=3), sample.trial(timing=sample.timing(330.0))
    trials = [screened(sample.FAST, 300.0), screened(other, 200.0), raced]
    (found,) = read_recordings(IMPLEMENTATION, [trials])
    assert found.best == other
    assert found.ratios[sample.FAST] == pytest.approx(1.5)
    assert found.unraced == pytest.approx(2 / 3)
    rivals = [replace(found, races={raced.race_id: 110.0}, unraced=1.0)]
    assert find_behind([found], rivals) == {(found.shape, found.device): pytest.approx(1.0)}
    later = [replace(found, newest_race="later")]  # what the best was not raced in says nothing of an earlier race
    assert find_behind(later, rivals) == {(found.shape, found.device): pytest.approx(2.0)}
    failed = sample.trial(chosen=other, status=Status.WRONG_RESULT, timing=None)
    (known,) = read_recordings(IMPLEMENTATION, [[*trials, failed]])
    assert known.unraced == 1.0
    trials[1] = screened(other, 297.0)  # no faster than screening errs
    (found,) = read_recordings(IMPLEMENTATION, [trials])
    assert (found.ratios[sample.FAST], found.unraced) == (1.0, 1.0)


def test_a_winner_alone_tells_itself_and_the_default() -> None:
    default_config = IMPLEMENTATION.space.default(sample.shape(), NVIDIA_H200)
    (found,) = read_recordings(IMPLEMENTATION, [[sample.trial(default_config=default_config)]])
    assert (found.regret(sample.FAST), found.timed) == (0.0, 2)
    assert found.regret(None) == pytest.approx(0.2)
    (default,) = read_recordings(IMPLEMENTATION, [[sample.trial(is_default=True, default_timing=None)]])
    assert default.ratios == {sample.FAST: 1.0}  # the default then, which is not today's
    assert default.regret(None) is None
    (unknown,) = read_recordings(IMPLEMENTATION, [[sample.trial()]])  # an old row does not say which the default was
    assert unknown.ratios == {sample.FAST: 1.0}


def test_of_two_tables_the_one_counts_that_timed_more() -> None:
    default_config = IMPLEMENTATION.space.default(sample.shape(4096), NVIDIA_H200)
    winners = [sample.trial(), sample.trial(sample.shape(4096), default_config=default_config)]
    sweep = sample.sweep(sample.shape())
    found = read_recordings(IMPLEMENTATION, [sweep, winners])
    assert [each.timed for each in found] == [len({trial.config for trial in sweep}), 2]
    assert read_recordings(IMPLEMENTATION, [winners, sweep]) == found


@pytest.mark.parametrize(
    "change",
    [{"executor": "replay"}, {"policy": Policy("eager", "warm")}, {"conditions": Conditions(contended=True)}],
    ids=str,
)
def test_only_what_a_gpu_measured_by_itself_and_as_usual_counts(change: dict[str, Any]) -> None:
    assert read_recordings(IMPLEMENTATION, [[sample.trial(**change)]]) == []


def test_an_implementation_is_behind_the_best_of_a_race_that_both_were_in() -> None:
    first, second = lengths({A: 1.0}, {A: 1.0})
    own = [replace(first, races={"1": 110.0, "2": 80.0}), replace(second, races={"3": 110.0})]
    rivals = [replace(first, races={"1": 100.0}), replace(second, races={"4": 50.0})]
    assert find_behind(own, rivals) == {(first.shape, first.device): pytest.approx(0.1)}
    assert find_behind([replace(first, races={"1": 90.0})], rivals) == {(first.shape, first.device): 0.0}
    newest = [*rivals, replace(first, races={"2": 40.0})]
    assert find_behind(own, newest) == {(first.shape, first.device): 1.0}
    rows = assign(IMPLEMENTATION, own, find_behind(own, rivals))
    assert [row.behind for row in rows] == [pytest.approx(0.1), None]


def test_a_recording_knows_the_least_time_of_each_race_of_all_tables() -> None:
    sweep = [sample.trial(race_id="1", timing=sample.timing(median)) for median in (120.0, 90.0)]
    failed = sample.trial(race_id="2", status=Status.WRONG_RESULT, timing=sample.timing(1.0))
    winners = [sample.trial(race_id="2", timing=sample.timing(130.0)), failed]
    (found,) = read_recordings(IMPLEMENTATION, [sweep, winners])
    assert found.races == {"1": 90.0, "2": 130.0}
