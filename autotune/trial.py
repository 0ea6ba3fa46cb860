"""Trials: one candidate judged for one shape on one device, with everything that is worth remembering."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from autotune.device import Device
from autotune.shape import Shape
from autotune.space import Config

LARGEST_SEED: Final = 2**32 - 1  # of a study; numpy's RandomState, by which Optuna's samplers draw, takes no larger one


class Status(StrEnum):
    """The end of a trial. All but ``OK`` are failures of the candidate, recorded like any other trial."""

    OK = "ok"
    INVALID = "invalid"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    OUT_OF_RESOURCES = "out_of_resources"
    LAUNCH_ERROR = "launch_error"
    ILLEGAL_ACCESS = "illegal_access"
    HANG = "hang"
    WRONG_RESULT = "wrong_result"
    NAN_RESULT = "nan_result"
    OUT_OF_MEMORY = "out_of_memory"
    NONDETERMINISTIC = "nondeterministic"
    IMPLAUSIBLE = "implausible"  # faster than the hardware can be
    WORKER_DIED = "worker_died"
    SLOW = "slow"  # correct, stopped early: its screening time stands in the row


class Stage(StrEnum):
    """``SCREEN``: a short measurement that ranks; ``RACE``: finalists measured interleaved, which decides."""

    SCREEN = "screen"
    RACE = "race"


@dataclass(frozen=True, slots=True)
class Policy:
    """The way in which a time was taken; part of a row's identity, never mixed in one race.

    ``mode``: ``graph`` replays a CUDA graph, ``eager`` launches from Python. ``cache``: ``cold`` rotates over input
    sets larger than twice the L2, ``warm`` repeats one set.
    """

    mode: Literal["graph", "eager"] = "graph"
    cache: Literal["cold", "warm"] = "cold"


@dataclass(frozen=True, slots=True)
class Timing:
    """A median in microseconds, its 95 % bootstrap confidence interval, and the number of samples."""

    median_us: float
    low_us: float
    high_us: float
    samples: int

    def overlaps(self, other: "Timing") -> bool:
        """Return True if the intervals share a point: the two cannot be told apart."""
        return self.low_us <= other.high_us and other.low_us <= self.high_us


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a config: bytes of shared memory a block, registers a thread, bytes spilled a thread.

    ``binary`` names the compiled code and what its launch takes from the compiler: equal ones run alike.
    """

    shared_bytes: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    binary: str | None = None


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Versions that a result depends on; an empty string where a part is absent."""

    tool: str
    triton: str = ""
    ptxas: str = ""
    torch: str = ""
    cuda: str = ""
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Conditions:
    """State of the GPU while a time was taken. ``contended``: another process was using it."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle_reasons: str = ""
    contended: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """An implementation of an operation, by name, and a config of its space: what is raced, stored and served.

    Example:
        >>> str(Candidate("triton", Config(BLOCK_Q=64, num_warps=4)))
        'triton BLOCK_Q=64 num_warps=4'
    """

    implementation: str
    config: Config

    def __str__(self) -> str:
        return f"{self.implementation} {self.config}".rstrip()


@dataclass(frozen=True, slots=True)
class PriorPick:
    """The candidate that tables served for a shape before it was tuned, and the rung of the ladder that it stood on.

    ``expected_regret`` is how much longer it was expected to take than the best, 0.02 for 2 %, by ``evidence``, a
    number of measurements: None and 0 where nothing recorded told.
    """

    candidate: Candidate
    rung: str
    expected_regret: float | None = None
    evidence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A verdict on one candidate; ``error`` is the largest absolute deviation, ``error_limit`` the allowed one.

    ``compile_seconds`` and ``judge_seconds`` (numbers and time together) are what the verdict cost.
    """

    candidate: Candidate
    status: Status
    message: str = ""
    timing: Timing | None = None
    error: float | None = None
    error_limit: float | None = None
    resources: Resources = Resources()
    compile_seconds: float | None = None
    judge_seconds: float | None = None
    conditions: Conditions = Conditions()

    @property
    def implementation(self) -> str:
        return self.candidate.implementation

    @property
    def config(self) -> Config:
        return self.candidate.config


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One row of a table: an outcome, and where, when and by what it was found.

    ``executor`` is ``gpu`` or ``replay``. Rows of one ``race_id`` were measured interleaved, together with the default
    of their implementation (``default_timing``), the fastest of what people write by hand (``heuristic_timing``) and
    the fastest of the usual baselines (``baseline``, ``baseline_timing``); only they are compared. The default is what
    no row is needed for: ``default_config``, or the space's default in rows that do not name it. What the tables served
    for the shape then, by whatever implementation (``PriorPick``), took ``served_timing``, None if it failed, and stood
    on ``served_rung``, with ``expected_regret`` by ``evidence``; its own row ``is_served``. All None in rows that do
    not say.
    """

    operation: str
    source_hash: str
    shape: Shape
    device: Device
    toolchain: Toolchain
    executor: str
    policy: Policy
    study: str
    seed: int
    number: int
    worker: str
    started_at: datetime
    stage: Stage
    race_id: str = ""
    is_default: bool = False
    outcome: Outcome
    default_timing: Timing | None = None
    default_config: Config | None = None
    heuristic_timing: Timing | None = None
    served_timing: Timing | None = None
    served_rung: str | None = None
    is_served: bool | None = None
    expected_regret: float | None = None
    evidence: int | None = None
    baseline: str = ""
    baseline_timing: Timing | None = None
    tflops: float | None = None
    gbps: float | None = None

    @property
    def candidate(self) -> Candidate:
        return self.outcome.candidate

    @property
    def implementation(self) -> str:
        return self.outcome.candidate.implementation

    @property
    def config(self) -> Config:
        return self.outcome.candidate.config

    @property
    def status(self) -> Status:
        return self.outcome.status

    @property
    def timing(self) -> Timing | None:
        return self.outcome.timing


def median_us(trial: Trial) -> float:
    """Return the median of a trial that has a time."""
    assert trial.timing is not None
    return trial.timing.median_us
