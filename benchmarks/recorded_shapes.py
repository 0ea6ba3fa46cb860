"""Recorded shapes: the times of configs over that of the best, read from tables of sweeps, winners and grids."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

from autotune.device import Device
from autotune.implementation import Implementation
from autotune.shape import Shape
from autotune.space import Config
from autotune.table.portfolios import BROAD
from autotune.trial import Policy, Stage, Status, Trial

TOLERANCE: Final = 0.02  # regret up to which a config covers a shape
# How trials end for which a call has ``autotune.errors.is_toolchain_refusal``: the next candidate takes it.
REFUSED: Final = (Status.COMPILE_ERROR, Status.OUT_OF_RESOURCES)

# A member of a portfolio: a config, or None for the rule that is the space's default.
Member = Config | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedShape:
    """The times of configs for one shape on one device, over that of the best; infinite for what failed.

    ``refused`` are those that the toolchain refused, and that give way to another when served; all else that failed
    would have been served. ``default`` is what the space's default is there. ``races`` are the least times, in us, of
    all its races in any table, by their names. ``unraced`` is the time of its best over the least of ``newest_race``: 1
    but where that race had no place for the best screened config, as where another implementation won by far.
    ``source_hash`` and ``triton`` are those of its newest row.
    """

    shape: Shape
    device: Device
    ratios: Mapping[Config, float]
    refused: frozenset[Config] = frozenset()
    default: Config
    source_hash: str
    triton: str
    races: Mapping[str, float] = field(default_factory=dict)
    newest_race: str = ""
    unraced: float = 1.0

    @property
    def timed(self) -> int:
        """The number of configs that have a time."""
        return sum(ratio < math.inf for ratio in self.ratios.values())

    @property
    def is_broad(self) -> bool:
        """Return True if it times enough configs to say what a wrong one costs."""
        return self.timed > BROAD

    @property
    def best(self) -> Config:
        """The winner."""
        return min(self.ratios, key=lambda config: self.ratios[config])

    def regret(self, member: Member) -> float | None:
        """Return how much longer a member takes than the best, 0.02 for 2 %; None where it was not timed."""
        ratio = self.ratios.get(self.default if member is None else member)
        return None if ratio is None else max(0.0, ratio - 1.0)

    def served_regret(self, member: Member) -> float | None:
        """Return what is lost where a member is served: one that the toolchain refuses gives way to the default.

        Of one that failed otherwise, as by a wrong result, it is infinite, since nothing would stop it.
        """
        return self.regret(None if member in self.refused else member)

    def worst_regret(self, members: Iterable[Member]) -> float:
        """Return the most that one of these members loses that was timed, and at least ``TOLERANCE``."""
        known = [regret for member in members if (regret := self.served_regret(member)) is not None]
        return max([TOLERANCE, *(regret for regret in known if regret < math.inf)])


def read_recordings(implementation: Implementation[Any], tables: Iterable[Sequence[Trial]]) -> list[RecordedShape]:
    """Make a recording of each shape and device in tables, of sweeps, winners and searches alike.

    Times that a race measured are compared within the newest race of a table, others by screening, over the fastest
    screened one. A screening errs by a few percent, and a race has few places: of configs near the best, those that
    found none count by their screening alone. Where the race had no place for the best one, as where another
    implementation won by far, raced times count over that one's, as screened. A winner's row that stands
    alone says that the winner is the best, and what the default took beside it. Of a shape that several tables have,
    the one counts that timed the most configs. Only what a GPU measured by the usual policy, undisturbed, counts.
    """
    found: dict[tuple[Shape, Device], RecordedShape] = {}
    races: dict[tuple[Shape, Device], dict[str, float]] = {}
    for table in tables:
        problems: dict[tuple[Shape, Device], list[Trial]] = {}
        for trial in table:
            if is_usual(trial) and trial.implementation == implementation.name:
                problems.setdefault((trial.shape, trial.device), []).append(trial)
        for key, trials in problems.items():
            _note_races(trials, races.setdefault(key, {}))
            recording = _recording(implementation, trials)
            if recording is not None and (key not in found or recording.timed > found[key].timed):
                found[key] = recording
    known = [replace(each, races=races[key]) for key, each in found.items()]
    return sorted(known, key=lambda each: repr((each.shape, each.device)))


def is_usual(trial: Trial) -> bool:
    """Return True if a GPU measured a trial, undisturbed and by the usual policy."""
    return (trial.policy, trial.executor) == (Policy(), "gpu") and not trial.outcome.conditions.contended


def _note_races(trials: Iterable[Trial], races: dict[str, float]) -> None:
    """Add the least time of each race."""
    for trial in trials:
        if trial.stage is Stage.RACE and trial.status is Status.OK and trial.timing is not None and trial.race_id:
            races[trial.race_id] = min(trial.timing.median_us, races.get(trial.race_id, math.inf))


def _recording(implementation: Implementation[Any], trials: Sequence[Trial]) -> RecordedShape | None:
    shape, device = trials[0].shape, trials[0].device
    default = implementation.space.default(shape, device)
    newest_race = max((trial.race_id for trial in trials if trial.stage is Stage.RACE), default="")
    screened = _times(trial for trial in trials if trial.stage is Stage.SCREEN)
    raced = _times(trial for trial in trials if trial.stage is Stage.RACE and trial.race_id == newest_race)
    failed = {trial.config for trial in trials if trial.stage is Stage.RACE and trial.status is not Status.OK}
    unraced = _unraced({config: time for config, time in screened.items() if config not in failed}, raced)
    ratios: dict[Config, float] = {}
    for times, scale in ((screened, 1.0), (raced, unraced)):  # a race overrules screening
        best = scale * min(times.values(), default=math.inf)
        ratios |= {config: time / best for config, time in times.items()} if best < math.inf else {}
    beside = next((t for t in trials if t.race_id == newest_race and t.config in raced and t.default_timing), None)
    if beside is not None and beside.default_timing is not None and beside.default_config is not None:
        ratios.setdefault(beside.default_config, beside.default_timing.median_us / (unraced * min(raced.values())))
    if not any(ratio < math.inf for ratio in ratios.values()):
        return None
    newest = max(trials, key=lambda trial: trial.started_at)
    return RecordedShape(
        shape=shape,
        device=device,
        ratios=ratios,
        refused=frozenset(t.config for t in trials if t.status in REFUSED and ratios.get(t.config) == math.inf),
        default=default,
        source_hash=newest.source_hash,
        triton=newest.toolchain.triton,
        newest_race=newest_race,
        unraced=unraced,
    )


def _unraced(screened: Mapping[Config, float], raced: Mapping[Config, float]) -> float:
    """Return the time of the best screened config over the least raced one; 1.0 unless it was faster, and not raced.

    What both measured says how much longer a race takes, in which GPUs get warm. Less than ``TOLERANCE`` is noise.
    """
    best = min(raced.values(), default=math.inf)
    others = [time for config, time in screened.items() if config not in raced]
    if best == math.inf or not others:
        return 1.0
    warmer = [
        raced[config] / time for config, time in screened.items() if raced.get(config, math.inf) < math.inf > time
    ]
    found = min(others) * (median(warmer) if warmer else 1.0) / best
    return found if found < 1.0 - TOLERANCE else 1.0


def find_behind(
    recordings: Sequence[RecordedShape], rivals: Iterable[RecordedShape]
) -> dict[tuple[Shape, Device], float]:
    """Return how much longer the best of each recording took than the best of all in one race, 0.0 where it won.

    The newest race counts that both were in; one that another implementation was not in says nothing.

    Args:
        rivals: recordings of other implementations.
    """
    least: dict[str, float] = {}
    for each in rivals:
        for race, time in each.races.items():
            least[race] = min(time, least.get(race, math.inf))
    found = {}
    for each in recordings:
        if shared := each.races.keys() & least.keys():
            race = max(shared)  # names begin with the date
            best = each.races[race] * (each.unraced if race == each.newest_race else 1.0)
            found[each.shape, each.device] = max(0.0, best / least[race] - 1.0)
    return found


def _times(trials: Iterable[Trial]) -> dict[Config, float]:
    """Return the time of each config, infinite for one that failed; none of one that a rough pass gave up.

    Until 2026-11-27 that was the mean of launches that are not captured: often the time of Python, which stood still.
    """
    return {
        trial.config: trial.timing.median_us
        if trial.timing is not None and trial.status in (Status.OK, Status.SLOW)
        else math.inf
        for trial in trials
        if trial.status is not Status.SLOW or trial.timing is None or trial.timing.samples > 1
    }
