"""Identity of a trial, apart from the time and the host of its measurement."""

from collections.abc import Iterable
from typing import NamedTuple

from autotune.device import Device
from autotune.shape import Shape
from autotune.table.order import in_order
from autotune.trial import Candidate, Policy, Stage, Toolchain, Trial


class Fingerprint(NamedTuple):
    """A candidate judged for a problem, on one kind of device and toolchain, by one policy.

    Trials of one fingerprint are one trial of a grid, however often attempts at its task measured it: after a host was
    taken for dead, two may have. Rows on hosts with other toolchains or power caps have other ones.
    """

    operation: str
    shape: Shape
    candidate: Candidate
    source_hash: str
    device: Device
    toolchain: Toolchain
    executor: str
    policy: Policy
    stage: Stage


def fingerprint(trial: Trial) -> Fingerprint:
    """Return what identifies a trial."""
    return Fingerprint(
        operation=trial.operation,
        shape=trial.shape,
        candidate=trial.candidate,
        source_hash=trial.source_hash,
        device=trial.device,
        toolchain=trial.toolchain,
        executor=trial.executor,
        policy=trial.policy,
        stage=trial.stage,
    )


def distinct(trials: Iterable[Trial]) -> list[Trial]:
    """Return the oldest trial of each fingerprint, oldest first: what counts of a grid's trials."""
    found: dict[Fingerprint, Trial] = {}
    for trial in in_order(trials):
        found.setdefault(fingerprint(trial), trial)
    return list(found.values())
