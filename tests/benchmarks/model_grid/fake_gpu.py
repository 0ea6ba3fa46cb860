"""A GPU whose times are a formula, and problems to record on it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from autotune.device import NVIDIA_H200
from autotune.executor import Baselines, Race
from autotune.operation import Operation
from autotune.registry import get_implementation, get_operation
from autotune.shape import AttentionShape, Shape
from autotune.table import Store
from autotune.trial import Candidate, Outcome, Policy, Status, Toolchain
from benchmarks.model_grid.problems import GridCell
from benchmarks.model_grid.recording import GridRecording
from tests import sample

H100: Final = replace(NVIDIA_H200, name="NVIDIA H100 80GB HBM3", memory_mib=81559)
DENSE: Final = get_implementation("flash_attention", "triton")
FLASH: Final = get_operation("flash_attention")
GOOD: Final = sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4, num_stages=3)
WRONG: Final = sample.config(BLOCK_Q=64, BLOCK_K=32, num_warps=4, num_stages=3)  # a member of the portfolio that ships


class Gpu:
    """A GPU whose times are a formula: the more a config differs from the best of a length, the longer it takes."""

    name = "gpu"
    device = H100
    toolchain = sample.TOOLCHAIN
    policy = Policy()
    capacity = 4
    worker = "host:1"

    def __init__(self) -> None:
        self.reached: dict[str, float] = {}
        self.shape: Shape
        self.operation = FLASH.name
        self.factors: dict[str, float] = {}  # of an implementation's times
        self.queue: deque[Candidate] = deque()
        self.asked: list[tuple[Shape, Candidate]] = []
        self.raced: list[list[Candidate]] = []
        self.on_collect: Callable[[], None] = lambda: None
        self.expected: list[tuple[Shape, bool]] = []  # problems, and if all of their binaries
        self.closed = False

    def toolchain_of(self, implementation: str) -> Toolchain:
        return self.toolchain

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        self.shape, self.operation = shape, operation.name
        self.queue.clear()

    def submit(self, candidate: Candidate) -> None:
        space = get_implementation(self.operation, candidate.implementation).space
        assert space.why_invalid(candidate.config, self.shape, H100) is None
        self.queue.append(candidate)
        self.asked.append((self.shape, candidate))

    def collect(self, timeout: float | None = None) -> Outcome | None:
        self.on_collect()
        return self.outcome(self.queue.popleft())

    def expect_problem(
        self, operation: Operation[Any], shape: Shape, candidates: Sequence[Candidate], *, every_output: bool = False
    ) -> None:
        assert candidates
        self.expected.append((shape, every_output))

    def expect_race(self, candidates: Sequence[Candidate], *, is_near: bool) -> None: ...

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        assert baselines == "none"
        self.raced.append(candidates)
        return Race(tuple(map(self.outcome, candidates)))

    def outcome(self, candidate: Candidate) -> Outcome:
        if candidate.config == WRONG:
            return Outcome(candidate=candidate, status=Status.WRONG_RESULT, message="off", error=1.0, error_limit=0.1)
        return Outcome(candidate=candidate, status=Status.OK, timing=sample.timing(self.microseconds(candidate)))

    def microseconds(self, candidate: Candidate) -> float:
        implementation = get_implementation(self.operation, candidate.implementation)
        space = implementation.space
        best = GOOD if implementation is DENSE else space.default(self.shape, H100)
        steps = [abs(a - b) for a, b in zip(space.order(candidate.config), space.order(best), strict=True)]
        return 100.0 * self.factors.get(implementation.name, 1.0) * (1.0 + 0.05 * float(sum(steps)))

    def close(self) -> None:
        self.closed = True


def dense(seq: int, **changes: Any) -> AttentionShape:
    return sample.shape(seq, **{"batch": 4, "heads": 32, "kv_heads": 8, **changes})


def cells(count: int = 4) -> list[GridCell]:
    return [GridCell(FLASH.name, "causal", dense(512 * 2**number)) for number in range(count)]


def recording(gpu: Gpu, tmp_path: Path, **options: Any) -> GridRecording:
    """A recording of Triton alone, unless ``names`` are given."""
    given = {"names": [DENSE.name], **options}
    return GridRecording(gpu, Store(tmp_path / "store"), tmp_path / "results", **given)
