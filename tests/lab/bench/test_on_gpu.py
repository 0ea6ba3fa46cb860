"""A comparison on a GPU, over an executor that measures nothing: its entries, and what is kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200, Device
from autotune.executor import Baselines, Race, is_comparison
from autotune.executor.child import ChildDiedError
from autotune.executor.messages import WorkingOn
from autotune.executor.recovery import race_with_recovery
from autotune.lab.bench import races
from autotune.lab.bench.comparison import Comparison
from autotune.lab.bench.races import compare_on_gpu
from autotune.operation import Operation
from autotune.registry import get_implementation
from autotune.search_spaces.flash_attention.operation import OPERATION
from autotune.shape import AttentionShape, Shape
from autotune.trial import Candidate, Policy, Toolchain
from tests.executor.fake_keeper import CONDITIONS, FakeKeeper, Step, extra_bytes, finish

SHAPE = AttentionShape(batch=1, heads=2, seq_q=500, head_dim=64, causal=True)


def default_of(name: str) -> Candidate:
    return Candidate(name, get_implementation("flash_attention", name).space.default(SHAPE, NVIDIA_H200))


def other_of(name: str) -> Candidate:
    """A candidate that is not the default."""
    configs = get_implementation("flash_attention", name).space.configs(SHAPE, NVIDIA_H200)
    return next(other for config in configs if (other := Candidate(name, config)) != default_of(name))


DEFAULT, SERVED = default_of("triton"), other_of("triton")
DEATH = ChildDiedError("exit status 9")


@dataclass
class Laboratory:
    """An executor whose worker follows scripts, a race after the other."""

    keeper: FakeKeeper
    name: str = "gpu"
    device: Device = NVIDIA_H200
    toolchain: Toolchain = field(default_factory=lambda: Toolchain("0"))
    policy: Policy = field(default_factory=Policy)
    opened: list[tuple[str, Shape]] = field(default_factory=list)

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        self.opened.append((operation.name, shape))

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        assert is_comparison(baselines)
        keeper: Any = self.keeper
        return race_with_recovery(
            keeper, candidates, seconds=seconds, baselines=baselines, patience=lambda candidate: 1.0
        )


def compare(
    monkeypatch: pytest.MonkeyPatch,
    *scripts: Sequence[Step],
    served: Candidate = SERVED,
    names: Sequence[str] = ("naive",),
) -> tuple[Comparison, Laboratory]:
    kernel = SimpleNamespace(candidate=served, provenance=SimpleNamespace(reason="tuned for this shape"))
    picks = {NVIDIA_H200: kernel}  # asked by the device, since a name stands for its highest power cap
    monkeypatch.setattr(races, "pick_for_device", lambda shape, device, *_, **__: picks[device])
    laboratory = Laboratory(FakeKeeper(list(scripts)))
    return compare_on_gpu(laboratory, OPERATION, SHAPE, names, seconds=3.0), laboratory  # type: ignore[arg-type]


def test_the_served_kernel_the_default_and_baselines_stand_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    found, laboratory = compare(monkeypatch, [finish], names=["naive", "flex"])
    assert [(entry.name, entry.candidate) for entry in found.entries] == [
        ("autotune", SERVED),
        ("autotune default", DEFAULT),
        ("naive", None),
        ("flex", None),
    ]
    assert found.timed == found.entries
    assert [entry.extra_bytes for entry in found.entries[:2]] == [
        extra_bytes(SERVED.config),
        extra_bytes(DEFAULT.config),
    ]
    assert laboratory.opened == [("flash_attention", SHAPE)]
    (request,) = laboratory.keeper.requests
    assert (request.seconds, request.baselines) == (3.0, ("naive", "flex"))


@pytest.mark.parametrize("name", ["triton", "flex"])
def test_the_default_is_of_the_implementation_that_is_served(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found, _ = compare(monkeypatch, [finish], served=other_of(name))
    assert [entry.candidate for entry in found.entries[:2]] == [other_of(name), default_of(name)]


def test_where_when_and_under_which_conditions_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = datetime.now(UTC)
    found, _ = compare(monkeypatch, [finish])
    assert found.served is not None
    assert (found.served.candidate, found.reason) == (SERVED, "tuned for this shape")
    assert (found.device, found.gpu, found.conditions) == ("NVIDIA H200", NVIDIA_H200, CONDITIONS)
    assert found.started_at is not None
    assert before <= found.started_at <= datetime.now(UTC)


def test_a_default_that_dies_is_in_the_comparison_and_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = compare(monkeypatch, [WorkingOn(0), WorkingOn(1), DEATH], [WorkingOn(0), finish])
    served, default, naive = found.entries
    assert (default.name, default.candidate, default.timing) == ("autotune default", DEFAULT, None)
    assert default.message == "worker_died: exit status 9"
    assert (served.extra_bytes, default.extra_bytes) == (extra_bytes(SERVED.config), None)
    assert [entry.name for entry in found.timed] == ["autotune", "naive"]
    assert naive.timing is not None


def test_a_served_default_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = compare(monkeypatch, [finish], served=DEFAULT)
    assert [entry.name for entry in found.entries] == ["autotune", "naive"]


def test_baselines_of_a_race_that_was_lost_before_any_turn_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = compare(monkeypatch, [WorkingOn("naive"), WorkingOn(None), DEATH], [finish])
    assert [(entry.name, entry.message) for entry in found.entries] == [
        ("autotune", ""),
        ("autotune default", ""),
        ("naive", "the race was lost before its turn"),
    ]


def test_a_served_kernel_that_dies_says_how_and_the_others_keep_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = compare(monkeypatch, [WorkingOn(0), DEATH], [finish])
    served, default, naive = found.entries
    assert served is found.served
    assert (served.name, served.candidate, served.timing) == ("autotune", SERVED, None)
    assert served.message == "worker_died: exit status 9"
    assert found.timed == (default, naive)
    assert (default.candidate, default.extra_bytes) == (DEFAULT, extra_bytes(DEFAULT.config))
    assert found.conditions == CONDITIONS


def test_where_the_served_kernel_is_all_there_is_its_death_is_a_comparison_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = compare(monkeypatch, [WorkingOn(0), DEATH], served=DEFAULT)
    assert [(entry.name, entry.message) for entry in found.entries] == [
        ("autotune", "worker_died: exit status 9"),
        ("naive", "the race was lost before its turn"),
    ]
    assert (found.timed, found.conditions) == ((), None)
