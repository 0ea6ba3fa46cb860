"""Points on a GPU in the real race, whose worker follows a script: a config that takes it along costs no other."""

from typing import Any

from autotune.executor import Baselines, Race
from autotune.executor.child import ChildDiedError
from autotune.executor.messages import WorkingOn
from autotune.executor.recovery import race_with_recovery
from autotune.lab.bench.comparison import OURS
from autotune.lab.goldilocks.gpu_bench import GpuBench
from autotune.space import Config
from autotune.trial import Candidate
from tests.executor.fake_keeper import FakeKeeper, Step, extra_bytes, finish
from tests.lab.goldilocks.test_exploration import DENSE, FLASH, Laboratory


def test_a_config_that_dies_in_the_race_is_a_point_and_the_others_keep_their_memory() -> None:
    death: list[Step] = [WorkingOn(0), WorkingOn(1), ChildDiedError("exit status 9")]
    keeper: Any = FakeKeeper([death, [finish]])

    class RealRaces(Laboratory):
        def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
            return race_with_recovery(
                keeper, candidates, seconds=seconds, baselines=baselines, patience=lambda candidate: 1.0
            )

    bench = GpuBench(RealRaces(), FLASH, DENSE, ["eager"])
    first = next(point for point in bench.first if point["implementation"] == OURS)
    eager = next(point for point in bench.first if point["implementation"] == "eager")
    points = [Config({**first, "num_stages": stages}) for stages in (2, 3, 4)]
    found = list(bench.measure([*points, eager]))
    assert [each.point for each in found] == [*points, eager]
    assert [each.message for each in found] == ["", "worker_died: exit status 9", "", ""]
    raced = [candidate.config for candidate in keeper.requests[0].candidates]
    assert [each.extra_bytes for each in found[:3]] == [extra_bytes(raced[0]), None, extra_bytes(raced[2])]
