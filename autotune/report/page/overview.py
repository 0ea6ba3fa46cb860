"""The report in a few words: what was tuned, what was gained, which parameter matters, and whether to trust it."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from autotune.registry import get_operation
from autotune.report.page.failures import failed_share, is_failure
from autotune.report.page.markup import Child, Html, count, element, percent
from autotune.report.page.parameters import Shares
from autotune.report.page.problem import Problem
from autotune.report.page.winners import gain, geometric_mean, lead
from autotune.report.summary import WORTH
from autotune.trial import Stage, Status, Trial


class Check(NamedTuple):
    """One reason to trust the numbers, or not to."""

    is_good: bool
    text: str


def cards(winners: Sequence[Trial], problems: Sequence[Problem], trials: Sequence[Trial]) -> Html:
    """The few numbers that a reader looks for first."""
    gains = [ratio for winner in winners if (ratio := gain(winner))]
    entries: list[tuple[str, str, str]] = []
    if gains:
        best = max(ratio.value for ratio in gains)
        entries.append((f"{geometric_mean(gains):.2f}x", "against the default", f"geometric mean; at most {best:.2f}x"))
    entries += [
        *_leads(winners),
        (f"{len(winners):,}", "winner" if len(winners) == 1 else "winners", "problems that a race has decided"),
        (f"{len(trials):,}", "trial" if len(trials) == 1 else "trials", _stages(problems, trials)),
    ]
    if problems:
        sweeps = sum(problem.is_sweep for problem in problems)
        searches = len(problems) - sweeps
        kinds = [count(number, kind) for number, kind in ((sweeps, "sweep"), (searches, "search")) if number]
        noun = "problem screened" if len(problems) == 1 else "problems screened"
        entries.append((f"{len(problems):,}", noun, ", ".join(kinds)))
    tiles = (
        element("div", element("b", figure), element("span", name), element("small", detail), class_="card")
        for figure, name, detail in entries
    )
    return element("div", *tiles, class_="cards")


def _leads(winners: Sequence[Trial]) -> list[tuple[str, str, str]]:
    """How the winners of each operation stand to baselines: a mean over several would say nothing of any."""
    operations = list(dict.fromkeys(winner.operation for winner in winners))
    entries = []
    for name in operations:
        leads = [ratio for winner in winners if winner.operation == name and (ratio := lead(winner))]
        if leads:
            ahead = sum(ratio.low > 1.0 for ratio in leads)
            told = "against the fastest baseline" + (f" of {name}" if len(operations) > 1 else "")
            entries.append((f"{geometric_mean(leads):.2f}x", told, f"ahead in {ahead} of {len(leads)}"))
    return entries


def _stages(problems: Sequence[Problem], trials: Sequence[Trial]) -> str:
    """What the trials are: screened configs and those of them that failed, repetitions, and rows of races."""
    screened = [trial for problem in problems for trial in problem.trials]
    raced = sum(trial.stage is Stage.RACE for trial in trials)
    again = len(trials) - len(screened) - raced
    told = [f"{len(screened):,} screened, {percent(failed_share(screened))} of them failed"] if screened else []
    told += [f"{again:,} tried again"] if again else []
    return "; ".join([*told, f"{raced:,} raced"] if raced else told)


def gained(winners: Sequence[Trial]) -> list[str]:
    """What tuning gained on one operation and device, in words."""
    if not winners:
        return ["No race has decided yet, so there is no winner."]
    told = []
    gains = [(ratio, winner) for winner in winners if (ratio := gain(winner))]
    if gains:
        worth = [(ratio, winner) for ratio, winner in gains if ratio.low > WORTH]
        mean = geometric_mean(ratio for ratio, _ in gains)
        told.append(
            f"Worth using: {len(worth)} of {count(len(gains), 'winner')}, more than 1 % faster than the default by the "
            f"whole interval; in geometric mean {mean:.2f}x the default."
        )
        if worth:
            ratio, winner = max(worth, key=lambda each: each[0].value)
            told.append(f"The largest gain is {ratio} at {winner.shape}.")
    if tied := sum(winner.is_default for winner in winners):
        told.append(f"The default itself is among the fastest for {count(tied, 'problem')}.")
    leads = [(ratio, winner) for winner in winners if (ratio := lead(winner))]
    for name in dict.fromkeys(winner.baseline for _, winner in leads):
        mine = [ratio for ratio, winner in leads if winner.baseline == name]
        ahead, behind = sum(ratio.low > 1 for ratio in mine), sum(ratio.high < 1 for ratio in mine)
        told.append(
            f"Against {name}: ahead in {ahead}, behind in {behind} of {len(mine)}, "
            f"{geometric_mean(mine):.2f}x in geometric mean."
        )
    return told


def tried(problems: Sequence[Problem], shares: Shares) -> list[str]:
    """What was tried on one operation and device, what failed and which parameter matters, in words."""
    if not problems:
        return ["The table holds winners alone: heat maps, regret, importance and failures need the screened trials."]
    trials = [trial for problem in problems for trial in problem.trials]
    failed = Counter(trial.status for trial in trials if is_failure(trial))
    text = f"Screened: {count(len(trials), 'config')} of {count(len(problems), 'problem')}"
    if failed:
        status, times = failed.most_common(1)[0]
        text += f"; {percent(failed_share(trials))} failed, most often as {status} ({times:,})"
    told = [f"{text}."]
    for evaluator, each in shares.items():
        first = sorted(each.items(), key=lambda item: -item[1])[:2]
        told.append(
            f"By {evaluator} {' and '.join(f'{name} ({percent(share)})' for name, share in first)} matter most."
        )
    return told


def checks(trials: Sequence[Trial], winners: Sequence[Trial]) -> list[Check]:
    """What speaks for the numbers and what against, most important first."""
    timed = [trial for trial in trials if trial.timing and trial.status in (Status.OK, Status.SLOW)]
    return [*_measured(timed), *_numbers(timed), *_conditions(timed), *_sources(trials), *_intervals(winners)]


def checks_list(found: Sequence[Check]) -> Html:
    """The checks as a list; a sign and a word say which way each speaks."""
    items: list[Child] = []
    for check in found:
        word, kind = ("Good", "good") if check.is_good else ("Note", "bad")
        items.append(element("li", element("strong", word), element("span", check.text), class_=kind))
    return element("ul", *items, class_="checks")


def _measured(timed: Sequence[Trial]) -> list[Check]:
    replayed = [trial for trial in timed if trial.executor == "replay"]
    if not replayed:
        return [Check(True, "Every time was measured on the device; none is a replay.")]
    raced = sum(trial.stage is Stage.RACE for trial in replayed)
    told = f"{len(replayed):,} of {count(len(timed), 'time')} were replayed from a recorded sweep, not measured"
    return [Check(False, f"{told}; {len(replayed) - raced:,} of them are of screening, {raced:,} of races.")]


def _numbers(timed: Sequence[Trial]) -> list[Check]:
    outcomes = [trial.outcome for trial in timed]
    shares = [each.error / each.error_limit for each in outcomes if each.error is not None and each.error_limit]
    if len(shares) < len(timed):
        missing = count(len(timed) - len(shares), "timed row")
        return [Check(False, f"{missing} of {len(timed):,} carry no check of their numbers.")]
    if not shares:
        return []
    largest = f"the largest error is {percent(max(shares))} of the allowed one"
    return [Check(True, f"Every timed row was checked against the reference first: {largest}.")]


def _conditions(timed: Sequence[Trial]) -> list[Check]:
    contended = sum(trial.outcome.conditions.contended for trial in timed)
    found = [
        Check(False, f"{count(contended, 'time')} were taken beside another process on the GPU.")
        if contended
        else Check(True, "No time was taken beside another process on the GPU.")
    ]
    reasons = Counter(reason for trial in timed if (reason := trial.outcome.conditions.throttle_reasons))
    if reasons:
        told = ", ".join(f"{reason} ({times:,})" for reason, times in reasons.most_common(3))
        found.append(Check(False, f"The GPU throttled in {count(reasons.total(), 'measurement')}: {told}."))
    elif timed:
        found.append(Check(True, "No throttling was recorded."))
    return found


def _sources(trials: Sequence[Trial]) -> list[Check]:
    found = []
    for name in dict.fromkeys(trial.operation for trial in trials):
        operation = get_operation(name)
        stale = sum(trial.source_hash != operation.source_hash for trial in trials if trial.operation == name)
        if stale:
            source = operation.library or "kernel source"
            rows = f"{count(stale, 'row')} of {name}"
            found.append(Check(False, f"{rows} are of another {source} than is installed here."))
    if not found:
        found.append(Check(True, "All rows are of the kernel source that is installed here."))
    toolchains = len({trial.toolchain for trial in trials})
    if toolchains > 1:
        found.append(Check(False, f"Rows come from {toolchains} toolchains; only times of one race are compared."))
    return found


def _intervals(winners: Sequence[Trial]) -> list[Check]:
    widths = sorted((w.timing.high_us - w.timing.low_us) / 2 / w.timing.median_us for w in winners if w.timing)
    if not widths:
        return []
    middle, widest = widths[len(widths) // 2], widths[-1]
    return [
        Check(
            widest <= 0.05,
            f"The 95 % interval of a winner's time is ±{percent(middle)} in the median, ±{percent(widest)} at most.",
        )
    ]
