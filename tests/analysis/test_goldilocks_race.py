"""Points on a GPU in the real race, whose worker follows a script: a config that takes it along costs no other."""

from autotune.analysis.goldilocks_gpu import GpuBench
from autotune.comparison import OURS
from autotune.executor import Baselines, Race, racing
from autotune.executor.child import ChildDiedError
from autotune.space import Config
from tests.analysis.test_goldilocks import DENSE, FLASH, Laboratory
from tests.executor.fake_keeper import FakeKeeper, Step, extra_bytes, finish, working_on


def test_a_config_that_dies_in_the_race_is_a_point_and_the_others_keep_their_memory() -> None:
    death: list[Step] = [working_on(0), working_on(1), ChildDiedError("exit status 9")]
    keeper = FakeKeeper([death, [finish]])

    class RealRaces(Laboratory):
        def race(self, configs: list[Config], *, seconds: float, baselines: Baselines = "fastest") -> Race:
            return racing.race(keeper, configs, seconds=seconds, baselines=baselines, patience=1.0)  # type: ignore[arg-type]

    bench = GpuBench(RealRaces(), FLASH, DENSE, ["eager"])
    first = next(point for point in bench.first if point["implementation"] == OURS)
    eager = next(point for point in bench.first if point["implementation"] == "eager")
    points = [Config({**first, "num_stages": stages}) for stages in (2, 3, 4)]
    found = list(bench.measure([*points, eager]))
    assert [each.point for each in found] == [*points, eager]
    assert [each.message for each in found] == ["", "worker_died: exit status 9", "", ""]
    raced = [Config(config) for config in keeper.requests[0]["configs"]]
    assert [each.extra_bytes for each in found[:3]] == [extra_bytes(raced[0]), None, extra_bytes(raced[2])]
