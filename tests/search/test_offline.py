"""What a machine without a GPU can confirm: configs compile for the device, and the winner's numbers are right."""

from dataclasses import replace

import pytest

from autotune.correctness import Verdict
from autotune.device import NVIDIA_H200
from autotune.executor.select import Settings
from autotune.search import Confirmation, compile_all, confirm, offline
from autotune.trial import Outcome, Status
from tests.executor.faulty import OPERATION, SHAPE, UNLOADABLE, config


def test_configs_compile_in_the_order_given() -> None:
    wanted = [config(compile=fault) for fault in ("huge", "fine", "raise", "exit", "fine")]
    outcomes = compile_all(OPERATION, SHAPE, NVIDIA_H200, wanted)
    assert [outcome.config for outcome in outcomes] == wanted
    assert [outcome.status for outcome in outcomes] == [
        *(Status.OUT_OF_RESOURCES, Status.OK, Status.COMPILE_ERROR, Status.COMPILE_ERROR, Status.OK),
    ]


def test_compilers_that_cannot_start_are_an_outcome() -> None:
    (outcome,) = compile_all(UNLOADABLE, SHAPE, NVIDIA_H200, [config()])
    assert outcome.status is Status.COMPILE_ERROR
    assert "the compilers do not work: exit status 1" in outcome.message
    assert "NO_SUCH_KERNEL" in outcome.message


def test_compilers_that_stay_silent_are_an_outcome() -> None:
    settings = Settings(jobs=1, compile_seconds=0.1)
    outcomes = compile_all(OPERATION, SHAPE, NVIDIA_H200, [config(compile="hang"), config()], settings)
    assert outcomes[0].status is Status.COMPILE_TIMEOUT


def test_a_confirmation_compiles_and_checks() -> None:
    confirmation = confirm(OPERATION, SHAPE, NVIDIA_H200, [config(), config(compile="huge")], config())
    assert confirmation is not None
    assert [outcome.status for outcome in confirmation.compiled] == [Status.OK, Status.OUT_OF_RESOURCES]
    assert (confirmation.verdict.status, confirmation.dtype) == (Status.OK, "float16")


def test_nothing_is_compiled_or_checked_of_what_compiles_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was tried")

    for name in ("CompilePool", "check_interpreted"):
        monkeypatch.setattr(offline, name, refuse)
    in_place = replace(OPERATION, compiles_ahead=False)
    assert compile_all(in_place, SHAPE, NVIDIA_H200, [config()]) == []
    assert confirm(in_place, SHAPE, NVIDIA_H200, [config()], config()) is None
    with pytest.raises(AssertionError, match="it was tried"):
        confirm(OPERATION, SHAPE, NVIDIA_H200, [config()], config())


@pytest.mark.parametrize(
    ("compiled", "numbers", "holds"),
    [
        ((Status.OK, Status.OK), Status.OK, True),
        ((Status.OK, Status.OUT_OF_RESOURCES), Status.OK, False),
        ((Status.OK,), Status.WRONG_RESULT, False),
    ],
)
def test_a_confirmation_holds_only_if_everything_does(
    compiled: tuple[Status, ...], numbers: Status, holds: bool
) -> None:
    outcomes = tuple(Outcome(config=config(), status=status) for status in compiled)
    assert Confirmation(outcomes, Verdict(numbers), "float16").holds == holds
