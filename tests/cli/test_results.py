"""A search's result as text and as plain data."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.cli.results import ending_line, interruption_line, result_data, result_lines
from autotune.console.winners import verdict, winner_lines
from autotune.search import Ending, ImplementationResult, SearchResult
from autotune.search_spaces.flash_attention.operation import OPERATION
from autotune.space import Config
from autotune.trial import Stage, Status, Timing, Trial
from tests import sample
from tests.golden import assert_golden


def part(name: str = "triton", best: Trial | None = None, **changes: Any) -> ImplementationResult:
    """The part of an implementation in a search."""
    counts = {"statuses": {Status.OK: 3}, "valid": 362, "measured": 3, **changes}
    return ImplementationResult(implementation=name, best_screened=best, **counts)


def found(
    *ties: Trial, best: Trial | None = None, others: Sequence[ImplementationResult] = (), **changes: Any
) -> SearchResult:
    """The result of a search whose race the first of these won."""
    counts = {name: changes.pop(name) for name in ("statuses", "measured", "resumed") if name in changes}
    fields: dict[str, Any] = {
        "operation": OPERATION,
        "shape": sample.shape(),
        "winner": next(iter(ties), None),
        "ties": ties,
        "best_screened": best,
        "implementations": (part(best=best, **counts), *others),
        "seconds": 1.5,
        "ending": Ending.TRIALS,
        "recorded": (*ties, *([best] if best else [])),
    }
    return SearchResult(**{**fields, **changes})


def screened(chosen: Config = sample.FAST, **changes: Any) -> Trial:
    return sample.trial(chosen=chosen, stage=Stage.SCREEN, race_id="", baseline="", baseline_timing=None, **changes)


DEFAULT_WON = sample.trial(is_default=True, default_timing=sample.timing(200), baseline="", baseline_timing=None)
CUT_SHORT: Final[dict[str, dict[str, Any]]] = {
    "trials": {"measured": 1},
    "resumed": {"resumed": 30},
    "seconds": {"ending": Ending.SECONDS},
    "interrupted": {"ending": Ending.INTERRUPTED},
}
FINISHED: Final[dict[str, dict[str, Any]]] = {
    "converged": {"ending": Ending.CONVERGED},
    "exhausted": {"ending": Ending.EXHAUSTED},
    "as many trials as configs": {"measured": 300, "resumed": 62},
}
OTHER: Final = sample.trial(chosen=sample.config(num_warps=4))
REPLAYED: Final = sample.trial(executor="replay", baseline="", baseline_timing=None)
SKIPPED: Final = part("flex", skipped="of flex nothing is recorded", statuses={}, valid=0, measured=0)
RESULTS: Final[dict[str, SearchResult]] = {
    **{f"a default, {name}": found(DEFAULT_WON, **changes) for name, changes in (CUT_SHORT | FINISHED).items()},
    **{
        f"a default after few trials, baseline of {time} us": found(
            sample.trial(is_default=True, baseline_timing=sample.timing(time))
        )
        for time in (220, 160, 201)
    },
    "a gain": found(sample.trial()),
    "the best of the screening tied": found(sample.trial(), OTHER, best=OTHER),
    "the best of the screening lost": found(sample.trial(), best=OTHER),
    "the best of the screening was not raced": found(sample.trial(), best=screened(sample.config(num_warps=4))),
    "a replay without a recorded race": found(REPLAYED, best=screened()),
    "nothing measured": found(sample.trial(), measured=0, resumed=1),
    "of two implementations": found(sample.trial(), OTHER, best=OTHER, others=[part("flex", valid=128, measured=1)]),
    "of two, one skipped": found(sample.trial(), OTHER, best=OTHER, others=[SKIPPED]),
}
INTERRUPTED: Final = {
    "nothing": found(),
    "a screening": found(best=screened()),
    "a race": found(sample.trial()),
    "a screening of two implementations": found(best=screened(), others=[part("flex")]),
}


def test_golden() -> None:
    parts = ["\n".join([f"# {name}", ending_line(each), *result_lines(each)]) for name, each in RESULTS.items()]
    parts.append("\n".join(["# not the shape asked for", *result_lines(found(sample.trial()), is_asked=False)]))
    parts += [f"# interrupted after {name}\n{interruption_line(each)}" for name, each in INTERRUPTED.items()]
    assert_golden(Path(__file__).parent / "golden" / "results.txt", "\n\n".join(parts))


@pytest.mark.parametrize("changes", CUT_SHORT.values(), ids=CUT_SHORT)
def test_a_search_that_was_cut_short_does_not_conclude_that_tuning_gains_nothing(changes: dict[str, Any]) -> None:
    result = found(DEFAULT_WON, **changes)
    assert "gains nothing" not in result_data(result)["verdict"]
    assert result_lines(result)[-1] == f"verdict   {result_data(result)['verdict']}"


@pytest.mark.parametrize("changes", FINISHED.values(), ids=FINISHED)
def test_a_search_that_ran_its_course_concludes_that_tuning_gains_nothing(changes: dict[str, Any]) -> None:
    assert "gains nothing" in result_data(found(DEFAULT_WON, **changes))["verdict"]


def test_a_gain_is_worth_using_however_few_configs_were_tried() -> None:
    assert result_data(found(sample.trial()))["verdict"] == verdict(sample.trial())


def test_the_best_by_screening_is_always_in_the_data() -> None:
    fastest = screened(timing=Timing(200.0, 199.0, 201.0, 15))
    best = result_data(found(best=fastest, ending=Ending.INTERRUPTED))["best"]
    assert best == {
        "implementation": "triton",
        "config": {"BLOCK_Q": 128, "BLOCK_K": 128, "num_warps": 8, "num_stages": 2, "loads": "descriptor"},
        "timing": {"median_us": 200.0, "low_us": 199.0, "high_us": 201.0, "samples": 15},
        "stage": "screen",
    }
    assert result_data(found(sample.trial(), best=fastest))["best"] == best
    assert result_data(found())["best"] is None


def test_only_a_replay_without_a_recorded_race_lacks_its_baseline() -> None:
    note = "baseline  not known"
    assert any(line.startswith(note) for line in result_lines(found(REPLAYED, best=screened())))
    raced = replace(REPLAYED, outcome=replace(REPLAYED.outcome, timing=sample.timing(201)))  # not the screening's time
    for other in (sample.trial(executor="replay"), replace(REPLAYED, executor="gpu"), raced):
        assert not any(line.startswith(note) for line in result_lines(found(other, best=screened())))


def test_a_winner_that_screening_did_not_put_first_was_chosen_in_the_race() -> None:
    winner, plain = sample.trial(), winner_lines(sample.trial())
    assert result_lines(found(winner, OTHER, best=winner)) == plain
    assert result_lines(found(winner, best=None)) == plain
    first, chosen, *others = result_lines(found(winner, OTHER, best=OTHER))
    assert [first, *others] == plain
    assert chosen.split()[0] == "chosen"


def test_the_winner_of_several_implementations_is_named_with_its_own() -> None:
    several = found(sample.trial(), OTHER, best=OTHER, others=[part("flex")])
    winner, chosen, *_ = result_lines(several)
    assert winner == f"winner    triton {sample.FAST}"
    assert chosen.endswith(f": triton {OTHER.config}")
    alone = found(sample.trial(), OTHER, best=OTHER, others=[SKIPPED])
    assert result_lines(alone)[0] == f"winner    {sample.FAST}"
    assert [each["skipped"] for each in result_data(alone)["implementations"]] == ["", SKIPPED.skipped]


def test_one_config_of_two_implementations_is_two_candidates() -> None:
    twin = screened(implementation="flex")
    line = result_lines(found(sample.trial(), best=twin, others=[part("flex")]))[1]
    chosen = "chosen    in the race, alone at the front; the best of the screening was not in it"
    assert line == f"{chosen}: flex {sample.FAST}"


def test_the_verdict_on_a_shape_that_was_not_asked_for_names_it() -> None:
    result = found(sample.trial(), best=None)
    prefix = f"of {sample.shape()}, not of the shape asked for: "
    assert result_lines(result, is_asked=False)[-1] == f"verdict   {prefix}{verdict(sample.trial())}"
    assert result_data(result, is_asked=False)["verdict"] == prefix + verdict(sample.trial())


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_result_as_data_is_json(interrupted: bool) -> None:
    result = found(
        *([] if interrupted else [sample.trial()]),
        statuses={Status.OK: 3, Status.SLOW: 1},
        measured=4,
        resumed=2,
        ending=Ending.INTERRUPTED if interrupted else Ending.TRIALS,
        contended=2,
    )
    data = json.loads(json.dumps(result_data(result)))
    assert (data["operation"], data["shape"]["seq_q"]) == ("flash_attention", 1024)
    assert data["statuses"] == {"ok": 3, "slow": 1}
    assert (data["measured"], data["resumed"], data["seconds"], data["interrupted"]) == (4, 2, 1.5, interrupted)
    assert (data["ending"], data["contended"], data["valid"]) == (result.ending.value, 2, 362)
    assert data["implementations"] == [
        {"implementation": "triton", "skipped": "", "valid": 362, "measured": 4, "resumed": 2}
    ]
    assert all(tie["implementation"] == "triton" and tie["config"]["BLOCK_Q"] == 128 for tie in data["ties"])
    assert (data["winner"] is None) == (data["verdict"] is None) == (data["ties"] == []) == interrupted
