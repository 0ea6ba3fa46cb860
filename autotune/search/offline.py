"""What can be confirmed of a replayed winner without a GPU: it compiles, it fits, and its numbers are right."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from autotune.correctness import Verdict
from autotune.device import Device
from autotune.executor.child import ChildDiedError
from autotune.executor.compile_pool import CompilePool, limit_jobs
from autotune.executor.interpreter import check_interpreted
from autotune.executor.select import Settings
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome, Status


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Finalists as the real compiler sees them, and the winner's numbers as Triton's interpreter computes them."""

    compiled: tuple[Outcome, ...]
    verdict: Verdict
    dtype: str

    @property
    def holds(self) -> bool:
        """Whether every finalist compiles and fits, and the winner's numbers are right."""
        return self.verdict.status is Status.OK and all(outcome.status is Status.OK for outcome in self.compiled)


def confirm(
    operation: Operation[Any],
    shape: Shape,
    device: Device,
    finalists: Iterable[Config],
    winner: Config,
    settings: Settings | None = None,
) -> Confirmation | None:
    """Compile the finalists for the device and check the winner on reduced problems, all on this machine's CPU.

    None where the operation compiles only on the device that runs it: there is nothing to compile or to interpret.
    """
    if not operation.compiles_ahead:
        return None
    compiled = compile_all(operation, shape, device, finalists, settings)
    verdict, dtype = check_interpreted(operation, winner, shape)
    return Confirmation(tuple(compiled), verdict, dtype)


def compile_all(
    operation: Operation[Any],
    shape: Shape,
    device: Device,
    configs: Iterable[Config],
    settings: Settings | None = None,
) -> list[Outcome]:
    """Compile configs for a device with its real compiler, in the order given; on all cores but one unless told.

    There is no outcome where the operation compiles only on the device that runs it.
    """
    if not operation.compiles_ahead:
        return []
    settings = settings or Settings()
    jobs, patience = limit_jobs(settings.jobs).count, 2 * settings.compile_seconds
    wanted = list(configs)
    status, message = Status.COMPILE_TIMEOUT, f"nothing compiled for {patience:.0f} s"
    found: dict[Config, Outcome] = {}
    pool = CompilePool(device, jobs=jobs, timeout=settings.compile_seconds)
    try:
        pool.open(operation, shape)
        for config in wanted:
            pool.submit(config)
        for _ in wanted:
            outcome = pool.receive(patience)
            if outcome is None:
                break
            found[outcome.config] = outcome
    except ChildDiedError as error:
        status, message = Status.COMPILE_ERROR, f"the compilers do not work: {error}"
    finally:
        pool.close()
    return [found.get(config) or Outcome(config=config, status=status, message=message) for config in wanted]
