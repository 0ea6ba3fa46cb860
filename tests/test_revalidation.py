"""Winners of an older toolchain are raced again with the few behind them, and stamped, replaced or kept."""

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel, reload
from autotune.errors import SearchError
from autotune.executor import Baselines, Race
from autotune.operation import Operation
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Candidate, Conditions, Outcome, Policy, Status, Toolchain, Trial
from autotune.tuning.revalidation import Revalidated, find_outdated, revalidate
from tests import sample
from tests.dispatch.tables import SLOWER, THIRD, Tables, served_from

NEWER: Final = dataclasses.replace(sample.TOOLCHAIN, triton="3.9.0", ptxas="13.0.1")
FOURTH: Final = sample.config(num_stages=3)


class NewerGpu:
    """An H200 with a newer toolchain, on which each config takes the time that the test says, 300 us by default."""

    name = "gpu"
    device = NVIDIA_H200
    toolchain = NEWER
    policy = Policy()
    capacity = 4
    worker = "host:2"

    def __init__(self, times: dict[Config, float | Status], *, contended: bool = False) -> None:
        self.times, self.contended = times, contended
        self.reached: dict[str, float] = {}
        self.raced: list[tuple[Shape, list[Candidate]]] = []
        self.queue: deque[Candidate] = deque()
        self.shape: Shape

    def toolchain_of(self, implementation: str) -> Toolchain:
        return self.toolchain

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        self.shape = shape

    def submit(self, candidate: Candidate) -> None:
        self.queue.append(candidate)

    def collect(self, timeout: float | None = None) -> Outcome | None:
        return self._outcome(self.queue.popleft())

    def expect_problem(
        self, operation: Operation[Any], shape: Shape, candidates: Sequence[Candidate], *, every_output: bool = False
    ) -> None: ...

    def expect_race(self, candidates: Sequence[Candidate], *, is_near: bool) -> None: ...

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        self.raced.append((self.shape, candidates))
        return Race(tuple(map(self._outcome, candidates)))

    def _outcome(self, candidate: Candidate) -> Outcome:
        found = self.times.get(candidate.config, 300.0)
        conditions = Conditions(contended=self.contended)
        if isinstance(found, Status):
            return Outcome(candidate=candidate, status=found, message="refused", conditions=conditions)
        return Outcome(candidate=candidate, status=Status.OK, timing=sample.timing(found), conditions=conditions)

    def close(self) -> None:
        pass


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    with served_from(Tables(tmp_path)) as found:
        yield found


def race(**times: float) -> list[Trial]:
    """The race that a search left: the winner, and those behind it."""
    configs = {"fast": sample.FAST, "slower": SLOWER, "third": THIRD, "fourth": FOURTH}
    return [
        sample.trial(chosen=configs[name], timing=sample.timing(median), number=place)
        for place, (name, median) in enumerate(times.items())
    ]


def run(tables: Tables, gpu: NewerGpu, **options: Any) -> list[Revalidated]:
    store = Store(tables.home)
    return revalidate(find_outdated(gpu.device, gpu.policy, gpu.toolchain_of, store), gpu, store, **options)


def test_a_winner_that_wins_again_is_stamped_and_not_raced_a_third_time(tables: Tables) -> None:
    Store(tables.home).append(race(fast=200.0, slower=210.0, third=220.0, fourth=230.0))
    gpu = NewerGpu({sample.FAST: 190.0})
    (found,) = run(tables, gpu)
    assert (found.verdict, found.loss) == ("stamped", 0.0)
    assert found.outdated.differs == "triton 3.6.0 then, 3.9.0 now; ptxas 12.8.93 then, 13.0.1 now"
    ((_, candidates),) = gpu.raced
    default = IMPLEMENTATION.space.default(sample.shape(), NVIDIA_H200)
    assert [each.config for each in candidates] == [sample.FAST, SLOWER, THIRD, default]
    (served,) = Store(tables.home).winners("flash_attention")
    assert (served.toolchain, served.timing and served.timing.median_us) == (NEWER, 190.0)
    assert served.source_hash == IMPLEMENTATION.source_hash
    assert run(tables, gpu) == []


def test_a_winner_that_loses_is_replaced_and_its_row_stays(tables: Tables) -> None:
    Store(tables.home).append(race(fast=200.0, slower=210.0))
    (found,) = run(tables, NewerGpu({sample.FAST: 220.0, SLOWER: 200.0}))
    assert found.verdict == "replaced"
    assert found.loss == pytest.approx(0.1)
    assert get_kernel(sample.shape(), device="NVIDIA H200").config == SLOWER
    assert {trial.toolchain for trial in Store(tables.home).trials("flash_attention")} == {sample.TOOLCHAIN, NEWER}


def test_a_winner_that_the_new_toolchain_refuses_is_replaced(tables: Tables) -> None:
    Store(tables.home).append(race(fast=200.0, slower=210.0))
    (found,) = run(tables, NewerGpu({sample.FAST: Status.OUT_OF_RESOURCES, SLOWER: 200.0}))
    assert (found.verdict, found.loss) == ("replaced", None)
    assert get_kernel(sample.shape(), device="NVIDIA H200").config == SLOWER


@pytest.mark.parametrize("is_contended", [True, False])
def test_a_race_that_decides_nothing_keeps_the_winner(tables: Tables, is_contended: bool) -> None:
    Store(tables.home).append(race(fast=200.0, slower=210.0))
    default = IMPLEMENTATION.space.default(sample.shape(), NVIDIA_H200)
    times: dict[Config, float | Status] = dict.fromkeys((sample.FAST, SLOWER, default), Status.COMPILE_ERROR)
    gpu = NewerGpu({SLOWER: 100.0}, contended=True) if is_contended else NewerGpu(times)
    (found,) = run(tables, gpu)
    assert (found.verdict, found.winner) == ("kept", None)
    assert ("another process" if is_contended else "compile_error refused") in found.failure
    assert get_kernel(sample.shape(), device="NVIDIA H200").config == sample.FAST


def test_a_problem_that_cannot_be_opened_keeps_its_winner_and_the_others_are_raced(tables: Tables) -> None:
    class SmallGpu(NewerGpu):
        def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
            if self.shape == sample.shape(4096):
                raise SearchError("the inputs of flash_attention cannot be made on this GPU: out of memory")
            return super().race(candidates, seconds=seconds, baselines=baselines)

    shapes = [sample.shape(4096), sample.shape(1024)]
    Store(tables.home).append([sample.trial(each, race_id=str(each)) for each in shapes])
    found = {each.outdated.shape: each for each in run(tables, SmallGpu({sample.FAST: 100.0}))}
    assert found[sample.shape(1024)].verdict == "stamped"
    assert found[sample.shape(4096)].verdict == "kept"
    assert "out of memory" in found[sample.shape(4096)].failure


def test_shipped_winners_are_raced_again_and_others_are_not(tables: Tables) -> None:
    tables.ship(sample.trial(), sample.trial(sample.shape(4096), toolchain=NEWER))
    other = dataclasses.replace(NVIDIA_H200, power_cap_watts=500)
    tables.tune(sample.trial(sample.shape(512), device=other))
    tables.tune(sample.trial(sample.shape(2048), executor="replay"))
    tables.tune(sample.trial(sample.shape(256), policy=Policy("eager", "warm")))
    gpu = NewerGpu({sample.FAST: 190.0})
    assert [found.outdated.shape for found in run(tables, gpu)] == [sample.shape()]
    reload()
    assert get_kernel(sample.shape(), device="NVIDIA H200").provenance.origin == "user"


def test_another_source_counts_as_outdated(tables: Tables) -> None:
    tables.tune(sample.trial(source_hash="cd" * 32, toolchain=NEWER))
    gpu = NewerGpu({sample.FAST: 190.0})
    (found,) = find_outdated(gpu.device, gpu.policy, gpu.toolchain_of, Store(tables.home))
    assert found.differs == "another source"


def test_so_many_are_raced_as_asked_for(tables: Tables) -> None:
    Store(tables.home).append(race(fast=200.0, slower=210.0, third=220.0, fourth=230.0))
    gpu = NewerGpu({})
    run(tables, gpu, top=1)
    default = IMPLEMENTATION.space.default(sample.shape(), NVIDIA_H200)
    assert [each.config for each in gpu.raced[0][1]] == [sample.FAST, default]
