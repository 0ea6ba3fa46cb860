"""The summary of the report: gains, trials, the parameters that matter, and reasons to trust the numbers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from autotune.console.winners import WORTH
from autotune.implementation import Implementation
from autotune.lab.drawing.markup import Content, Html, element
from autotune.lab.report.failures import failed_share, is_failure
from autotune.lab.report.parameters import Shares
from autotune.lab.report.screening import RIGHT, Screening
from autotune.lab.report.winner_table import gain, geometric_mean, lead
from autotune.registry import get_implementation
from autotune.trial import Stage, Trial
from autotune.units import count_text, percent_text


class TrustCheck(NamedTuple):
    """One reason to trust the numbers, or not to."""

    is_good: bool
    text: str


def cards(winners: Sequence[Trial], screenings: Sequence[Screening], trials: Sequence[Trial]) -> Html:
    """Write the few numbers that a reader looks for first."""
    gains = [ratio for winner in winners if (ratio := gain(winner))]
    entries: list[tuple[str, str, str]] = []
    if gains:
        best = max(ratio.value for ratio in gains)
        entries.append((f"{geometric_mean(gains):.2f}x", "against the default", f"geometric mean; at most {best:.2f}x"))
    entries += [
        *_leads(winners),
        (f"{len(winners):,}", "winner" if len(winners) == 1 else "winners", "one for each problem and implementation"),
        (f"{len(trials):,}", "trial" if len(trials) == 1 else "trials", _stages(screenings, trials)),
    ]
    if screenings:
        sweeps = sum(screening.is_sweep for screening in screenings)
        searches = len(screenings) - sweeps
        kinds = [count_text(number, kind) for number, kind in ((sweeps, "sweep"), (searches, "search")) if number]
        noun = "problem screened" if len(screenings) == 1 else "problems screened"
        entries.append((f"{len(screenings):,}", noun, ", ".join(kinds)))
    tiles = (
        element("div", element("b", figure), element("span", name), element("small", detail), class_="card")
        for figure, name, detail in entries
    )
    return element("div", *tiles, class_="cards")


def by_implementation(trials: Iterable[Trial]) -> list[tuple[Implementation[Any], list[Trial]]]:
    """Group trials by their implementations, in their own order."""
    found: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        found.setdefault((trial.operation, trial.implementation), []).append(trial)
    return [(get_implementation(*names), own) for names, own in found.items()]


def _leads(winners: Sequence[Trial]) -> list[tuple[str, str, str]]:
    """Compare each implementation's winners with baselines; a mean over several would describe none."""
    owners = by_implementation(winners)
    entries = []
    for implementation, won in owners:
        leads = [ratio for winner in won if (ratio := lead(winner))]
        if leads:
            ahead = sum(ratio.low > 1.0 for ratio in leads)
            told = f"{implementation.title if len(owners) > 1 else ''} against the fastest baseline".strip()
            entries.append((f"{geometric_mean(leads):.2f}x", told, f"ahead in {ahead} of {len(leads)}"))
    return entries


def _stages(screenings: Sequence[Screening], trials: Sequence[Trial]) -> str:
    """Count the trials: screened configs and those of them that failed, repetitions, and rows of races."""
    screened = [trial for screening in screenings for trial in screening.trials]
    raced = sum(trial.stage is Stage.RACE for trial in trials)
    again = len(trials) - len(screened) - raced
    told = [f"{len(screened):,} screened, {percent_text(failed_share(screened))} of them failed"] if screened else []
    told += [f"{again:,} tried again"] if again else []
    return "; ".join([*told, f"{raced:,} raced"] if raced else told)


def gain_lines(winners: Sequence[Trial]) -> list[str]:
    """Summarise the gains of tuning one implementation on one device."""
    if not winners:
        return ["No race has decided yet, so there is no winner."]
    told = []
    gains = [(ratio, winner) for winner in winners if (ratio := gain(winner))]
    if gains:
        worth = [(ratio, winner) for ratio, winner in gains if ratio.low > WORTH]
        mean = geometric_mean(ratio for ratio, _ in gains)
        told.append(
            f"Worth using: {len(worth)} of {count_text(len(gains), 'winner')}, more than 1 % faster than the default "
            f"by the whole interval; in geometric mean {mean:.2f}x the default."
        )
        if worth:
            ratio, winner = max(worth, key=lambda each: each[0].value)
            told.append(f"The largest gain is {ratio} at {winner.shape}.")
    if tied := sum(winner.is_default for winner in winners):
        told.append(f"The default itself is among the fastest for {count_text(tied, 'problem')}.")
    leads = [(ratio, winner) for winner in winners if (ratio := lead(winner))]
    for name in dict.fromkeys(winner.baseline for _, winner in leads):
        mine = [ratio for ratio, winner in leads if winner.baseline == name]
        ahead, behind = sum(ratio.low > 1 for ratio in mine), sum(ratio.high < 1 for ratio in mine)
        told.append(
            f"Against {name}: ahead in {ahead}, behind in {behind} of {len(mine)}, "
            f"{geometric_mean(mine):.2f}x in geometric mean."
        )
    return told


def screening_lines(screenings: Sequence[Screening], shares: Shares) -> list[str]:
    """Summarise one implementation's screened configs, their failures and the parameters that matter."""
    if not screenings:
        return ["The table holds winners alone: heat maps, regret, importance and failures need the screened trials."]
    trials = [trial for screening in screenings for trial in screening.trials]
    failed = Counter(trial.status for trial in trials if is_failure(trial))
    text = f"Screened: {count_text(len(trials), 'config')} of {count_text(len(screenings), 'problem')}"
    if failed:
        status, times = failed.most_common(1)[0]
        text += f"; {percent_text(failed_share(trials))} failed, most often as {status} ({times:,})"
    told = [f"{text}."]
    for evaluator, each in shares.items():
        first = sorted(each.items(), key=lambda item: -item[1])[:2]
        told.append(
            f"By {evaluator} {' and '.join(f'{name} ({percent_text(share)})' for name, share in first)} matter most."
        )
    return told


def checks(trials: Sequence[Trial], winners: Sequence[Trial], outsiders: int) -> list[TrustCheck]:
    """List what speaks for the numbers and what against, most important first."""
    timed = [trial for trial in trials if trial.timing and trial.status in RIGHT]
    found = [*_measured(timed), *_numbers(timed), *_conditions(timed), *_sources(trials), *_intervals(winners)]
    if outsiders:
        rows = count_text(outsiders, "more row")
        found.append(TrustCheck(False, f"Not of today's spaces: {rows}, listed under Environment, of no weight here."))
    return found


def checks_list(found: Sequence[TrustCheck]) -> Html:
    """Write the checks as a list, each marked as good or as a note."""
    items: list[Content] = []
    for check in found:
        word, kind = ("Good", "good") if check.is_good else ("Note", "bad")
        items.append(element("li", element("strong", word), element("span", check.text), class_=kind))
    return element("ul", *items, class_="checks")


def _measured(timed: Sequence[Trial]) -> list[TrustCheck]:
    replayed = [trial for trial in timed if trial.executor == "replay"]
    if not replayed:
        return [TrustCheck(True, "Every time was measured on the device; none is a replay.")]
    raced = sum(trial.stage is Stage.RACE for trial in replayed)
    told = f"{len(replayed):,} of {count_text(len(timed), 'time')} were replayed from a recorded sweep, not measured"
    return [TrustCheck(False, f"{told}; {len(replayed) - raced:,} of them are of screening, {raced:,} of races.")]


def _numbers(timed: Sequence[Trial]) -> list[TrustCheck]:
    outcomes = [trial.outcome for trial in timed]
    shares = [each.error / each.error_limit for each in outcomes if each.error is not None and each.error_limit]
    if len(shares) < len(timed):
        missing = count_text(len(timed) - len(shares), "timed row")
        return [TrustCheck(False, f"{missing} of {len(timed):,} carry no check of their numbers.")]
    if not shares:
        return []
    largest = f"the largest error is {percent_text(max(shares))} of the allowed one"
    return [TrustCheck(True, f"Every timed row was checked against the reference first: {largest}.")]


def _conditions(timed: Sequence[Trial]) -> list[TrustCheck]:
    contended = sum(trial.outcome.conditions.contended for trial in timed)
    found = [
        TrustCheck(False, f"{count_text(contended, 'time')} were taken beside another process on the GPU.")
        if contended
        else TrustCheck(True, "No time was taken beside another process on the GPU.")
    ]
    reasons = Counter(reason for trial in timed if (reason := trial.outcome.conditions.throttle_reasons))
    if reasons:
        told = ", ".join(f"{reason} ({times:,})" for reason, times in reasons.most_common(3))
        found.append(TrustCheck(False, f"The GPU throttled in {count_text(reasons.total(), 'measurement')}: {told}."))
    elif timed:
        found.append(TrustCheck(True, "No throttling was recorded."))
    return found


def _sources(trials: Sequence[Trial]) -> list[TrustCheck]:
    found = []
    for implementation, own in by_implementation(trials):
        stale = sum(trial.source_hash != implementation.source_hash for trial in own)
        if stale:
            source = implementation.library or "kernel source"
            rows = f"{count_text(stale, 'row')} of {implementation.title}"
            found.append(TrustCheck(False, f"{rows} are of another {source} than is installed here."))
    if not found:
        found.append(TrustCheck(True, "All rows are of the kernel source that is installed here."))
    toolchains = len({trial.toolchain for trial in trials})
    if toolchains > 1:
        found.append(TrustCheck(False, f"Rows come from {toolchains} toolchains; only times of one race are compared."))
    return found


def _intervals(winners: Sequence[Trial]) -> list[TrustCheck]:
    widths = sorted((w.timing.high_us - w.timing.low_us) / 2 / w.timing.median_us for w in winners if w.timing)
    if not widths:
        return []
    middle, widest = widths[len(widths) // 2], widths[-1]
    told = f"±{percent_text(middle)} in the median, ±{percent_text(widest)} at most"
    return [TrustCheck(widest <= 0.05, f"The 95 % interval of a winner's time is {told}.")]
