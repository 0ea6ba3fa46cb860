"""``autotune show``: list winners; no GPU, no torch, no triton."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.cli.stored import no_winners_text, read_outsiders, read_winners
from autotune.console.command import command, option
from autotune.console.kernel_option import operation_options
from autotune.console.options import device_option, implementation_option, json_option, tables_option
from autotune.console.output import make_console, print_json, print_sheet
from autotune.console.shape_options import OPERATION
from autotune.console.winners import is_limited_by_memory, policy_text, speed_up, trial_data
from autotune.sheets import Sheet, rate, ratio, text, time
from autotune.table import Outsider
from autotune.trial import Trial


@command("show")
@operation_options(default=OPERATION)
@implementation_option("all")
@option("--all", "with_outsiders", is_flag=True, help="Also list the rows that are not of today's space, and why.")
@device_option("all")
@tables_option
@json_option
def show(
    operation: str,
    implementations: tuple[str, ...],
    with_outsiders: bool,
    device: str | None,
    tables: Path | None,
    as_json: bool,
) -> None:
    """List the winners of each implementation: yours, and the shipped ones that you have not tuned again."""
    rows = read_winners(operation, implementations, device, tables)
    outsiders = read_outsiders(operation, implementations, device, tables) if with_outsiders else []
    if as_json:
        print_json([*map(trial_data, rows), *map(_outsider_data, outsiders)])
        return
    console = make_console()
    if not rows:
        console.print(no_winners_text(operation, implementations))
    for place in dict.fromkeys((trial.device.name, trial.implementation) for trial in rows):
        print_sheet(console, _sheet(*place, [t for t in rows if (t.device.name, t.implementation) == place]))
    if outsiders:
        print_sheet(console, _outsider_sheet(outsiders))
    elif with_outsiders:
        console.print("every row is of today's space")


def _outsider_sheet(outsiders: Sequence[Outsider]) -> Sheet:
    columns = (text("file"), text("row"), text("implementation"), text("device"), time(), text("reason"))
    cells = (
        (each.where, str(each.row), each.implementation, each.device.name, each.median_us, each.reason)
        for each in outsiders
    )
    return Sheet("not of this space: kept, never served", columns, tuple(cells))


def _outsider_data(outsider: Outsider) -> dict[str, Any]:
    return {
        "operation": outsider.operation,
        "implementation": outsider.implementation,
        "device": outsider.device.name,
        "file": outsider.where,
        "row": outsider.row,
        "outside": outsider.reason,
        "median_us": outsider.median_us,
        **outsider.problem,
    }


def _sheet(device: str, implementation: str, rows: Sequence[Trial]) -> Sheet:
    """Return the winners of an implementation on a device, with the parameters that it has there."""
    parameters = [name for name in rows[0].config if any(trial.config[name] is not None for trial in rows)]
    in_bytes = all(
        is_limited_by_memory(row.tflops, row.gbps, row.device.name, row.operation, row.shape) for row in rows
    )
    unit = "GB/s" if in_bytes else "TFLOP/s"
    columns = (text("shape"), *map(text, parameters), time(), rate(unit, unit), ratio("vs default"))
    return Sheet(
        f"{device}, {implementation}",
        (*columns, ratio("vs best other"), text("best other"), text("from")),
        tuple(_cells(trial, parameters, in_bytes=in_bytes) for trial in rows),
    )


def _cells(trial: Trial, parameters: Sequence[str], *, in_bytes: bool) -> tuple[Any, ...]:
    assert trial.timing is not None
    return (
        str(trial.shape),
        *(trial.config[name] for name in parameters),
        trial.timing.median_us,
        trial.gbps if in_bytes else trial.tflops,
        *(other and speed_up(other, trial.timing).value for other in (trial.default_timing, trial.baseline_timing)),
        trial.baseline.removeprefix("sdpa "),
        f"{trial.started_at:%Y-%m-%d}{', replay' if trial.executor == 'replay' else ''}{policy_text(trial.policy)}",
    )
