"""The summary of the report: gains, trials, parameters, reasons to trust the numbers, and the origin of the trials."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from statistics import geometric_mean
from typing import Any, Final

from autotune import sheets
from autotune.console.winners import WORTH, default_name, gain, gain_by_hand, lead
from autotune.device import Device
from autotune.implementation import Implementation
from autotune.lab.drawing.markup import Html, element, join, table
from autotune.lab.report.failures import failed_share, is_failure
from autotune.lab.report.parameters import Shares
from autotune.lab.report.screening import KeyT, RowT, Screening, grouped, is_timed, span_text
from autotune.registry import get_implementation
from autotune.sheets import Sheet
from autotune.table import Outsider
from autotune.trial import Stage, Toolchain, Trial
from autotune.units import count_text, percent_text

Check = tuple[bool, str]  # True where it speaks for the numbers, and its text


def cards(winners: Sequence[Trial], screenings: Sequence[Screening], trials: Sequence[Trial]) -> Html:
    gains = [ratio.value for winner in winners if (ratio := gain(winner))]
    entries: list[tuple[str, ...]] = []
    if gains:
        most = f"geometric mean; at most {max(gains):.2f}x"
        entries.append((f"{geometric_mean(gains):.2f}x", "against the default", most))
    entries += [
        *_leads(winners),
        (*count_text(len(winners), "winner").split(), "one for each problem and implementation"),
        (*count_text(len(trials), "trial").split(), _stages(screenings, trials)),
    ]
    if screenings:
        figure, noun = count_text(len(screenings), "problem").split()
        kinds = Counter("sweep" if screening.is_sweep else "search" for screening in screenings)
        counts = (count_text(kinds[kind], kind) for kind in ("sweep", "search") if kinds[kind])
        entries.append((figure, f"{noun} screened", ", ".join(counts)))
    tiles = (
        element("div", element("b", figure), element("span", name), element("small", detail), class_="card")
        for figure, name, detail in entries
    )
    return element("div", *tiles, class_="cards")


def _by_implementation(trials: Iterable[Trial]) -> list[tuple[Implementation[Any], list[Trial]]]:
    found = grouped(trials, lambda trial: (trial.operation, trial.implementation))
    return [(get_implementation(*names), own) for names, own in found.items()]


def _leads(winners: Sequence[Trial]) -> Iterator[tuple[str, str, str]]:
    """Compare each implementation's winners with baselines; a mean over several would describe none."""
    owners = _by_implementation(winners)
    for implementation, won in owners:
        if leads := [ratio for winner in won if (ratio := lead(winner))]:
            ahead = sum(ratio.low > 1.0 for ratio in leads)
            name = f"{implementation.title if len(owners) > 1 else ''} against the fastest baseline".strip()
            mean = geometric_mean(ratio.value for ratio in leads)
            yield f"{mean:.2f}x", name, f"ahead in {ahead} of {len(leads)}"


def _stages(screenings: Sequence[Screening], trials: Sequence[Trial]) -> str:
    """Count the trials: screened configs and those of them that failed, repetitions, and rows of races."""
    screened = [trial for screening in screenings for trial in screening.trials]
    raced = sum(trial.stage is Stage.RACE for trial in trials)
    again = len(trials) - len(screened) - raced
    counts = [f"{len(screened):,} screened, {percent_text(failed_share(screened))} of them failed"] if screened else []
    counts += [f"{again:,} tried again"] if again else []
    counts += [f"{raced:,} raced"] if raced else []
    return "; ".join(counts)


def gain_lines(winners: Sequence[Trial]) -> Iterator[str]:
    if not winners:
        yield "No race has decided yet, so there is no winner."
    gained = [winner for winner in winners if gain(winner)]
    for default, compared in grouped(gained, default_name).items():
        gains = [(ratio, winner) for winner in compared if (ratio := gain(winner))]
        worth = [(ratio, winner) for ratio, winner in gains if ratio.low > WORTH]
        mean = geometric_mean(ratio.value for ratio, _ in gains)
        yield (
            f"Worth using: {len(worth)} of {count_text(len(gains), 'winner')}, more than 1 % faster than the {default} "
            f"by the whole interval; in geometric mean {mean:.2f}x the {default}."
        )
        if worth:
            ratio, winner = max(worth, key=lambda each: each[0].value)
            yield f"The largest gain is {ratio} at {winner.shape}."
    if by_hand := [ratio.value for winner in winners if (ratio := gain_by_hand(winner))]:
        mean = geometric_mean(by_hand)
        yield f"Over the heuristic, what people write by hand: {mean:.2f}x in geometric mean of {len(by_hand)}."
    if tied := sum(winner.is_default for winner in winners):
        yield f"The default itself is among the fastest for {count_text(tied, 'problem')}."
    for name, compared in grouped(filter(lead, winners), lambda winner: winner.baseline).items():
        leads = [ratio for winner in compared if (ratio := lead(winner))]
        ahead, behind = sum(ratio.low > 1 for ratio in leads), sum(ratio.high < 1 for ratio in leads)
        mean = geometric_mean(ratio.value for ratio in leads)
        yield f"Against {name}: ahead in {ahead}, behind in {behind} of {len(leads)}, {mean:.2f}x in geometric mean."


def screening_lines(screenings: Sequence[Screening], shares: Shares) -> Iterator[str]:
    """Summarise one implementation's screened configs, their failures and the parameters that matter."""
    if not screenings:
        yield "The table holds winners alone: heat maps, regret, importance and failures need the screened trials."
        return
    trials = [trial for screening in screenings for trial in screening.trials]
    failed = Counter(trial.status for trial in trials if is_failure(trial))
    failures = ""
    if failed:
        status, times = failed.most_common(1)[0]
        failures = f"; {percent_text(failed_share(trials))} failed, most often as {status} ({times:,})"
    yield f"Screened: {count_text(len(trials), 'config')} of {count_text(len(screenings), 'problem')}{failures}."
    for evaluator, each in shares.items():
        first = sorted(each.items(), key=lambda item: -item[1])[:2]
        yield f"By {evaluator} {' and '.join(f'{name} ({percent_text(share)})' for name, share in first)} matter most."


def checks_list(trials: Sequence[Trial], winners: Sequence[Trial], outsiders: int) -> Html:
    """List reasons to trust the numbers, marked as good, and reasons not to, marked as notes; most important first."""
    items = []
    for is_good, text in _checks(trials, winners, outsiders):
        word, kind = ("Good", "good") if is_good else ("Note", "bad")
        items.append(element("li", element("strong", word), element("span", text), class_=kind))
    return element("ul", *items, class_="checks")


def _checks(trials: Sequence[Trial], winners: Sequence[Trial], outsiders: int) -> Iterator[Check]:
    timed = list(filter(is_timed, trials))
    yield from _measured(timed)
    yield from _numbers(timed)
    yield from _conditions(timed)
    yield from _sources(trials)
    if widths := sorted((w.timing.high_us - w.timing.low_us) / 2 / w.timing.median_us for w in winners if w.timing):
        middle, widest = widths[len(widths) // 2], widths[-1]
        interval = f"±{percent_text(middle)} in the median, ±{percent_text(widest)} at most"
        yield widest <= 0.05, f"The 95 % interval of a winner's time is {interval}."
    if outsiders:
        rows = count_text(outsiders, "more row")
        yield False, f"Not of today's spaces: {rows}, listed under Environment, of no weight here."


def _measured(timed: Sequence[Trial]) -> Iterator[Check]:
    replayed = [trial for trial in timed if trial.executor == "replay"]
    if not replayed:
        yield True, "Every time was measured on the device; none is a replay."
        return
    raced = sum(trial.stage is Stage.RACE for trial in replayed)
    of_all = f"{len(replayed):,} of {count_text(len(timed), 'time')}"
    stages = f"{len(replayed) - raced:,} of them are of screening, {raced:,} of races"
    yield False, f"{of_all} were replayed from a recorded sweep, not measured; {stages}."


def _numbers(timed: Sequence[Trial]) -> Iterator[Check]:
    outcomes = [trial.outcome for trial in timed]
    shares = [each.error / each.error_limit for each in outcomes if each.error is not None and each.error_limit]
    if len(shares) < len(timed):
        missing = count_text(len(timed) - len(shares), "timed row")
        yield False, f"{missing} of {len(timed):,} carry no check of their numbers."
    elif shares:
        largest = f"the largest error is {percent_text(max(shares))} of the allowed one"
        yield True, f"Every timed row was checked against the reference first: {largest}."


def _conditions(timed: Sequence[Trial]) -> Iterator[Check]:
    contended = sum(trial.outcome.conditions.contended for trial in timed)
    times = f"{count_text(contended, 'time')} were" if contended else "No time was"
    yield not contended, f"{times} taken beside another process on the GPU."
    reasons = Counter(reason for trial in timed if (reason := trial.outcome.conditions.throttle_reasons))
    if reasons:
        commonest = ", ".join(f"{reason} ({times:,})" for reason, times in reasons.most_common(3))
        yield False, f"The GPU throttled in {count_text(reasons.total(), 'measurement')}: {commonest}."
    elif timed:
        yield True, "No throttling was recorded."


def _sources(trials: Sequence[Trial]) -> Iterator[Check]:
    is_current = True
    for implementation, own in _by_implementation(trials):
        if stale := sum(trial.source_hash != implementation.source_hash for trial in own):
            is_current = False
            source = implementation.library or "kernel source"
            rows = f"{count_text(stale, 'row')} of {implementation.title}"
            yield False, f"{rows} are of another {source} than is installed here."
    if is_current:
        yield True, "All rows are of the kernel source that is installed here."
    toolchains = len({trial.toolchain for trial in trials})
    if toolchains > 1:
        yield False, f"Rows come from {toolchains} toolchains; only times of one race are compared."


DEVICE_COLUMNS: Final = ("device", "architecture", "SMs", "memory", "power cap", "SM clock", "temperature")
SOURCE_COLUMNS: Final = ("implementation", "source", "is", "timing", "workers", "first", "last")
OUTSIDER_COLUMNS: Final = ("implementation", "device", "reason")
Source = tuple[str, str, str]  # an operation, an implementation and the hash of its source


def environment_section(trials: Sequence[Trial], outsiders: Sequence[Outsider]) -> Html:
    """Return tables of the devices, toolchains and implementations, each with its rows, and of rows that are not of
    today's spaces."""
    devices = grouped(trials, lambda trial: trial.device)
    toolchains = grouped(trials, lambda trial: trial.toolchain)
    sources = grouped(trials, lambda trial: (trial.operation, trial.implementation, trial.source_hash))
    reasons = grouped(outsiders, lambda row: (f"{row.operation}/{row.implementation}", row.device.name, row.reason))
    names = [field.name for field in fields(Toolchain)]
    columns = ["autotune" if name == "tool" else name for name in names]
    foreign = "Rows that are not of today's spaces"
    return join(
        _table("Devices", DEVICE_COLUMNS, devices, _device_cells),
        _table("Toolchains", columns, toolchains, lambda used, _: [getattr(used, name) or "-" for name in names]),
        _table("Implementations and their sources", SOURCE_COLUMNS, sources, _source_cells),
        _table(foreign, OUTSIDER_COLUMNS, reasons, lambda key, _: key) if reasons else None,
    )


def _table(
    title: str,
    names: Iterable[str],
    groups: Mapping[KeyT, Sequence[RowT]],
    cells: Callable[[KeyT, Sequence[RowT]], Iterable[str]],
) -> Html:
    """Return a table of groups, most frequent first: the cells of each, and the number of its rows."""
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), repr(item[0])))
    columns = (*map(sheets.text, names), sheets.number("rows"))
    return table(Sheet(title, columns, tuple((*cells(key, rows), len(rows)) for key, rows in ordered)))


def _device_cells(device: Device, trials: Sequence[Trial]) -> Iterator[str]:
    conditions = [trial.outcome.conditions for trial in trials]
    yield from (device.name, device.arch, f"{device.sm_count}", f"{device.memory_mib:,} MiB")
    yield _range([device.power_cap_watts], "W")
    yield _range([each.sm_clock_mhz for each in conditions], "MHz")
    yield _range([each.temperature_c for each in conditions], "°C")


def _source_cells(source: Source, trials: Sequence[Trial]) -> Iterator[str]:
    operation, name, source_hash = source
    implementation = get_implementation(operation, name)
    yield from (implementation.title, source_hash[:12])
    yield "installed here" if source_hash == implementation.source_hash else "not what is installed here"
    yield "; ".join(sorted({f"{trial.policy.mode} {trial.policy.cache}, {trial.executor}" for trial in trials}))
    yield f"{len({trial.worker for trial in trials})}"
    yield from (f"{date(trial.started_at for trial in trials):%Y-%m-%d %H:%M} UTC" for date in (min, max))


def _range(values: Iterable[int | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    return f"{span_text(known)} {unit}" if known else "not read"
