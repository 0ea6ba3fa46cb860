"""The parent's side of a race: finalists are raced until all that remain come to the end of it together."""

import time
from dataclasses import replace
from typing import Final

from autotune.executor import Race
from autotune.executor.child import ChildDiedError
from autotune.executor.messages import race_from_json
from autotune.executor.worker_keeper import LOST, WorkerKeeper
from autotune.space import Config
from autotune.trial import Outcome, Status

MARGIN_SECONDS: Final = 120.0  # references of the full shape, checks and captures of the finalists


def race(
    workers: WorkerKeeper, configs: list[Config], *, seconds: float, every_baseline: bool, patience: float
) -> Race:
    """Race these configs; one that takes the worker along is blamed, and the others are raced again without it.

    The worker says whom it works on, so the one is known; where it was at none of them, all are void. The others get
    what is left of ``seconds``. A race is over after that and ``MARGIN_SECONDS``, and each loss takes one config away,
    so that the whole ends within ``seconds + (1 + losses) * MARGIN_SECONDS`` and the start of a worker a loss.

    Args:
        patience: for how many seconds the worker may be silent over one config.

    Raises:
        MissingDependencyError: the GPU does not work.
        SearchError: the worker cannot make the problem's inputs.
    """
    ends = time.monotonic() + seconds
    found = _race_once(workers, configs, seconds=seconds, every_baseline=every_baseline, patience=patience)
    if isinstance(found, Race):
        return found
    others = [config for config in configs if config != found.config]
    rest = Race(())
    if others:
        left = max(0.0, ends - time.monotonic())
        rest = race(workers, others, seconds=left, every_baseline=every_baseline, patience=patience)
    outcomes = {outcome.config: outcome for outcome in (found, *rest.outcomes)}
    return replace(rest, outcomes=tuple(outcomes[config] for config in configs))


def _race_once(
    workers: WorkerKeeper, configs: list[Config], *, seconds: float, every_baseline: bool, patience: float
) -> Race | Outcome:
    """A race to its end, or the outcome of the config that ended it."""
    plain = [dict(config) for config in configs]
    workers.await_ready()
    while not workers.ask({"do": "race", "configs": plain, "seconds": seconds, "every_baseline": every_baseline}):
        workers.await_ready()
    ends = time.monotonic() + seconds + MARGIN_SECONDS
    suspect: Config | None = None
    while True:
        left = max(0.0, ends - time.monotonic())
        wait = left if suspect is None else min(left, patience)
        try:
            message = workers.receive(wait)
        except KeyboardInterrupt:
            workers.lose()  # it would answer what nobody waits for any more
            raise
        except ChildDiedError as error:
            message = {"status": Status.WORKER_DIED, "message": str(error)}
        if message is None:
            message = {"status": Status.HANG, "message": f"the race stood still for {wait:.3g} s"}
        if "race" in message:
            return race_from_json(message["race"])
        if "status" in message:
            break
        suspect = None if message["working_on"] is None else configs[message["working_on"]]
    status, reason = Status(message["status"]), message["message"]
    if status in LOST:
        workers.lose()
    if suspect is None:
        return Race(tuple(Outcome(config=config, status=status, message=reason) for config in configs))
    return Outcome(config=suspect, status=status, message=reason)
