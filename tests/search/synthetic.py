"""Synthetic operations and implementations, and an executor that answers for them by formula: searches run anywhere,
and always alike."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from autotune.device import NVIDIA_H200, Device
from autotune.executor import BaselineResult, Baselines, Race
from autotune.implementation import Implementation
from autotune.operation import Cost, Operation
from autotune.registry import register, register_implementation
from autotune.shape import AttentionShape, Shape
from autotune.space import Config, Parameter, Space
from autotune.trial import Candidate, Conditions, Outcome, Policy, Resources, Status, Timing, Toolchain

SHAPE: Final = AttentionShape(batch=2, heads=8, seq_q=1024, head_dim=64, causal=True)
FASTEST_US: Final = 100.0
TIMED: Final = (Status.OK, Status.SLOW)


def _reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    area = config.integer("BLOCK_Q") * config.integer("BLOCK_K")
    return f"a tile of {area} is too large" if area > 128 * 128 else None


def _default(shape: AttentionShape, device: Device) -> Config:
    return Config(BLOCK_Q=32, BLOCK_K=32, num_warps=2, num_stages=2, loads="pointer", kpack=None)


def _small_default(shape: AttentionShape, device: Device) -> Config:
    return Config(BLOCK_Q=32, BLOCK_K=32, loads="descriptor")


_LOADS = Parameter("loads", ("pointer", "descriptor"))
_PARAMETERS = (
    Parameter("BLOCK_Q", (16, 32, 64, 128, 256)),
    Parameter("BLOCK_K", (16, 32, 64, 128, 256)),
    Parameter("num_warps", (1, 2, 4, 8)),
    Parameter("num_stages", (1, 2, 3, 4, 5)),
    _LOADS,
    Parameter("kpack", (1, 2), needs="wave_hints"),
)
_SMALL_PARAMETERS = (Parameter("BLOCK_Q", (16, 32, 64, 256)), Parameter("BLOCK_K", (32, 64, 128)), _LOADS)


def _accept(config: Config, shape: AttentionShape, device: Device) -> str | None:
    return None


def _line_default(shape: AttentionShape, device: Device) -> Config:
    return Config(STEP=8)


def _operation(name: str) -> Operation[AttentionShape]:
    return Operation(
        name=name,
        shape_class=AttentionShape,
        cost=lambda shape: Cost(flops=10**9, bytes=10**7),
        definition=f"{__name__}:NO_DEFINITION",
    )


def _implementation(operation: str, name: str, space: Space[Any], entry: str) -> Implementation[AttentionShape]:
    return Implementation(
        name=name,
        operation=operation,
        space=space,
        kernel=f"{__name__}:NO_KERNEL",
        sources=(Path(__file__),),
        entry=(entry,),
    )


SYNTHETIC: Final = _operation("synthetic")
SYNTHETIC_SMALL: Final = _operation("synthetic_small")
SYNTHETIC_PAIR: Final = _operation("synthetic_pair")
LARGE: Final = _implementation("synthetic", "valley", Space(_PARAMETERS, _reject, _default), "_default")  # 880 configs
SMALL: Final = _implementation(
    "synthetic_small", "valley", Space(_SMALL_PARAMETERS, _reject, _small_default), "_small_default"
)  # 22 valid configs
_LINE: Final = Space((Parameter("STEP", tuple(range(1, 13))),), _accept, _line_default)
PAIR: Final = (
    _implementation("synthetic_pair", "valley", SMALL.space, "_small_default"),
    _implementation("synthetic_pair", "line", _LINE, "_line_default"),
)
for _name in ("SYNTHETIC", "SYNTHETIC_SMALL", "SYNTHETIC_PAIR"):
    register(_name.lower(), operation=f"{__name__}:{_name}")
register_implementation("synthetic", "valley", f"{__name__}:LARGE")
register_implementation("synthetic_small", "valley", f"{__name__}:SMALL")
register_implementation("synthetic_pair", "valley", f"{__name__}:VALLEY")
register_implementation("synthetic_pair", "line", f"{__name__}:LINE")
VALLEY, LINE = PAIR


def valid(implementation: Implementation[Any], shape: Shape = SHAPE, device: Device = NVIDIA_H200) -> list[Config]:
    return list(implementation.space.configs(shape, device))


def default(implementation: Implementation[Any], shape: Shape = SHAPE) -> Config:
    config: Config = implementation.space.default(shape, NVIDIA_H200)
    return config


def median_us(config: Config) -> float:
    """A smooth valley over the parameters' places in the space, with one lowest point and one interaction.

    Of ``LINE`` the time grows with the distance from its fifth step, and is 3 % below the valley's best there.
    """
    if "STEP" in config:
        return FASTEST_US * (0.97 + 0.05 * abs(config.integer("STEP") - 5))
    parameters = (_PARAMETERS if "num_warps" in config else _SMALL_PARAMETERS)[: len(config)]
    steps = [p.values.index(value) - len(p.values) // 2 for p in parameters if (value := config[p.name]) is not None]
    return FASTEST_US * math.exp(0.05 * sum(step**2 for step in steps) + 0.03 * (steps[0] - steps[1]) ** 2)


def timing(median: float) -> Timing:
    return Timing(median, 0.999 * median, 1.001 * median, 20)


class FakeExecutor:
    """Implements ``autotune.executor.Executor`` by formula: nothing is run, nothing waits, every call is noted.

    Args:
        capacity: candidates in flight; several end in an order drawn from the seed ``order``.
        time_us: the time of a config.
        failures: configs that do not end ``ok`` when they are screened.
        race_failures: configs that do not end ``ok`` when they are raced.
        interrupt_at: which of the calls of ``collect`` and ``race``, from 1, Ctrl-C falls into.
        contended: whether another process uses the GPU all the while.
        trial_seconds: how far each ``collect`` moves ``elapsed``, the clock of this executor.
    """

    name = "gpu"
    device = NVIDIA_H200
    worker = "host:fake"

    def __init__(
        self,
        *,
        capacity: int = 1,
        order: int = 0,
        time_us: Callable[[Config], float] = median_us,
        failures: Mapping[Config, Status] | None = None,
        race_failures: Mapping[Config, Status] | None = None,
        interrupt_at: int | None = None,
        trial_seconds: float = 0.0,
        toolchain: Toolchain | None = None,
        policy: Policy | None = None,
        contended: bool = False,
    ) -> None:
        self.capacity = capacity
        self.toolchain = toolchain or Toolchain("0.1.0", triton="3.6.0", ptxas="12.8.93", driver="580")
        self.policy = policy or Policy()
        self.reached: dict[str, float] = {}
        self.candidates: list[Candidate] = []
        self.collected: list[Config] = []
        self.raced: list[list[Candidate]] = []
        self.expected: list[tuple[int, list[Candidate], bool]] = []  # after so many verdicts, and if the race is near
        self.later: list[tuple[Shape, list[Candidate]]] = []  # what later problems are expected to ask for
        self.race_seconds: list[float] = []
        self.most_in_flight = 0
        self.elapsed = 0.0
        self._time_us = time_us
        self._failures = failures or {}
        self._race_failures = race_failures or {}
        self._interrupt_at = interrupt_at
        self._conditions = Conditions(contended=contended)
        self._calls = 0
        self._trial_seconds = trial_seconds
        self._order = random.Random(order)
        self._in_flight: list[Candidate] = []

    def toolchain_of(self, implementation: str) -> Toolchain:
        return self.toolchain

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        self._in_flight.clear()

    def submit(self, candidate: Candidate) -> None:
        self._in_flight.append(candidate)
        assert len(self._in_flight) <= self.capacity
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        self.candidates.append(candidate)

    def collect(self, timeout: float | None = None) -> Outcome | None:
        self._note_call()
        if timeout is not None and self._trial_seconds > timeout:
            self.elapsed += timeout
            return None
        self.elapsed += self._trial_seconds
        candidate = self._in_flight.pop(self._order.randrange(len(self._in_flight)))
        self.collected.append(candidate.config)
        resources = Resources(shared_bytes=1024, registers=64, spill_bytes=0)
        return self._outcome(candidate, self._failures, resources=resources, compile_seconds=0.5)

    def expect_problem(
        self, operation: Operation[Any], shape: Shape, candidates: Sequence[Candidate], *, every_output: bool = False
    ) -> None:
        self.later.append((shape, list(candidates)))

    def expect_race(self, candidates: Sequence[Candidate], *, is_near: bool) -> None:
        self.expected.append((len(self.collected), list(candidates), is_near))

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        self._note_call()
        self.elapsed += seconds
        self.raced.append(list(candidates))
        self.race_seconds.append(seconds)
        compared = (
            BaselineResult("sdpa_math", message="out of memory"),
            BaselineResult("sdpa_efficient", timing(3 * FASTEST_US)),
            BaselineResult("sdpa_flash", timing(2 * FASTEST_US)),
        )
        return Race(tuple(self._outcome(candidate, self._race_failures) for candidate in candidates), compared)

    def close(self) -> None:
        self._in_flight.clear()

    @property
    def submitted(self) -> list[Config]:
        return [candidate.config for candidate in self.candidates]

    @property
    def races(self) -> list[list[Config]]:
        return [[candidate.config for candidate in race] for race in self.raced]

    def _note_call(self) -> None:
        self._calls += 1
        if self._calls == self._interrupt_at:
            raise KeyboardInterrupt

    def _outcome(self, candidate: Candidate, failures: Mapping[Config, Status], **fields: Any) -> Outcome:
        status = failures.get(candidate.config, Status.OK)
        return Outcome(
            candidate=candidate,
            status=status,
            message="" if status is Status.OK else message(status),
            timing=timing(self._time_us(candidate.config)) if status in TIMED else None,
            conditions=self._conditions,
            **fields,
        )


def message(status: Status) -> str:
    """Return the message of a planted failure."""
    return f"planted: {status}"
