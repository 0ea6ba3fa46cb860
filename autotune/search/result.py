"""Limits and results of searches, as plain data; and the shipped tables of finished sweeps."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from autotune.errors import SearchError
from autotune.operation import Operation
from autotune.registry import get_implementation
from autotune.search.recorder import NO_VERDICT
from autotune.shape import Shape
from autotune.table import write_shipped
from autotune.trial import Candidate, Policy, Stage, Status, Trial

RACE_SHARE: Final = 0.3  # of a budget in seconds
MIN_RACE_SECONDS, MAX_RACE_SECONDS = 2.0, 12.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a search: configs that reached the device, and seconds from start to stored winner; None: no limit.

    Both count over all implementations. With ``converge`` the study of an implementation also ends when a quarter of
    its valid configs was tried and the last 30 gained less than 1 %.
    """

    trials: int | None = None
    seconds: float | None = None
    converge: bool = False

    @property
    def race_seconds(self) -> float:
        """The part of the budget that the race may take."""
        if self.seconds is None:
            return MAX_RACE_SECONDS
        return min(max(self.seconds * RACE_SHARE, MIN_RACE_SECONDS), MAX_RACE_SECONDS)


class Ending(StrEnum):
    """The reason why a search stopped asking for configs."""

    EXHAUSTED = "every valid config was tried"
    TRIALS = "the budget of trials was spent"
    SECONDS = "only the race's part of the budget of time was left"
    CONVERGED = "it had converged"
    INTERRUPTED = "it was interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplementationResult:
    """The part of one implementation in a search.

    ``skipped`` says why nothing of it was tried: it does not support the shape, has no valid config, or a replay has no
    recording of it. ``statuses`` count the verdicts of this run and of earlier ones, ``measured`` those of this run.
    """

    implementation: str
    skipped: str = ""
    valid: int = 0
    measured: int = 0
    resumed: int = 0
    statuses: Mapping[Status, int]
    best_screened: Trial | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search. ``winner`` is None only if it was interrupted before a race.

    ``recorded`` are the verdicts that it rests on, one a candidate, and the winner's race; ``ties`` are those of that
    race that measurement cannot tell from it. ``is_decided``: the last race had the GPU to itself and all finalists of
    what was screened, and came to a result. ``contended`` counts the rows of this run that were timed while another
    process used the GPU. Counts are over all ``implementations``.
    """

    operation: Operation[Any]
    shape: Shape
    winner: Trial | None
    ties: tuple[Trial, ...] = ()
    best_screened: Trial | None
    implementations: tuple[ImplementationResult, ...]
    ending: Ending
    seconds: float = 0.0
    recorded: tuple[Trial, ...] = ()
    is_decided: bool = True
    contended: int = 0

    @property
    def statuses(self) -> dict[Status, int]:
        """Count the verdicts on all candidates, of this run and of earlier ones."""
        return dict(sum((Counter(part.statuses) for part in self.implementations), Counter[Status]()))

    @property
    def valid(self) -> int:
        """The number of valid configs."""
        return sum(part.valid for part in self.implementations)

    @property
    def measured(self) -> int:
        """The number of verdicts of this run."""
        return sum(part.measured for part in self.implementations)

    @property
    def resumed(self) -> int:
        """The number of verdicts of earlier runs."""
        return sum(part.resumed for part in self.implementations)

    @property
    def interrupted(self) -> bool:
        """True if the caller stopped it: what was found until then stands."""
        return self.ending is Ending.INTERRUPTED

    @property
    def finalists(self) -> list[Candidate]:
        """The winner and what was level with it."""
        found = [self.winner, *self.ties]
        return list(dict.fromkeys(trial.candidate for trial in found if trial is not None))


def ship_sweep(result: SearchResult, results: Path) -> None:
    """Write a finished sweep below ``results``, a table for each implementation: all verdicts, and their race.

    SearchError, before anything is written, for one that is not complete or not decided, or where another process used
    the GPU; TableError for a file that cannot be written.
    """
    winner = result.winner
    name = f"sweep of {result.shape}"
    if winner is None:
        raise SearchError(f"the {name} has no winner yet; run it again to continue")
    names = [part.implementation for part in result.implementations if not part.skipped]
    valid = {
        Candidate(each, config)
        for each in names
        for config in get_implementation(result.operation.name, each).space.configs(result.shape, winner.device)
    }
    screened = (trial for trial in result.recorded if trial.stage is Stage.SCREEN)
    missing = valid - {trial.candidate for trial in screened if trial.status not in NO_VERDICT}
    contended = sum(trial.outcome.conditions.contended for trial in result.recorded)
    if not result.is_decided and not contended:
        raise SearchError(f"the {name} does not ship: its last race came to no result; run it again")
    if missing or contended:
        why = f"{len(missing)} of {len(valid)} configs have no verdict, {contended} rows were contended"
        raise SearchError(f"the {name} does not ship: {why}; run it again on a quiet GPU")
    folder = Path(winner.device.slug) / result.operation.name / "sweeps"
    for each in names:
        rows = [trial for trial in result.recorded if trial.implementation == each]
        file = f"{sweep_name(each, result.shape, winner.policy)}.parquet"
        write_shipped(folder / file, rows, results=results)


def sweep_name(implementation: str, shape: Shape, policy: Policy) -> str:
    """Name a sweep's file by the problem it is of, and by the policy of its times where it is not the usual one.

    Example:
        >>> sweep_name("triton", AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True), Policy())
        'triton_b16_h16_s1024_d128_causal_bfloat16'
    """
    fields = shape.as_dict()
    is_paged = "max_context" in fields
    length = f"c{fields['max_context']}" if is_paged else f"s{fields['seq_q']}"
    sizes = f"b{fields['batch']}_h{fields['heads']}_{length}_d{fields['head_dim']}"
    follows = {"kv_heads": "heads", "seq_kv": "seq_q", "mean_context": "max_context", "head_dim_v": "head_dim"}
    follows |= {"kv_dtype": "dtype"}
    others = [
        f"_{name}{fields[name]}"
        for name, source in follows.items()
        if fields.get(name) not in (None, fields.get(source))
    ]
    usual = {"seq_q": 1, "page_size": 16, "layout": "NHD"} if is_paged else {}
    others += [f"_{name}{fields[name]}" for name, value in usual.items() if fields[name] != value]
    others += [f"_window{fields['window']}"] if fields["window"] else []
    others += [f"_{name}" for name in ("softcap", "sinks", "alibi") if fields.get(name)]
    mask = "" if is_paged else "_causal" if fields["causal"] else "_full"
    how = "" if policy == Policy() else f"_{policy.mode}_{policy.cache}"
    return f"{implementation}_{sizes}{''.join(others)}{mask}_{fields['dtype']}{how}"
