"""A budget that is too short is said so before a search begins, and nothing is refused that could be held."""

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import SearchError
from autotune.registry import get_operation
from autotune.search import Limits
from autotune.search.budget import LeastSearch, check_budget, least_search
from autotune.shape import AttentionShape

LEAST = LeastSearch(warm=0.5, cold=3.5)
ATTENTION = get_operation("flash_attention")


@pytest.mark.parametrize("seconds", [None, 60.0, 15.0])
def test_a_budget_that_holds_a_search_says_nothing(seconds: float | None) -> None:
    assert check_budget(Limits(seconds=seconds), LEAST, 4.0) == ""


def test_a_budget_that_holds_it_only_with_a_warm_cache_says_so() -> None:
    said = check_budget(Limits(seconds=6.0), LEAST, 4.0)
    assert said == (
        "2.0 s are left of 6 s, and to check and race what is served takes 0.5 s at least, "
        "3.5 s where nothing is compiled yet"
    )


@pytest.mark.parametrize(("seconds", "elapsed", "enough"), [(4.0, 3.8, 10), (4.0, 12.0, 18)])
def test_a_budget_that_start_up_took_is_refused_with_what_holds_it(seconds: float, elapsed: float, enough: int) -> None:
    with pytest.raises(SearchError) as refused:
        check_budget(Limits(seconds=seconds), LEAST, elapsed)
    assert str(refused.value) == (
        f"the budget of {seconds:g} s cannot hold a race: {elapsed:.1f} s went to starting up, and to check and race "
        f"what is served takes 0.5 s at least, 3.5 s where nothing is compiled yet; give it at least {enough} s"
    )
    assert check_budget(Limits(seconds=enough), LEAST, elapsed) == ""


@pytest.mark.parametrize(("least", "enough"), [(None, 3), (LEAST, 14)])
def test_a_budget_that_its_race_takes_whole_is_refused(least: LeastSearch | None, enough: int) -> None:
    with pytest.raises(SearchError, match=f"2 s are kept for its race; give it at least {enough} s"):
        check_budget(Limits(seconds=2.0), least, 4.0)
    assert check_budget(Limits(seconds=enough), least, 4.0) == ""


def test_a_replay_has_no_start_to_wait_for() -> None:
    assert check_budget(Limits(seconds=3.0), None, 100.0) == ""


def test_a_long_launch_makes_the_least_race_long() -> None:
    shapes = [AttentionShape(batch=batch, heads=32, seq_q=32768, head_dim=128) for batch in (1, 64)]
    short, long = (least_search(ATTENTION, shape, NVIDIA_H200, defaults=1) for shape in shapes)
    flops = ATTENTION.cost(shapes[1]).flops
    assert long.warm == pytest.approx(0.25 + 15 * 2 * flops / 989.5e12)  # 15 rounds of two at the data sheet's rate
    assert long.warm > short.warm
    assert long.cold - long.warm == pytest.approx(short.cold - short.warm) != 0.0
