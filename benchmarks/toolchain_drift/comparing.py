"""Compilations side by side, as tables."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from autotune import sheets
from autotune.sheets import Sheet
from autotune.table import Compilation
from autotune.trial import Trial
from benchmarks.toolchain_drift.book import series_of

Compiled = dict[str, Compilation | None]  # by series of Triton
SUMMARY: Final = (
    sheets.text("winners of"),
    sheets.text("Triton"),
    *map(sheets.number, ("compiled", "refused", "spill in a steady loop", "spill elsewhere alone")),
    *map(sheets.number, ("more registers", "fewer registers", "more shared memory", "less shared memory")),
)


def own_of(trial: Trial, compiled: Compiled) -> Compilation | None:
    """Return the compilation by the Triton that timed the row."""
    return compiled.get(series_of(trial.toolchain.triton))


def summary(found: Sequence[tuple[Trial, Compiled]], versions: Sequence[str]) -> Sheet:
    """Count what each version changes of the winners of each implementation, over the Triton that timed them."""
    titles = dict.fromkeys((f"{trial.operation}/{trial.implementation}", trial.device.name) for trial, _ in found)
    rows = []
    for title, device in titles:
        own = [
            (trial, compiled)
            for trial, compiled in found
            if (f"{trial.operation}/{trial.implementation}", trial.device.name) == (title, device)
        ]
        for series in versions:
            pairs = [
                (now, before)
                for trial, compiled in own
                if (now := compiled.get(series)) is not None and (before := own_of(trial, compiled)) is not None
            ]
            if pairs:
                rows.append((f"{title} on {device}", series, len(pairs), *_counts(pairs)))
    return Sheet("What each Triton changes", SUMMARY, tuple(rows))


def _counts(pairs: Sequence[tuple[Compilation, Compilation]]) -> list[int]:
    taken = [(now, before) for now, before in pairs if not now.refusal]
    spilling = [bool(now.why_unfit(before)) for now, before in taken]
    elsewhere = [
        (now.spill_bytes or 0) > (before.spill_bytes or 0) and not unfit
        for (now, before), unfit in zip(taken, spilling, strict=True)
    ]
    moved = [
        sum((getattr(now, name) or 0) * sign > (getattr(before, name) or 0) * sign for now, before in taken)
        for name in ("registers", "shared_bytes")
        for sign in (1, -1)
    ]
    return [len(pairs) - len(taken), sum(spilling), sum(elsewhere), *moved]


def side_by_side(found: Sequence[tuple[Trial, Compiled]], versions: Sequence[str]) -> Sheet:
    """List registers, spilled bytes, spills in steady loops and shared memory; equal lines once, with their number."""
    lines = Counter(
        (
            f"{trial.operation}/{trial.implementation}",
            " ".join(f"{name}={value}" for name, value in trial.config.items() if value is not None),
            *(_cell(trial, compiled.get(series), own_of(trial, compiled)) for series in versions),
        )
        for trial, compiled in found
        if any(compiled[series] is not None for series in versions)
    )
    columns = (
        sheets.text("kernel"),
        sheets.text("config"),
        *(sheets.text(f"Triton {series}") for series in versions),
        sheets.number("winners"),
    )
    notes = (
        "A cell has registers a thread, bytes spilled a thread, instructions that spill in steady loops, and bytes of "
        "shared memory a block. A cell in bold is not served with that Triton.",
    )
    return Sheet("Side by side", columns, tuple((*line, count) for line, count in lines.items()), notes)


def _cell(trial: Trial, now: Compilation | None, before: Compilation | None) -> str:
    if now is None:
        return "not compiled"
    numbers = (now.registers, now.spill_bytes, now.loop_spills, now.shared_bytes)
    text = now.refusal or " / ".join("?" if number is None else f"{number:,}" for number in numbers)
    return f"**{text}**" if now.why_unfit(before) else text


def unlike_stored(found: Iterable[tuple[Trial, Compiled]]) -> Sheet:
    """List the winners whose row stores other registers, spills or shared memory than its own Triton gives here."""
    rows = []
    for trial, compiled in found:
        here, stored = own_of(trial, compiled), trial.outcome.resources
        if here is None or stored.registers is None:
            continue
        names = ("registers", "spill_bytes", "shared_bytes")
        unlike = [
            f"{name} {getattr(stored, name)} stored, {getattr(here, name)} here"
            for name in names
            if getattr(stored, name) != getattr(here, name)
        ]
        if unlike or here.refusal:
            rows.append((f"{trial.implementation}: {trial.shape} on {trial.device.name}", "; ".join(unlike)))
    columns = (sheets.text("winner"), sheets.text("difference"))
    notes = () if rows else ("No row stores other registers, spills or shared memory than its own Triton gives here.",)
    return Sheet("Rows that their own Triton compiles to something else here", columns, tuple(rows), notes)
