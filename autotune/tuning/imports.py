"""``import_tables``: winners of others, checked here before they may be served."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from autotune.dispatch import reload
from autotune.errors import SearchError
from autotune.executor import Executor
from autotune.executor.select import Settings
from autotune.registry import get_implementation, get_operation
from autotune.search import confirm
from autotune.search.recorder import NO_VERDICT
from autotune.table import Store, shipped_winners, warn_damaged
from autotune.table.foreign import (
    Foreign,
    forget_unconfirmed,
    is_kept,
    keep_confirmed,
    keep_unconfirmed,
    read_foreign,
)
from autotune.trial import Status, Trial

Verdict = Literal["confirmed", "not confirmed", "refuted"]

SILENCE: Final = 300.0  # seconds without an answer for one config, its compile included


@dataclass(frozen=True, slots=True)
class Checked:
    """A foreign winner, the verdict of the check here, and how it was come to, in words."""

    trial: Trial
    verdict: Verdict
    how: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: what was read, and the verdict on each winner."""

    foreign: Foreign
    checked: tuple[Checked, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(each.verdict == verdict for each in self.checked)


def import_tables(
    sources: Iterable[Path],
    store: Store,
    *,
    executor: Executor | None = None,
    settings: Settings | None = None,
    on_read: Callable[[Foreign], object] = lambda foreign: None,
    on_checked: Callable[[Checked], object] = lambda checked: None,
) -> Imported:
    """Read tables of others, check their winners here, and keep those that hold in the store.

    Only winners are taken, one row each. Where ``executor`` measures on a GPU of the row's architecture, the config is
    compiled, and its numbers are checked there; else it is compiled for its device, and its numbers are checked in
    Triton's interpreter. What is refuted is dropped. What can be checked by neither is kept apart in the store, is not
    served, and may be imported again elsewhere (``autotune.table.foreign``). What was confirmed before is not checked
    again, so that an import that was interrupted goes on; nor is what ships, which is served without the store.

    The row keeps its time, which nothing here confirms: it decides only where no race in the store does, however old
    (``autotune.table.winners``), and ``verify`` measures it.

    Raises:
        TableError: the store is damaged or cannot be written.
    """
    foreign = read_foreign(sources)
    on_read(foreign)
    ships = _shipped_as(foreign.winners)
    checked = []
    for trial in foreign.winners:
        if trial in ships:
            forget_unconfirmed(store, trial)  # of an import before this version
            result = Checked(trial, "confirmed", "ships with this version")
        else:
            result = _take(trial, store, executor, settings)
        checked.append(result)
        on_checked(result)
    reload()
    return Imported(foreign, tuple(checked))


def _shipped_as(trials: Iterable[Trial]) -> set[Trial]:
    """Return what ships of the implementations of some rows."""
    owners = {(each.operation, each.implementation) for each in trials}
    return {
        trial
        for operation, name in owners
        for trial in shipped_winners(operation, implementation=name, on_damaged=warn_damaged)
    }


def _take(trial: Trial, store: Store, executor: Executor | None, settings: Settings | None) -> Checked:
    """Check a row that does not ship, and keep it by the verdict."""
    if is_kept(store, trial):
        result = Checked(trial, "confirmed", "in these tables already")
    else:
        result = _check(trial, executor, settings)
    if result.verdict == "confirmed":
        keep_confirmed(store, trial)
    elif result.verdict == "refuted":
        forget_unconfirmed(store, trial)
    else:
        keep_unconfirmed(store, trial)
    return result


def _check(trial: Trial, executor: Executor | None, settings: Settings | None) -> Checked:
    own = get_implementation(trial.operation, trial.implementation)
    reason = own.supports(trial.shape, trial.device) or own.space.why_invalid(trial.config, trial.shape, trial.device)
    if reason is not None:
        return Checked(trial, "refuted", f"invalid for its own shape: {reason}")
    if executor is not None and executor.name == "gpu" and executor.device.arch == trial.device.arch:
        return _check_on_gpu(trial, executor)
    return _check_compiled(trial, settings)


def _check_on_gpu(trial: Trial, executor: Executor) -> Checked:
    executor.open(get_operation(trial.operation), trial.shape)
    executor.submit(trial.candidate)
    try:
        outcome = executor.collect(SILENCE)
    except SearchError as error:  # of this problem, such as inputs that its memory does not hold
        return Checked(trial, "not confirmed", f"{executor.device.name} gave no verdict: {error}")
    if outcome is None or outcome.status in NO_VERDICT:
        why = "no answer" if outcome is None else str(outcome.status)
        return Checked(trial, "not confirmed", f"{executor.device.name} gave no verdict: {why}")
    if outcome.status not in (Status.OK, Status.SLOW):
        return Checked(trial, "refuted", f"{outcome.status} on {executor.device.name}: {outcome.message}".rstrip(": "))
    return Checked(trial, "confirmed", f"numbers right on {executor.device.name}")


def _check_compiled(trial: Trial, settings: Settings | None) -> Checked:
    operation = get_operation(trial.operation)
    found = confirm(operation, trial.shape, trial.device, [trial.candidate], trial.candidate, settings)
    if found is None:
        return Checked(trial, "not confirmed", "it compiles only on the device that runs it")
    failed = next((outcome for outcome in found.compiled if outcome.status is not Status.OK), None)
    if failed is not None:
        return Checked(trial, "refuted", f"{failed.status} for {trial.device.arch}: {failed.message}".rstrip(": "))
    if found.verdict is None:
        own = get_implementation(trial.operation, trial.implementation)
        why = found.unchecked if own.can_interpret else f"Triton's interpreter cannot run {own.title}"
        return Checked(trial, "not confirmed", why)
    verdict: Verdict = "confirmed" if found.holds else "refuted"
    return Checked(trial, verdict, found.checked)
