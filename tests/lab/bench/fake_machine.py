"""A machine that measures nothing: every call runs once, and takes as long as its place in the race says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from autotune.device import Device
from autotune.executor import Executor
from autotune.lab.bench.machines import Call, CallT, Machine, OnStep
from autotune.trial import Conditions, Policy, Timing, Toolchain

EXTRA_BYTES: Final = 1024
HELD_BYTES: Final = 100
TOOLCHAIN: Final = Toolchain("0.1.0", torch="2.13.0")
POLICY: Final = Policy("eager", "warm")


@dataclass
class FakeMachine(Machine):
    """The first call takes 100 us, each further one 100 us more; memory is always ``EXTRA_BYTES`` beside ``HELD_BYTES``
    that are held from the start. ``raced`` are the calls and rounds of each race, ``watched`` those that were watched.
    """

    on_step: OnStep = lambda step: None
    kind: Literal["cpu", "cuda"] = "cpu"
    name: str = "a machine"
    toolchain: Toolchain = TOOLCHAIN
    policy: Policy = POLICY
    gpu: Device | None = None
    threads: int | None = None
    conditions: Conditions | None = None
    executor: Executor | None = None
    raced: list[tuple[list[str], int | None]] = field(default_factory=list)
    watched: list[list[str]] = field(default_factory=list)

    def time(self, calls: Mapping[str, Call], *, rounds: int | None = None) -> dict[str, Timing]:
        self.raced.append((list(calls), rounds))
        times = {}
        for place, (name, call) in enumerate(calls.items(), start=1):
            call()
            times[name] = Timing(100.0 * place, 99.0 * place, 101.0 * place, rounds or 5)
        return times

    def watch(self) -> Callable[[], Conditions | None]:
        before = len(self.raced)

        def end() -> Conditions | None:
            self.watched.extend(names for names, _ in self.raced[before:])
            return self.conditions

        return end

    def _step(self, call: Call) -> float:
        return 1000.0

    def hold(self, prepare: Callable[[], CallT]) -> tuple[CallT, int]:
        return prepare(), HELD_BYTES

    def extra_bytes(self, call: Call, *, prepared: int = 0) -> int:
        call()
        return EXTRA_BYTES + prepared

    def open_executor(self) -> Executor:
        assert self.executor is not None
        return self.executor
