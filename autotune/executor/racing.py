"""The parent's side of a race: finalists are raced until all that remain come to the end of it together."""

import math
import time
from dataclasses import dataclass, replace
from typing import Final, get_args

from autotune.errors import SearchError, UnknownNameError
from autotune.executor import BaselineResult, Baselines, Choice, Race, is_comparison
from autotune.executor.child import ChildDiedError
from autotune.executor.messages import Turn, race_from_json
from autotune.executor.worker_keeper import LOST, WorkerKeeper
from autotune.space import Config
from autotune.trial import Outcome, Status

NOBODY_SECONDS: Final = 180.0  # at nobody's turn: the reference of the full shape in fp64
BASELINE_SECONDS: Final = 180.0  # at a baseline's: some compile for a minute and more


@dataclass(frozen=True, slots=True)
class _Lost:
    """A race that came to no end: at whose turn, and how."""

    turn: Turn
    status: Status
    message: str


def race(
    workers: WorkerKeeper,
    configs: list[Config],
    *,
    seconds: float,
    baselines: Baselines,
    patience: float,
    lost: tuple[BaselineResult, ...] = (),
) -> Race:
    """Race these configs; one that takes the worker along is blamed, and the others are raced again without it.

    The worker says whose turn it is, so the one is known. Where it was a baseline's, all are raced again without it;
    where it was nobody's, without baselines: no finalist is blamed for that. The others get what is left of
    ``seconds``, in a comparison all of them, since what was sampled is lost. Each loss takes one config or baseline
    away, or all baselines, so that the whole ends.

    The worker hangs when it is silent at one turn for too long. The whole race has no limit here: ``timing.race`` keeps
    its seconds but for a least number of rounds, which takes as long as the shape is slow. Turns are finitely many, so
    that a worker that is stuck is found however far it came.

    Args:
        patience: for how many seconds the worker may be silent at one config's turn; at a baseline's these are
            ``BASELINE_SECONDS``, at nobody's ``NOBODY_SECONDS``.
        lost: the baselines that took a worker along, which are left out and told beside the others.

    Raises:
        UnknownNameError: ``baselines`` is another text, such as one name by itself.
        MissingDependencyError: the GPU does not work.
        SearchError: the worker cannot make the problem's inputs, or the race was lost at nobody's turn again.
    """
    if isinstance(baselines, str) and baselines not in get_args(Choice):
        allowed = f"{', '.join(get_args(Choice))}, or a list of names"
        raise UnknownNameError(f"baselines={baselines!r} is unknown; allowed: {allowed}")
    ends = math.inf if is_comparison(baselines) else time.monotonic() + seconds
    without = [result.name for result in lost]
    found = _race_once(workers, configs, seconds=seconds, baselines=baselines, without=without, patience=patience)
    if isinstance(found, Race):
        return replace(found, baselines=(*found.baselines, *lost))

    def again(those: list[Config], with_baselines: Baselines, lost: tuple[BaselineResult, ...] = lost) -> Race:
        left = min(seconds, max(0.0, ends - time.monotonic()))
        return race(workers, those, seconds=left, baselines=with_baselines, patience=patience, lost=lost)

    if isinstance(found.turn, int):
        guilty = Outcome(config=configs[found.turn], status=found.status, message=found.message)
        others = [config for config in configs if config != guilty.config]
        rest = again(others, baselines) if others else Race(())
        outcomes = {outcome.config: outcome for outcome in (guilty, *rest.outcomes)}
        extra = dict(zip(others, rest.extra_bytes, strict=True)) if rest.extra_bytes else {}
        return replace(
            rest,
            outcomes=tuple(outcomes[config] for config in configs),
            extra_bytes=tuple(extra.get(config) for config in configs) if extra else (),
        )
    if baselines == "none":
        raise SearchError(f"the race failed while no finalist ran: {found.status}: {found.message}")
    if found.turn is None:
        return again(configs, "none")
    return again(configs, baselines, (*lost, BaselineResult(found.turn, message=found.message)))


def _race_once(
    workers: WorkerKeeper,
    configs: list[Config],
    *,
    seconds: float,
    baselines: Baselines,
    without: list[str],
    patience: float,
) -> Race | _Lost:
    """A race to its end, or who ended it."""
    plain = [dict(config) for config in configs]
    named = baselines if isinstance(baselines, str) else list(baselines)
    workers.await_ready()
    request = {"do": "race", "configs": plain, "seconds": seconds, "baselines": named, "without": without}
    while not workers.ask(request):
        workers.await_ready()
    turn: Turn = None
    while True:
        wait = patience if isinstance(turn, int) else BASELINE_SECONDS if turn else NOBODY_SECONDS
        try:
            message = workers.receive(wait)
        except KeyboardInterrupt:
            workers.lose()  # it would answer what nobody waits for any more
            raise
        except ChildDiedError as error:
            message = {"status": Status.WORKER_DIED, "message": str(error)}
        if message is None:
            message = {"status": Status.HANG, "message": f"the race stood still for {wait:g} s"}
        if "race" in message:
            return race_from_json(message["race"])
        if "status" in message:
            break
        turn = message["working_on"]
    lost = _Lost(turn, Status(message["status"]), message["message"])
    if lost.status in LOST:
        workers.lose()
    return lost
