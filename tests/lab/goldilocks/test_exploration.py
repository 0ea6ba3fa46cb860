"""The findings of a study, against counting; points on a CPU; and what is asked of a GPU's executor."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from autotune.device import NVIDIA_H200, Device
from autotune.errors import UsageError
from autotune.executor import BaselineResult, Baselines, Race
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.lab.bench.comparison import OURS
from autotune.lab.goldilocks.cpu_bench import CpuBench
from autotune.lab.goldilocks.exploration import (
    PointBench,
    PointResult,
    at_precision,
    check_shape,
    explore,
    kv_bytes,
    logarithms,
    precisions,
)
from autotune.lab.goldilocks.gpu_bench import GpuBench, rounding_error
from autotune.lab.goldilocks.words import exploration_data, exploration_sheets
from autotune.operation import Operation
from autotune.registry import get_implementation, get_operation, load_definition
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Config, Parameter
from autotune.trial import Candidate, Outcome, Policy, Status, Timing, Toolchain

DENSE = AttentionShape(batch=1, heads=4, kv_heads=2, seq_q=32, head_dim=16)
CACHE = PagedShape(batch=2, heads=4, kv_heads=2, max_context=48, head_dim=16, page_size=16, dtype="float16")
FLASH = get_operation("flash_attention")
SPACE = get_implementation("flash_attention", "triton").space
DECODE = get_operation("paged_decode")
PAGED = load_definition("paged_decode")


def timing(microseconds: float) -> Timing:
    return Timing(microseconds, microseconds * 0.99, microseconds * 1.01, 15)


class Made(PointBench):
    """A bench whose points have values by formula; one implementation fails."""

    parameters = (
        Parameter("implementation", ("plain", "broken", OURS)),
        Parameter("precision", ("float32", "float16")),
        Parameter("block", (16, 32, 64, 128), only=("implementation", OURS)),
    )
    first = (Config(implementation=OURS, precision="float32", block=64),)
    absent = (("cudnn", "no GPU"),)
    device = "paper"
    batch = 3

    def reject(self, point: Config) -> str | None:
        return "too wide" if point["precision"] == "float32" and point["block"] == 128 else None

    def measure(self, points: Sequence[Config]) -> Iterator[PointResult]:
        for point in points:
            yield self.one(point)

    def one(self, point: Config) -> PointResult:
        if point["implementation"] == "broken":
            return PointResult(point, 100, message="it broke")
        is_half = point["precision"] == "float16"
        block = 32 if point["block"] is None else point.integer("block")
        microseconds = (100.0 if is_half else 180.0) * (1.0 + abs(math.log2(block) - 6))
        extra = 900 if point["implementation"] == "plain" else block
        return PointResult(point, 100, timing(microseconds), extra, 1e-3 if is_half else 0.0)


def objectives(measured: PointResult) -> tuple[float, float, float]:
    assert measured.objectives is not None
    return measured.objectives


def test_front_and_volume_are_what_counting_finds() -> None:
    found = explore(FLASH, DENSE, Made(), trials=50, seconds=60.0)
    assert found.size == len(found.measured) == 2 * 2 + 4 + 3
    assert found.measured[0].point == Made.first[0]
    good = [each for each in found.measured if not each.message]
    values = {each.point: objectives(each) for each in good}
    best = {
        point
        for point, mine in values.items()
        if not any(all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine for other in values.values())
    }
    assert {each.point for each in found.front} == best
    assert [objectives(each)[0] for each in found.front] == sorted(objectives(each)[0] for each in found.front)
    for index, bound in enumerate(found.reference):
        assert bound == pytest.approx(1.1 * max(each[index] for each in values.values()))
    corner = logarithms(found.reference)
    axes = [sorted({logarithms(each)[index] for each in values.values()} | {corner[index]}) for index in range(3)]
    volume = 0.0
    for cell in itertools.product(*(range(len(axis) - 1) for axis in axes)):
        low = [axis[place] for axis, place in zip(axes, cell, strict=True)]
        if any(all(a <= b for a, b in zip(logarithms(each), low, strict=True)) for each in values.values()):
            volume += math.prod(axis[place + 1] - axis[place] for axis, place in zip(axes, cell, strict=True))
    assert found.volume == pytest.approx(volume)


def test_budgets_end_a_study() -> None:
    assert len(explore(FLASH, DENSE, Made(), trials=4, seconds=60.0).measured) == 4
    assert explore(FLASH, DENSE, Made(), trials=4, seconds=0.0).measured == ()


@pytest.mark.parametrize("when", ["between", "told"])
def test_an_interrupt_keeps_what_was_measured(when: str) -> None:
    class Interrupted(Made):
        def measure(self, points: Sequence[Config]) -> Iterator[PointResult]:
            for index, point in enumerate(points):
                if index == 2 and when == "between":
                    raise KeyboardInterrupt
                yield self.one(point)

    def tell(_: PointResult) -> None:
        told.append(None)
        if len(told) == 2 and when == "told":
            raise KeyboardInterrupt

    told: list[None] = []
    found = explore(FLASH, DENSE, Interrupted(), trials=50, seconds=60.0, on_measured=tell)
    assert found.is_interrupted
    assert len(found.measured) == 2
    assert found.front
    assert set(found.front) <= set(found.measured)
    assert not explore(FLASH, DENSE, Made(), trials=4, seconds=60.0).is_interrupted


def test_nothing_measured_is_an_empty_report() -> None:
    found = explore(FLASH, DENSE, Made(), trials=4, seconds=0.0)
    assert (found.front, found.reference, found.volume) == ((), (), 0.0)
    assert exploration_data(found)["hypervolume"] == {"decades": 0.0, "reference": {}}
    assert exploration_sheets(found)[0].rows == ()


def test_report_names_evaluators_failures_and_the_reference_point() -> None:
    found = explore(FLASH, DENSE, Made(), trials=50, seconds=60.0)
    front, rest, shares = exploration_sheets(found)
    assert len(front.rows) + len(rest.rows) == 9
    assert "failed: implementation=broken precision=float32: it broke" in front.notes
    assert any(note.startswith("hypervolume") and "1.1 times the worst" in note for note in front.notes)
    assert "no shares over every implementation: 9 points, fewer than 10" in shares.notes
    data = exploration_data(found)
    assert [point["is_on_front"] for point in data["points"]].count(True) == len(found.front)
    assert data["axes"]["precision"] == ["float32", "float16"]


@pytest.mark.slow
def test_sensitivity_is_of_each_objective_and_the_front() -> None:
    class Wide(Made):
        parameters = (*Made.parameters[:2], replace(Made.parameters[2], values=(8, 16, 32, 64, 128, 256)))

    found = explore(FLASH, DENSE, Wide(), trials=50, seconds=60.0)
    by = {(each.evaluator, each.objective, each.scope): each.shares for each in found.sensitivities}
    assert next(iter(by["PED-ANOVA", "error", "every implementation"])) == "precision"
    assert ("PED-ANOVA", "all three", "every implementation") in by
    assert "block" in by["PED-ANOVA", "memory", OURS]


def test_kv_bytes_are_those_of_the_tensors() -> None:
    for precision in precisions(DENSE):
        inputs = DEFINITION.make_inputs(at_precision(DENSE, precision), seed=0, device="cpu")
        assert kv_bytes(at_precision(DENSE, precision)) == inputs.k.nbytes + inputs.v.nbytes
    for precision in precisions(CACHE):
        shape = at_precision(CACHE, precision)
        paged = PAGED.make_inputs(shape, seed=0, device="cpu")
        used = int((paged.page_table >= 0).sum())  # full pages, all of them
        stored = [paged.k_cache, paged.v_cache]
        if precision == "int8":
            assert paged.k_scale is not None
            assert paged.v_scale is not None
            stored += [paged.k_scale, paged.v_scale]
        assert kv_bytes(shape) == sum(used * tensor[0].numel() * tensor.itemsize for tensor in stored)


def test_other_shapes_are_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Other(Shape):
        size: int

    with pytest.raises(UsageError, match=r"Other\(size=3\)"):
        check_shape(Other(size=3))


@pytest.mark.slow
def test_cpu_measures_time_memory_and_error() -> None:
    shape = replace(DENSE, seq_q=128, seq_kv=128, causal=True)
    bench = CpuBench(FLASH, shape, ["eager", "sdpa flash", "cudnn"])
    found = explore(FLASH, shape, bench, trials=20, seconds=60.0)
    assert [name for name, _ in found.absent] == ["cudnn"]
    at = {(each.point["implementation"], each.point["precision"]): each for each in found.measured}
    assert len(at) == 6
    errors = [objectives(at["eager", precision])[2] for precision in ("float32", "float16", "bfloat16")]
    assert errors[0] < 1e-5 < errors[1] < errors[2]
    scores, mask, expanded = shape.heads * 128 * 128 * 4, 128 * 128, 2 * shape.heads * 128 * 16 * 4
    extra = at["eager", "float32"].extra_bytes
    assert extra is not None
    assert 0 <= extra - (2 * scores + mask + expanded) < 4096  # torch's numbers and paddings
    flash = at["sdpa flash", "float32"].extra_bytes
    assert flash is not None
    assert flash < extra


def test_cpu_counts_the_padding_of_a_contiguous_cache() -> None:
    """Keys and values are charged as the pages in use; the contiguous one has its padding beside them."""
    shape = replace(CACHE, batch=4, max_context=512, mean_context=64)
    bench = CpuBench(DECODE, shape, ["contiguous cache"])
    found = next(each for each in explore(DECODE, shape, bench, trials=5, seconds=60.0).measured if not each.message)
    inputs = PAGED.make_inputs(shape, seed=0, device="cpu")
    row = 2 * shape.kv_heads * shape.head_dim * 2
    longest, pages = int(inputs.seq_lens.max()), int((-(-inputs.seq_lens // shape.page_size)).sum())
    padding = (shape.batch * longest - pages * shape.page_size) * row
    assert padding > kv_bytes(shape) // 2
    assert found.extra_bytes is not None
    # A call holds some beside the copies, and with each thread more; what is stored would be kv_bytes more than that.
    assert padding <= found.extra_bytes < padding + kv_bytes(shape)


@pytest.mark.slow
def test_failures_of_baselines_are_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.kernels.baselines.eager import Eager

    def prepare(self: Eager, shape: Any, inputs: Any) -> Any:
        if shape.dtype == "float16":
            raise RuntimeError("not\nhere")
        return lambda: torch.full_like(inputs.q, math.nan)

    monkeypatch.setattr(Eager, "prepare", prepare)
    found = explore(FLASH, DENSE, CpuBench(FLASH, DENSE, ["eager"]), trials=20, seconds=60.0)
    messages = {str(each.point["precision"]): each.message for each in found.measured}
    assert messages["float16"] == "RuntimeError: not here"
    assert messages["float32"] == "its result is not finite"
    assert found.front == ()


def test_rounding_is_what_the_precision_costs() -> None:
    rounding = {name: rounding_error(DEFINITION, DENSE, name, seed=0) for name in precisions(DENSE)}
    assert rounding["float32"] == 0.0
    assert 0.0 < rounding["float16"] < rounding["bfloat16"] < 0.1
    cache = {name: rounding_error(PAGED, CACHE, name, seed=0) for name in precisions(CACHE)}
    assert cache["float16"] == 0.0
    assert 0.0 < cache["int8"] < cache["float8_e4m3fn"] < cache["float8_e5m2"]


@dataclass
class Laboratory:
    """An executor that answers at once: what is asked of it, in order."""

    broken: frozenset[int] = frozenset()
    name: str = "gpu"
    device: Device = NVIDIA_H200
    toolchain: Toolchain = field(default_factory=lambda: Toolchain("0"))
    policy: Policy = field(default_factory=Policy)
    capacity: int = 2
    worker: str = "here"
    reached: dict[str, float] = field(default_factory=dict)
    opened: list[Shape] = field(default_factory=list)
    races: list[tuple[list[Candidate], list[str]]] = field(default_factory=list)
    flying: list[Candidate] = field(default_factory=list)

    def toolchain_of(self, implementation: str) -> Toolchain:
        return self.toolchain

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        self.opened.append(shape)

    def submit(self, candidate: Candidate) -> None:
        self.flying.append(candidate)
        assert len(self.flying) <= self.capacity

    def collect(self, timeout: float | None = None) -> Outcome | None:
        candidate = self.flying.pop()  # not in the order of submission
        if candidate.config["BLOCK_Q"] in self.broken:
            return Outcome(candidate=candidate, status=Status.COMPILE_ERROR, message="no registers")
        return Outcome(candidate=candidate, status=Status.OK, timing=timing(50.0), error=0.5)

    def expect_problem(
        self, operation: Operation[Any], shape: Shape, candidates: Sequence[Candidate], *, every_output: bool = False
    ) -> None: ...

    def expect_race(self, candidates: Sequence[Candidate], *, is_near: bool) -> None: ...

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        assert candidates
        assert not isinstance(baselines, str)
        self.races.append((candidates, list(baselines)))
        outcomes = [
            Outcome(candidate=c, status=Status.OK, timing=timing(float(c.config.integer("BLOCK_Q"))), error=0.001)
            for c in candidates
        ]
        results = [BaselineResult(name, timing(500.0), error=0.002, extra_bytes=64) for name in baselines]
        return Race(tuple(outcomes), tuple(results), (16,) * len(candidates))

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_gpu_races_points_of_one_precision_together() -> None:
    executor = Laboratory(broken=frozenset({32}))
    bench = GpuBench(executor, FLASH, DENSE, ["eager"])
    assert [p.name for p in bench.parameters[:3]] == ["implementation", "precision", "BLOCK_Q"]
    assert "kpack" not in [p.name for p in bench.parameters]
    found = explore(FLASH, DENSE, bench, trials=30, seconds=60.0)
    assert len(found.measured) == len({each.point for each in found.measured}) == 30
    ours = [each for each in found.measured if each.point["implementation"] == OURS]
    default = SPACE.default(replace(DENSE, dtype="float32"), NVIDIA_H200)
    assert ours[0].point["BLOCK_Q"] == default["BLOCK_Q"]
    for each in ours:
        shape = at_precision(DENSE, str(each.point["precision"]))
        if each.point["BLOCK_Q"] == 32:
            assert each.message == "compile_error: no registers"
        else:
            rounding = rounding_error(DEFINITION, DENSE, str(each.point["precision"]), seed=0)
            assert objectives(each) == (each.point["BLOCK_Q"], kv_bytes(shape) + 16, 0.001 + rounding)
    for opened, (candidates, _) in zip(executor.opened, executor.races, strict=True):
        assert all(SPACE.why_invalid(each.config, opened, NVIDIA_H200) is None for each in candidates)
    eager = [each for each in found.measured if each.point["implementation"] == "eager"]
    assert {each.point["precision"] for each in eager} == set(precisions(DENSE))
    assert all(each.extra_bytes == 64 for each in eager)


def test_gpu_keeps_the_parameters_of_a_schedule_apart() -> None:
    bench = GpuBench(Laboratory(), DECODE, CACHE, [])
    by_name = {parameter.name: parameter for parameter in bench.parameters}
    assert by_name["schedule"].only == ("implementation", OURS)
    assert by_name["NUM_SPLITS"].only == ("schedule", "split")
    assert set(by_name["precision"].values) == {"float16", "int8", "float8_e4m3fn", "float8_e5m2"}
    assert all(bench.reject(point) is None for point in bench.first)


def test_gpu_races_the_default_where_no_config_passed() -> None:
    executor = Laboratory(broken=frozenset({16, 32, 64, 128, 256}))
    bench = GpuBench(executor, FLASH, DENSE, ["eager"])
    points = [bench.first[0], next(point for point in bench.first if point["implementation"] == "eager")]
    first, second = bench.measure(points)
    assert first.objectives is None
    assert second.objectives is not None
    default = SPACE.default(replace(DENSE, dtype="float32"), NVIDIA_H200)
    assert executor.races[0][0] == [Candidate("triton", default)]
