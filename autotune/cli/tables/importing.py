"""``autotune tables import``: tables of others, checked here before they are served."""

from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from autotune import platforms
from autotune.cli.tables.paths import own_store, refused_lines, require_there, table_arguments
from autotune.console.command import command
from autotune.console.options import json_option, tables_option
from autotune.console.output import make_console, print_json
from autotune.console.winners import trial_data
from autotune.errors import AutotuneError
from autotune.units import count_text

if TYPE_CHECKING:
    from autotune.table.foreign import Foreign
    from autotune.tuning.imports import Checked


@command("import")
@table_arguments("sources", "PATHS...", -1)
@tables_option
@json_option
def import_tables(sources: tuple[Path, ...], tables: Path | None, as_json: bool) -> None:
    """Check the winners of tables of others on this machine, and add those that hold to yours.

    PATHS are files or folders: tables, or exports as JSON or T4. On a GPU of the architecture that they are for, each
    config's numbers are checked there; elsewhere it is compiled for its device, and Triton's interpreter checks its
    numbers. What is refuted is dropped; what cannot be checked here is kept apart, and not served. Times are theirs.
    What was confirmed before is not checked again, so that an import that was interrupted goes on.
    """
    require_there("sources", *sources)
    store = own_store(tables)
    from autotune.executor.select import Settings, open_gpu
    from autotune.tuning.imports import import_tables

    console = make_console(as_json)
    told = _Progress(console)
    settings = Settings()
    with closing(open_gpu(settings)) if platforms.has_gpu() else nullcontext() as executor:
        try:
            found = import_tables(
                sources, store, executor=executor, settings=settings, on_read=told.on_read, on_checked=told.on_checked
            )
        except KeyboardInterrupt:
            console.print(f"interrupted: {told.checked:,} of {told.count:,} checked; the same command goes on")
            raise
    counts = {name: found.count(name) for name in ("confirmed", "not confirmed", "refuted")}
    lines = refused_lines(list(found.foreign.refused))
    if found.foreign.outside:
        lines.append(f"left out {count_text(found.foreign.outside, 'row')} of no space here")
    console.print(*lines, ", ".join(f"{count} {name}" for name, count in counts.items()), sep="\n")
    if as_json:
        checked: list[dict[str, Any]] = [
            {"verdict": each.verdict, "how": each.how, "row": trial_data(each.trial)} for each in found.checked
        ]
        print_json({**counts, "checked": checked, "refused": list(map(str, found.foreign.refused))})
    if found.foreign.refused or counts["refuted"]:
        raise AutotuneError(
            _ending(len(found.foreign.refused), counts["refuted"], counts["confirmed"] + counts["not confirmed"])
        )


class _Progress:
    """Says what an import has read and checked, as it goes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.count = self.checked = 0

    def on_read(self, foreign: "Foreign") -> None:
        if (count := len(foreign.winners)) > 1:
            self._console.print(f"{count:,} winners to check")
        self.count = count

    def on_checked(self, checked: "Checked") -> None:
        self.checked += 1
        trial = checked.trial
        where = f"{trial.operation}/{trial.implementation}, {trial.shape}, {trial.device.name}"
        self._console.print(f"{checked.verdict}: {where}: {trial.config}: {checked.how}")


def _ending(refused: int, refuted: int, kept: int) -> str:
    failed = [f"{count_text(refused, 'file')} refused"] if refused else []
    failed += [f"{count_text(refuted, 'winner')} refuted"] if refuted else []
    rest = f"{count_text(kept, 'winner')} kept" if kept else "nothing is kept"
    return f"{', '.join(failed)}; {rest}"
