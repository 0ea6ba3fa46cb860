"""The fate of a config: pure functions over trials, as text and as plain data."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from autotune.console.winners import candidate_data, policy_text, speed_up, trial_data, verdict, winner_lines
from autotune.device import Device
from autotune.operation import Operation
from autotune.registry import get_implementation
from autotune.shape import Shape
from autotune.table import tie_set, winners
from autotune.trial import Candidate, Resources, Stage, Status, Trial, median_us
from autotune.units import count_text, timing_text

TIED: Final = (
    "measurement cannot tell the two apart: the default goes first, then less shared memory, fewer registers, "
    "the order of the space"
)


class Fate(StrEnum):
    """The fate of a config at one shape."""

    PRUNED = "pruned"
    UNTRIED = "never tried"
    UNKNOWN = "not in any table"  # such a table keeps the winner alone: it may have been tried
    FAILED = "failed"
    LOST = "lost"
    LEADING = "leading"  # no race has decided yet
    WON = "won"


class Source(NamedTuple):
    """Trials of one shape on one device that were recorded together, and the name of their place."""

    place: str
    trials: Sequence[Trial]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The fate of a config, and the rows that decide it.

    ``reason`` is why it was pruned or failed. ``trial`` is its own row of the stage that decided, ``rival`` the row of
    the same stage that beat it, ``faster`` how many of the ``compared`` ones of that stage did. ``source`` names the
    place of the rows; ``tried`` counts the configs that were screened there with the winner's source and Triton.
    ``served`` says why ``get_kernel`` answers with this config although no row of the shape has it, ``instead`` what of
    another implementation it answers with although this config won.
    """

    operation: str
    shape: Shape
    device: Device
    candidate: Candidate
    fate: Fate
    reason: str = ""
    trial: Trial | None = None
    rival: Trial | None = None
    winner: Trial | None = None
    faster: int = 0
    compared: int = 0
    source: str = ""
    tried: int = 0
    served: str = ""
    instead: str = ""


def explain_candidate(
    operation: Operation[Any], shape: Shape, device: Device, candidate: Candidate, sources: Iterable[Source]
) -> Explanation:
    """Find the fate of a candidate among its implementation's rows; the first source that has it decides."""
    known = list(sources)
    found = next((source for source in known if any(t.candidate == candidate for t in source.trials)), None)
    reason = _why_pruned(operation, shape, device, candidate)
    asked = Explanation(operation=operation.name, shape=shape, device=device, candidate=candidate, fate=Fate.PRUNED)
    if found is not None and reason is None:
        return _judge(asked, found)
    trials = [trial for source in known for trial in source.trials]
    best = next((won for source in known if (won := _winner(source.trials)) is not None), None)
    asked = replace(asked, winner=best, compared=len({trial.config for trial in trials}))
    if reason is not None:
        return replace(asked, reason=reason)
    is_screening_kept = any(trial.stage is Stage.SCREEN for trial in trials)
    return replace(asked, fate=Fate.UNTRIED if best is None or is_screening_kept else Fate.UNKNOWN)


def _judge(asked: Explanation, source: Source) -> Explanation:
    """Judge a candidate that was tried by its last race, or by its screening where it was not raced."""
    best, candidate = _winner(source.trials), asked.candidate
    own = [trial for trial in source.trials if trial.candidate == candidate]
    trial = max(own, key=lambda t: (t.stage is Stage.RACE, t.started_at))
    field = [t for t in source.trials if _group(t) == _group(trial)]
    timed = sorted((t for t in field if t.timing and t.status in (Status.OK, Status.SLOW)), key=median_us)
    rival = next(iter(timed), None)
    if trial.stage is Stage.RACE:
        rival = next(iter(tie_set(field)), None)
        if best is not None and rival is trial:
            rival = best
    elif best is not None:
        rival = next((t for t in timed if t.config == best.config), rival)
    if trial not in timed:
        fate = Fate.FAILED
    elif best is not None:
        fate = Fate.WON if best.candidate == candidate else Fate.LOST
    else:
        fate = Fate.LEADING if rival is trial else Fate.LOST
    if fate is Fate.LOST and rival is trial:
        rival = None  # the winner is of another source or Triton: no row here is comparable
    best_origin = None if best is None else _origin(best)  # without screenings where only the winner was kept
    return replace(
        asked,
        fate=fate,
        reason=trial.outcome.message if fate is Fate.FAILED else "",
        trial=trial,
        rival=rival,
        winner=best,
        faster=sum(median_us(other) < median_us(trial) for other in timed) if trial in timed else 0,
        compared=len(timed),
        source=source.place,
        tried=len({t.config for t in source.trials if t.stage is Stage.SCREEN and _origin(t) == best_origin}),
    )


def explanation_lines(found: Explanation) -> list[str]:
    lines = [
        f"kernel    {found.candidate.implementation}",
        f"config    {found.candidate.config}",
        f"shape     {found.shape}",
        f"device    {found.device.name}",
        f"verdict   {_verdict(found)}",
    ]
    trial = found.trial
    if found.served:
        lines.append(f"served    {found.served}")
    if found.instead:
        lines.append(f"instead   {found.instead} is served")
    if trial is not None:
        lines.append(f"recorded  {_recorded(trial)} in {found.source}")
    if found.fate is Fate.LOST and trial is not None and found.rival is not None:
        lines += _beside(trial, found.rival)
    if trial is not None and found.fate in (Fate.FAILED, Fate.LEADING, Fate.WON):
        lines.append(f"takes     {_takes(trial.outcome.resources)}")
    if found.winner is not None and found.fate is Fate.WON:
        lines += winner_lines(found.winner)[1:-1]
    elif found.winner is not None:
        lines.append(f"winner    {found.winner.config}")
    return lines


def explanation_data(found: Explanation) -> dict[str, Any]:
    rows = {"trial": found.trial, "rival": found.rival, "winner": found.winner}
    return {
        "operation": found.operation,
        "shape": found.shape.as_dict(),
        "device": asdict(found.device),
        **candidate_data(found.candidate),
        "stage": None if found.trial is None else found.trial.stage,
        **{
            name: getattr(found, name)
            for name in ("fate", "reason", "faster", "compared", "source", "served", "instead")
        },
        **{name: None if row is None else trial_data(row) for name, row in rows.items()},
    }


def _verdict(found: Explanation) -> str:
    trial = found.trial
    if found.fate is Fate.PRUNED:
        return f"pruned before compiling: {found.reason}"
    if found.fate is Fate.UNKNOWN:
        return "not in any table here: it is valid, and of this shape only the winner ships"
    if trial is None and not found.compared:
        return "never tried at this shape: it is valid, and so far nothing was"
    if trial is None:
        others = f"{count_text(found.compared, 'other config')} {'was' if found.compared == 1 else 'were'}"
        return f"never tried at this shape: it is valid, and {others}"
    if found.fate is Fate.LOST and found.rival is None and trial.stage is Stage.SCREEN:
        return f"lost: the fastest of {found.compared} screened of its source and Triton, and a race of others decides"
    stage = "in the race" if trial.stage is Stage.RACE else "at screening"
    if found.fate is Fate.FAILED:
        return f"failed {stage} as {trial.status}: {found.reason or 'no message'}"
    if found.fate is Fate.WON:
        assert found.winner is not None
        among = count_text(found.tried, "config") if found.tried else ""
        return f"won; {verdict(found.winner, among=among)}"
    if found.fate is Fate.LEADING:
        return f"leading {stage}, the fastest of {found.compared}; no race has decided yet"
    if found.rival is not None and found.rival.race_id != trial.race_id:
        return "lost: it won an earlier race, and a newer one decides"
    if found.faster == 0 or (found.rival is not None and len(tie_set([trial, found.rival])) == 2):
        return f"lost {stage}, level with the winner: {TIED}"
    early = ", stopped early" if trial.status is Status.SLOW else ""
    return f"lost {stage}{early}: {found.faster} of {found.compared - 1} others were faster"


def _beside(trial: Trial, rival: Trial) -> list[str]:
    """Compare the time and resources of a config with those of the one that beat it."""
    assert trial.timing is not None
    assert rival.timing is not None
    slower = speed_up(trial.timing, rival.timing)
    return [
        f"time      {timing_text(trial.timing)} against {timing_text(rival.timing)}, {slower} as long",
        f"takes     {_takes(trial.outcome.resources)}",
        f"against   {_takes(rival.outcome.resources)}",
    ]


def _takes(resources: Resources) -> str:
    if resources == Resources():
        return "registers and shared memory are not known"
    numbers = (resources.registers, resources.spill_bytes, resources.shared_bytes)
    registers, spilled, shared = ("?" if value is None else value for value in numbers)
    return f"{registers} registers, {spilled} bytes spilled, {shared} bytes of shared memory"


def _recorded(trial: Trial) -> str:
    library = get_implementation(trial.operation, trial.implementation).library
    names = ("triton", *([library] if library else []), "driver")
    tools = ", ".join(f"{name} {version}" for name in names if (version := getattr(trial.toolchain, name, "")))
    verb = "replayed" if trial.executor == "replay" else "measured"
    return f"{trial.started_at:%Y-%m-%d %H:%M} UTC, {verb} by {trial.worker} with {tools}{policy_text(trial.policy)}"


def _winner(trials: Sequence[Trial]) -> Trial | None:
    return next(iter(winners(trials)), None)


def _group(trial: Trial) -> tuple[object, ...]:
    """Return the key that two trials share whose times may be compared."""
    return trial.stage, trial.race_id, trial.policy, *_origin(trial)


def _origin(trial: Trial) -> tuple[str, str]:
    return trial.source_hash, trial.toolchain.triton


def _why_pruned(operation: Operation[Any], shape: Shape, device: Device, candidate: Candidate) -> str | None:
    implementation = get_implementation(operation.name, candidate.implementation)
    names = [parameter.name for parameter in implementation.space.parameters]
    unknown = [name for name in candidate.config if name not in names]
    if unknown:
        return f"{', '.join(unknown)} is no parameter of {implementation.title}; it has {', '.join(names)}"
    reason = implementation.supports(shape, device)
    return reason or implementation.space.why_invalid(candidate.config, shape, device)
