"""Without a GPU, candidates are compiled for the device, and the winner's numbers are checked."""

import os
from pathlib import Path

import pytest

from autotune import platforms
from autotune.correctness import Verdict
from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.executor import compile_pool
from autotune.executor.select import Settings
from autotune.registry import get_implementation, get_operation
from autotune.search import Confirmation, Ending, SearchResult, compile_all, confirm, finalists_for, offline
from autotune.trial import Candidate, Outcome, Status
from tests import sample
from tests.executor.faulty import OPERATION, SHAPE, candidate


def test_configs_compile_in_the_order_given() -> None:
    wanted = [candidate(compile=fault) for fault in ("huge", "fine", "raise", "exit", "fine")]
    outcomes = compile_all(OPERATION, SHAPE, NVIDIA_H200, wanted)
    assert [outcome.candidate for outcome in outcomes] == wanted
    assert [outcome.status for outcome in outcomes] == [
        *(Status.OUT_OF_RESOURCES, Status.OK, Status.COMPILE_ERROR, Status.COMPILE_ERROR, Status.OK),
    ]


@pytest.mark.slow
def test_a_kernel_that_hangs_its_compiler_is_an_outcome() -> None:
    settings = Settings(jobs=1, compile_seconds=0.1)
    outcomes = compile_all(OPERATION, SHAPE, NVIDIA_H200, [candidate(compile="hang")], settings)
    assert outcomes[0].status is Status.COMPILE_TIMEOUT


@pytest.mark.slow
def test_compilers_that_do_not_work_here_refute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an interpreter that gives no verdict: the message says why nothing was checked."""

    def refuse(*_: object, **__: object) -> None:
        raise MissingDependencyError("ptxas hangs")

    for name in ("compile_all", "check_interpreted"):
        with monkeypatch.context() as patch:
            patch.setattr(offline, name, refuse)
            confirmation = confirm(OPERATION, SHAPE, NVIDIA_H200, [candidate()], candidate())
        assert confirmation is not None
        assert (confirmation.verdict, confirmation.unchecked, confirmation.holds) == (None, "ptxas hangs", True)


@pytest.mark.parametrize(("wanted", "quota", "jobs"), [(None, "max", 5), (None, "300000", 2), (4, "300000", 4)])
def test_compilers_are_as_many_as_the_process_has_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: int | None, quota: str, jobs: int
) -> None:
    """All but one of those that it may run on, as far as its cgroup lets it, of however many the machine has."""
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    monkeypatch.setattr(compile_pool, "CGROUP", tmp_path)
    monkeypatch.setattr(compile_pool, "MEMORY_FILE", tmp_path / "none")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    asked: list[int] = []

    class Pool:
        def __init__(self, device: object, *, jobs: int, timeout: float) -> None:
            asked.append(jobs)

        def open(self, *_: object) -> None:
            raise MissingDependencyError("enough")

        def close(self) -> None:
            pass

    monkeypatch.setattr(offline, "CompilePool", Pool)
    with pytest.raises(MissingDependencyError, match="enough"):
        compile_all(OPERATION, SHAPE, NVIDIA_H200, [candidate()], Settings(jobs=wanted))
    assert asked == [jobs]


@pytest.mark.slow
def test_a_confirmation_compiles_and_checks() -> None:
    confirmation = confirm(OPERATION, SHAPE, NVIDIA_H200, [candidate(), candidate(compile="huge")], candidate())
    assert confirmation is not None
    assert [outcome.status for outcome in confirmation.compiled] == [Status.OK, Status.OUT_OF_RESOURCES]
    assert confirmation.verdict is not None
    assert (confirmation.verdict.status, confirmation.dtype) == (Status.OK, "float16")


def test_nothing_is_compiled_or_checked_of_what_compiles_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was tried")

    for name in ("CompilePool", "check_interpreted"):
        monkeypatch.setattr(offline, name, refuse)
    in_place = candidate("in_place")
    assert compile_all(OPERATION, SHAPE, NVIDIA_H200, [in_place]) == []
    assert confirm(OPERATION, SHAPE, NVIDIA_H200, [candidate(), in_place], in_place) is None
    with pytest.raises(AssertionError, match="it was tried"):
        confirm(OPERATION, SHAPE, NVIDIA_H200, [candidate()], candidate())


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
    outcomes = tuple(Outcome(candidate=candidate(), status=status) for status in compiled)
    assert Confirmation(outcomes, Verdict(numbers), "float16").holds == holds


@pytest.mark.parametrize(
    ("target", "names"), [("H100", {"gluon_hopper"}), ("A100", {"triton"}), ("gfx942", {"triton"})]
)
def test_finalists_for_another_device_are_of_what_it_supports(target: str, names: set[str]) -> None:
    """Of the Gluon kernel there are none without products of warp groups: the defaults of others of ours stand in."""
    shape = sample.shape()
    gluon = get_implementation("flash_attention", "gluon_hopper").space.default(shape, NVIDIA_H200)
    winner = sample.trial(shape, gluon, "gluon_hopper")
    result = SearchResult(
        operation=get_operation("flash_attention"),
        shape=shape,
        winner=winner,
        best_screened=winner,
        implementations=(),
        ending=Ending.TRIALS,
    )
    device = platforms.target_device(target)
    found = finalists_for(result, device)
    assert {each.implementation for each in found} == names
    for each in found:
        space = get_implementation("flash_attention", each.implementation).space
        assert space.why_invalid(each.config, shape, device) is None


def test_numbers_that_no_interpreter_computes_were_checked_where_they_were_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offline, "compile_all", lambda *_: [])
    gluon, shape = get_implementation("flash_attention", "gluon_hopper"), sample.shape()
    winner = Candidate(gluon.name, gluon.space.default(shape, NVIDIA_H200))
    found = confirm(get_operation("flash_attention"), shape, NVIDIA_H200, [winner], winner)
    assert found is not None
    assert found.holds
    assert found.checked == (
        "not here: Triton's interpreter cannot run flash_attention/gluon_hopper; its numbers were checked on the "
        "NVIDIA H200 that recorded it"
    )
