"""Without a GPU: a replayed winner is confirmed, compiled and its numbers right; finalists compile for any device."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from autotune.correctness import Verdict
from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.executor.compile_pool import CompilePool, limit_jobs
from autotune.executor.interpreter import check_interpreted
from autotune.executor.select import Settings
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.registry import get_implementation, our_implementations
from autotune.search.result import SearchResult
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Status


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Finalists as the real compiler sees them, and the winner's numbers as Triton's interpreter computes them.

    ``verdict`` is None where the numbers could not be checked here, which refutes nothing; ``unchecked`` says why.
    """

    compiled: tuple[Outcome, ...]
    verdict: Verdict | None
    dtype: str = ""
    unchecked: str = ""

    @property
    def holds(self) -> bool:
        """Return True if every finalist compiles and fits, and the winner's numbers are not wrong."""
        is_right = self.verdict is None or self.verdict.status is Status.OK
        return is_right and all(outcome.status is Status.OK for outcome in self.compiled)

    @property
    def checked(self) -> str:
        """The verdict on the winner's numbers, or why there is none, in words."""
        verdict = self.verdict
        if verdict is None:
            return f"not here: {self.unchecked}"
        in_dtype = f", {self.dtype}" if self.dtype else ""
        text = f"numbers {verdict.status} in Triton's interpreter{in_dtype}, on reduced lengths"
        if verdict.status is Status.OK and verdict.error is not None and verdict.error_limit is not None:
            text += f" (largest error {verdict.error:.2g}, allowed {verdict.error_limit:.2g})"
        return f"{text}: {verdict.message}" if verdict.message else text


def confirm(
    operation: Operation[Any],
    shape: Shape,
    device: Device,
    finalists: Iterable[Candidate],
    winner: Candidate,
    settings: Settings | None = None,
) -> Confirmation | None:
    """Compile the finalists for the device and check the winner on reduced problems, all on this machine's CPU.

    None where the winner's implementation compiles only on the device that runs it: nothing of it can be compiled or
    interpreted here.
    """
    implementation = get_implementation(operation.name, winner.implementation)
    if not implementation.compiles_ahead:
        return None
    compiled: tuple[Outcome, ...] = ()
    try:
        compiled = tuple(compile_all(operation, shape, device, finalists, settings))
        if not implementation.can_interpret:
            where = f"its numbers were checked on the {device.name} that recorded it"
            why = f"Triton's interpreter cannot run {implementation.title}; {where}"
            return Confirmation(compiled, None, unchecked=why)
        verdict, dtype = check_interpreted(implementation, winner.config, shape)
    except MissingDependencyError as error:
        return Confirmation(compiled, None, unchecked=str(error))
    return Confirmation(compiled, verdict, dtype)


def compile_all(
    operation: Operation[Any],
    shape: Shape,
    device: Device,
    candidates: Iterable[Candidate],
    settings: Settings | None = None,
) -> list[Outcome]:
    """Compile candidates for a device with its real compiler, in the order given; on all cores but one by default.

    Those of implementations that compile only on the device that runs them are left out; MissingDependencyError where
    this machine cannot compile.
    """
    settings = settings or Settings()
    jobs, patience = limit_jobs(settings.jobs).count, 2 * settings.compile_seconds
    wanted = [each for each in candidates if get_implementation(operation.name, each.implementation).compiles_ahead]
    if not wanted:
        return []
    found: dict[Candidate, Outcome] = {}
    pool = CompilePool(device, jobs=jobs, timeout=settings.compile_seconds)
    try:
        pool.open(operation, shape)
        unique = dict.fromkeys(wanted)
        for candidate in unique:
            pool.submit(candidate)
        for _ in unique:
            outcome = pool.receive(patience)
            if outcome is None:
                break
            found[outcome.candidate] = outcome
    finally:
        pool.close()
    silent = f"nothing compiled for {patience:.0f} s"
    return [
        found.get(each) or Outcome(candidate=each, status=Status.COMPILE_TIMEOUT, message=silent) for each in wanted
    ]


def finalists_for(result: SearchResult, target: Device) -> list[Candidate]:
    """Return the finalists of a search as candidates of another device, after its defaults.

    Where none of their implementations supports that device, the defaults of others of ours stand for them.
    """
    raced = dict.fromkeys(candidate.implementation for candidate in result.finalists)
    known = [get_implementation(result.operation.name, name) for name in raced]
    found: list[Candidate] = []
    for each in _supporting(known, result.shape, target) or _supporting(
        our_implementations(result.operation.name), result.shape, target
    ):
        name, default = each.name, each.space.default(result.shape, target)
        configs = [default]
        for config in (candidate.config for candidate in result.finalists if candidate.implementation == name):
            shared = {key: value for key, value in config.items() if None not in (value, default[key])}
            configs.append(Config({**default, **shared}))
        found += [Candidate(name, config) for config in dict.fromkeys(configs)]
    return found


def _supporting(known: Iterable[Implementation[Any]], shape: Shape, target: Device) -> list[Implementation[Any]]:
    return [each for each in known if each.supports(shape, target) is None]
