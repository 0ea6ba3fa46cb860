"""``revalidate``: winners of an older toolchain or source, raced again with the stored few behind them."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from autotune.device import Device
from autotune.dispatch import default_config, reload
from autotune.errors import SearchError
from autotune.executor import Executor
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.registry import get_implementation, get_operation, operation_names
from autotune.search.recorder import Recorder, keep_race
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, ranked, served_winners, shipped_grid, winners
from autotune.trial import Candidate, Policy, Stage, Status, Toolchain, Trial

TOP: Final = 3  # of each implementation, the winner among them
SECONDS: Final = 3.0  # of a race

Verdict = Literal["stamped", "replaced", "kept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """A shape whose winners, the one that is served first, are of another toolchain or source than today's.

    ``differs`` names what does, with the values then and now.
    """

    operation: Operation[Any]
    shape: Shape
    winners: tuple[Trial, ...]
    differs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revalidated:
    """The race of an outdated shape, and what came of it.

    Attributes:
        outdated: what was raced again.
        verdict: ``stamped`` where the same candidate won, which then has a row of today's toolchain; ``replaced`` where
            another did; ``kept`` where the race decided nothing, and the old row stays, with ``failure``, the reason.
        winner: the row of today that is served from now on; None where the old one is kept.
        loss: how much longer the old candidate took than the new winner, 0.02 for 2 %; None where it was not timed.
    """

    outdated: Outdated
    verdict: Verdict
    winner: Trial | None = None
    loss: float | None = None
    failure: str = ""
    seconds: float = 0.0


def find_outdated(
    device: Device,
    policy: Policy,
    toolchain_of: Callable[[str], Toolchain],
    store: Store,
    operations: Iterable[str] = (),
) -> list[Outdated]:
    """Return the measured shapes of a device whose winners are not of a toolchain, of all operations or of these.

    A winner is of it whose source, Triton and ptxas are (``Implementation.is_current``).
    """
    found = []
    for name in operations or operation_names():
        shapes: dict[Shape, list[Trial]] = {}
        for row in served_winners(name, slug=device.slug, root=store.root):
            trial = row.trial
            if (trial.device, trial.policy, trial.executor) == (device, policy, "gpu"):
                shapes.setdefault(trial.shape, []).append(trial)
        for shape, rows in shapes.items():
            reasons = [reason for row in rows if (reason := _differs(row, toolchain_of(row.implementation)))]
            if reasons:
                operation = get_operation(name)
                found.append(Outdated(operation=operation, shape=shape, winners=tuple(rows), differs=reasons[0]))
    return found


def revalidate(
    outdated: Iterable[Outdated],
    executor: Executor,
    store: Store,
    *,
    top: int = TOP,
    seconds: float = SECONDS,
    on_result: Callable[[Revalidated], object] = lambda result: None,
) -> list[Revalidated]:
    """Race the stored few of each outdated shape again, keep the rows, and let the newest race decide.

    Of each implementation that has a winner there, the ``top`` fastest of the winner's race are raced, the winner and
    the default among them. Each candidate is checked on the full shape before it is timed, as in every race.

    Args:
        seconds: of each race, once its candidates are compiled.

    Raises:
        TableError: a stored table is damaged, or a row cannot be written.

    Example:
        >>> with contextlib.closing(open_gpu(Settings())) as gpu:
        ...     old = find_outdated(gpu.device, gpu.policy, gpu.toolchain_of, Store(home()))
        ...     revalidate(old, gpu, Store(home()))
    """
    results = []
    for each in outdated:
        started = time.monotonic()
        try:
            result = _conclude(each, _race(each, executor, store, top, seconds))
        except SearchError as error:  # of this problem, such as inputs that the memory here does not hold
            result = Revalidated(outdated=each, verdict="kept", failure=str(error))
        result = replace(result, seconds=time.monotonic() - started)
        results.append(result)
        on_result(result)
    reload()
    return results


def _race(outdated: Outdated, executor: Executor, store: Store, top: int, seconds: float) -> list[Trial]:
    operation, shape = outdated.operation, outdated.shape
    known = [*store.trials(operation.name, executor.device), *shipped_grid(operation.name), *outdated.winners]
    recorders, candidates = {}, []
    for winner in outdated.winners:
        own = get_implementation(operation.name, winner.implementation)
        default = default_config(own, shape, executor.device)
        recorder = Recorder(operation, own, shape, executor, store, winner.seed, served_default=default)
        recorder.resume([trial for trial in known if trial.implementation == own.name])
        recorders[own.name] = recorder
        candidates += [recorder.candidate(config) for config in _finalists(own, winner, default, known, top)]
    executor.open(operation, shape)
    return keep_race(executor.race(candidates, seconds=seconds), recorders)


def _finalists(
    own: Implementation[Any], winner: Trial, default: Config, known: Sequence[Trial], top: int
) -> list[Config]:
    """Return the winner, the default and the fastest of the winner's race, then of its screenings, that are valid."""
    problem = (winner.implementation, winner.shape, winner.device, winner.policy, winner.executor)
    alike = [
        trial
        for trial in known
        if (trial.implementation, trial.shape, trial.device, trial.policy, trial.executor) == problem
        and trial.status is Status.OK
        and trial.timing is not None
    ]
    raced = [trial for trial in alike if trial.stage is Stage.RACE and trial.race_id == winner.race_id]
    screened = [trial for trial in alike if trial.stage is Stage.SCREEN]
    behind = [trial.config for rows in (raced, screened) for trial in sorted(rows, key=_time)]
    chosen = dict.fromkeys([winner.config, *behind])
    valid = [each for each in chosen if own.space.why_invalid(each, winner.shape, winner.device) is None]
    return list(dict.fromkeys([*valid[:top], default]))


def _conclude(outdated: Outdated, rows: Sequence[Trial]) -> Revalidated:
    if any(row.outcome.conditions.contended for row in rows):
        why = "another process used the GPU during the race; run it again"
        return Revalidated(outdated=outdated, verdict="kept", failure=why)
    found = ranked(winners(rows))
    if not found:
        example = next((row for row in rows if row.status is not Status.OK), None)
        why = "nothing was raced" if example is None else f"{example.status} {example.outcome.message}".rstrip()
        return Revalidated(outdated=outdated, verdict="kept", failure=f"nothing was right: {why}")
    old, new = outdated.winners[0].candidate, found[0]
    return Revalidated(
        outdated=outdated,
        verdict="stamped" if new.candidate == old else "replaced",
        winner=new,
        loss=_loss(old, new, rows),
    )


def _loss(old: Candidate, new: Trial, rows: Iterable[Trial]) -> float | None:
    timing = next((row.timing for row in rows if row.candidate == old and row.status is Status.OK), None)
    return None if timing is None or new.timing is None else timing.median_us / new.timing.median_us - 1.0


def _differs(row: Trial, toolchain: Toolchain) -> str:
    """Return what differs between a row and today's toolchain and source; empty if nothing that counts."""
    own = get_implementation(row.operation, row.implementation)
    if own.is_current(row, toolchain):
        return ""
    pairs = [(name, getattr(row.toolchain, name), getattr(toolchain, name)) for name in ("triton", "ptxas")]
    parts = [f"{name} {then} then, {now} now" for name, then, now in pairs if then != now]
    if row.source_hash != own.source_hash_under(toolchain):
        parts.append("another source" if own.library is None else f"another {own.library}")
    return "; ".join(parts)


def _time(trial: Trial) -> float:
    return math.inf if trial.timing is None else trial.timing.median_us
