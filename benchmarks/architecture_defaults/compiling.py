"""Compiles the configs of a class for an architecture, in processes that touch no GPU; Triton keeps the binaries."""

from collections.abc import Iterable, Mapping
from typing import Final

from autotune.executor.compile_pool import COMPILE_SECONDS, SERVER_SECONDS, CompilePool
from autotune.platforms import target_device
from autotune.registry import get_operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Resources, Status
from benchmarks.architecture_defaults.classes import ProblemClass, first_candidates, second_candidates
from benchmarks.architecture_defaults.rule import Ranked, rank

CONFIRMED: Final = 3  # of the best, how many are compiled in every form in which they are served

Compiled = dict[Config, Resources]


class Compiler:
    """Compiles for one architecture; a context manager, which ends its processes."""

    def __init__(self, arch: str, *, jobs: int) -> None:
        self.device = target_device(arch)
        self._pool = CompilePool(self.device, jobs=jobs, timeout=COMPILE_SECONDS)

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *raised: object) -> None:
        self._pool.close()

    def ranked(self, problem: ProblemClass) -> list[Ranked]:
        """Compile the candidates of a class and rank them.

        Where the best of them spills or leaves an SM with few warps, shorter pipelines are compiled as well.
        """
        compiled = self.compile(problem, problem.shape, first_candidates(problem, self.device))
        if self._confirmed(problem, compiled)[0].is_poor:
            poor = [each.config for each in rank(compiled, self.device) if each.is_poor]
            more = [each for each in second_candidates(problem, self.device, poor) if each not in compiled]
            compiled |= self.compile(problem, problem.shape, more)
        return self._confirmed(problem, compiled)

    def _confirmed(self, problem: ProblemClass, compiled: Compiled) -> list[Ranked]:
        """Rank configs whose best few count by the most that their binaries take in any form.

        With a mask and without, with the log-sum-exp and without: close to the limit of registers, which of these
        spills is chance.
        """
        confirmed: set[Config] = set()
        while not confirmed >= (best := {each.config for each in rank(compiled, self.device)[:CONFIRMED]}):
            for shape, every_output in problem.other_forms:
                _take_most(compiled, self.compile(problem, shape, best - confirmed, every_output=every_output))
            confirmed |= best
        return rank(compiled, self.device)

    def compile(
        self, problem: ProblemClass, shape: Shape, configs: Iterable[Config], *, every_output: bool = False
    ) -> Compiled:
        """Return the resources of each config; empty ones of what does not compile or fit."""
        operation, name = problem.implementation.operation, problem.implementation.name
        self._pool.open(get_operation(operation), shape)
        for config in configs:
            self._pool.submit(Candidate(name, config), every_output=every_output)
        found: Compiled = {}
        while self._pool.in_flight:
            outcome = self._pool.receive(COMPILE_SECONDS + SERVER_SECONDS)
            if outcome is None:
                raise TimeoutError(f"no compiler answered for {problem} on {self.device.arch}")
            found[outcome.config] = outcome.resources if outcome.status is Status.OK else Resources()
        return found


def _take_most(compiled: Compiled, others: Mapping[Config, Resources]) -> None:
    """Keep the most of each resource that any form of a config takes; none of one that does not fit in some form."""
    for config, other in others.items():
        known = compiled[config]
        pairs = ((known.shared_bytes, other.shared_bytes), (known.registers, other.registers))
        shared, registers, spilled = (
            None if a is None or b is None else max(a, b) for a, b in (*pairs, (known.spill_bytes, other.spill_bytes))
        )
        compiled[config] = Resources(shared, registers, spilled)
