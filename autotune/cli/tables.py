"""``autotune show``, ``lookup`` and ``export``: read the tables; no GPU, no torch, no triton."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from autotune import hardware
from autotune.cli import options, shapes
from autotune.cli.output import make_console
from autotune.cli.shape_options import OPERATION
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import find_named, get_kernel, names_like
from autotune.errors import AutotuneError, TableError, UnknownNameError, UsageError
from autotune.registry import get_operation, operation_names
from autotune.report.summary import describe_rate, is_limited_by_memory, policy_text, speed_up, trial_data
from autotune.table import export as export_text
from autotune.table import home, served_winners, shipped_sweeps, to_t4, warn_damaged
from autotune.table.export import FORMS
from autotune.trial import Trial

T4: Final = "t4"
ASSUMED: Final = f"no GPU here: an {NVIDIA_H200.name} is assumed; --device names another"

From = Annotated[Path | None, typer.Option("--from", help="Folder of the tables [default: $AUTOTUNE_HOME].")]
RowsOf = Annotated[str | None, typer.Option("--device", help="A device by name [default: all].")]
Form = Annotated[
    str,
    typer.Option(
        "--format",
        help="json, csv, triton (a Python list of triton.Config), kernel_options (of flex_attention, for torch), "
        "or t4 with --sweep.",
    ),
]
ExportedOperation = Annotated[
    str | None,
    typer.Option("--operation", help=f"What is computed [default: {OPERATION}; a sweep is found by its name]."),
]
SweepName = Annotated[
    str | None,
    typer.Option("--sweep", help="With --format t4: a recorded sweep, every config of it."),
]


def show(
    operation: options.OperationName = "flash_attention",
    device: RowsOf = None,
    source: From = None,
    as_json: options.Json = False,
) -> None:
    """List the winners: yours, and the shipped ones that you have not tuned again."""
    rows = _winners(operation, device, source)
    if as_json:
        print(json.dumps([trial_data(trial) for trial in rows], indent=2))
        return
    console = make_console()
    if not rows:
        console.print(_no_winners(operation))
        return
    for name in dict.fromkeys(trial.device.name for trial in rows):
        console.print(_table(name, [trial for trial in rows if trial.device.name == name]))


@shapes.takes_shapes
def lookup(
    *,
    wanted: shapes.Wanted,
    device: options.DeviceName = None,
    as_json: options.Json = False,
) -> None:
    """Say what get_kernel answers for a shape, from which row, and why."""
    is_assumed = device is None and not hardware.has_gpu()
    name = NVIDIA_H200.name if is_assumed else device
    require_folder(None)
    if device is not None:
        asked = dict.fromkeys(operation.name for operation, _ in wanted.problems)
        name = find_device(device, (row for each in asked for row in _winners(each, None, None)), None).name
    data = []
    console = make_console(as_json)
    if is_assumed:
        console.print(ASSUMED)
    for operation, shape in wanted.problems:
        kernel = get_kernel(shape, device=name, operation=operation.name)
        why = kernel.provenance
        console.print(f"shape   {shape}")
        console.print(f"device  {name or 'the GPU here'}")
        console.print(f"config  {kernel.config}")
        console.print(f"why     {why.rung}: {why.reason}")
        if why.row is not None:
            console.print(f"row     {_row_text(why.row)} ({why.origin} table)")
        for note in why.notes:
            console.print(f"note    {note}")
        data.append(
            {
                "shape": shape.as_dict(),
                "config": {key: value for key, value in kernel.config.items() if value is not None},
                "rung": why.rung,
                "reason": why.reason,
                "origin": why.origin,
                "distance": why.distance,
                "notes": why.notes,
                "row": None if why.row is None else trial_data(why.row),
            }
        )
    if as_json:
        print(json.dumps(data, indent=2))


def export(
    operation: ExportedOperation = None,
    form: Form = "json",
    sweep: SweepName = None,
    device: RowsOf = None,
    source: From = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write [default: standard output].")] = None,
    as_json: options.Json = False,
) -> None:
    """Write the winners as JSON, CSV or a Python list of triton.Config, to copy anywhere; or a whole sweep as T4."""
    if as_json and form != "json":
        raise UsageError(f"--json and --format={form!r} exclude each other; name one")
    if form not in (*FORMS, T4):
        raise UnknownNameError(f"form={form!r} is unknown; allowed: {', '.join(FORMS)}, {T4} (with --sweep)")
    if (form == T4) != (sweep is not None):
        raise UsageError(
            f"--format={form!r} {'without' if sweep is None else 'with'} --sweep is not allowed; "
            "expected --format t4 --sweep NAME together"
        )
    if sweep is not None:
        text = json.dumps(to_t4(_recorded(operation, sweep)), indent=2)
    else:
        name = operation or OPERATION
        rows = _winners(name, device, source)
        if not rows:
            raise AutotuneError(_no_winners(name))
        text = export_text(rows, "json" if as_json else form)
    if out is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"out={str(out)!r} cannot be written: {error.strerror}") from error


def _recorded(operation: str | None, name: str) -> list[Trial]:
    """The rows of a shipped sweep by the name of its file, of this operation or of any.

    Raises:
        UnknownNameError: there is no such operation, or no sweep of that name.
        TableError: it is damaged.
    """
    operations = operation_names() if operation is None else [get_operation(operation).name]
    damaged: list[TableError] = []
    sweeps = {sweep.name: sweep for each in operations for sweep in shipped_sweeps(each, on_damaged=damaged.append)}
    for error in damaged:
        if f"/{name}.parquet: " in str(error):
            raise error
    if name not in sweeps:
        raise UnknownNameError(f"sweep={name!r} is unknown; recorded: {', '.join(sweeps) or 'none'}")
    return sweeps[name].trials()


def require_folder(source: Path | None) -> None:
    """Refuse a folder to read that is none; None is the usual one, which need not exist yet.

    Raises:
        UsageError: it is no folder.
    """
    if source is None:
        require_place(None)
    elif not source.is_dir():
        raise UsageError(f"from={str(source)!r} is not a folder; expected one that `autotune search --out` wrote")


def require_place(out: Path | None) -> None:
    """Refuse a place of tables that is a file or lies below one; None is the usual one. It need not exist yet.

    Raises:
        UsageError: no folder can be there.
    """
    root, name = home() if out is None else out.absolute(), name_of_place(out)
    nearest = next(path for path in (root, *root.parents) if os.path.exists(path))
    if not nearest.is_dir():
        raise UsageError(f"{name}={str(root)!r} is not a folder; expected one, or a path at which one can be made")


def name_of_place(out: Path | None) -> str:
    """What says where tables are: the option, the variable, or neither."""
    if out is not None:
        return "out"
    return "AUTOTUNE_HOME" if os.environ.get("AUTOTUNE_HOME") else "default AUTOTUNE_HOME"


def find_device(name: str, rows: Iterable[Trial], root: Path | None) -> Device:
    """The device of that name, in any case, of these rows or else of any operation's winners; the highest power cap.

    Raises:
        UnknownNameError: no row is of such a device.
    """
    devices = {trial.device for trial in rows}
    if find_named(name, devices) is None:
        tables = (served_winners(other, root=root, on_damaged=lambda error: None) for other in operation_names())
        devices |= {row.trial.device for table in tables for row in table}
    found = find_named(name, devices) or find_named(name, [NVIDIA_H200])  # what is asked where there is no GPU
    if found is None:
        known = ", ".join(sorted({device.name for device in devices})) or "none"
        near = names_like(name, devices)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UnknownNameError(f"device={name!r} has no rows; devices with rows: {known}{hint}")
    return found


def _no_winners(operation: str) -> str:
    # Without a GPU, a search replays what is recorded.
    where = "" if shipped_sweeps(operation, on_damaged=warn_damaged) else " on a GPU"
    return (
        f"no winners of {operation} yet: `autotune search --operation {operation}`{where} finds some; "
        f"`autotune lookup --operation {operation}` says what is served"
    )


def _winners(operation: str, device: str | None, source: Path | None) -> list[Trial]:
    """The winners that would be served, in the order of their shapes."""
    get_operation(operation)  # an unknown one has no rows, which is not what is wrong
    require_folder(source)
    rows = [row.trial for row in served_winners(operation, root=source, on_damaged=warn_damaged)]
    if device is not None:
        name = find_device(device, rows, source).name
        rows = [trial for trial in rows if trial.device.name == name]
    return sorted(rows, key=_place)


def _place(trial: Trial) -> tuple[Any, ...]:
    family = [(field is not None, field) for field in trial.shape.family()]  # None does not compare
    return (trial.device.name, family, trial.shape.coordinates()[::-1])


def _table(device: str, rows: Sequence[Trial]) -> Table:
    table = Table(title=device, title_justify="left", box=None, pad_edge=False, header_style="bold")
    parameters = [name for name in rows[0].config if any(trial.config[name] is not None for trial in rows)]
    in_bytes = all(is_limited_by_memory(row.tflops, row.gbps, row.device.name, row.shape) for row in rows)
    unit = "GB/s" if in_bytes else "TFLOP/s"
    for header in ("shape", *parameters, "time", unit, "vs default", "vs best other", "from"):
        table.add_column(header, justify="right" if header in ("time", unit) else "left", overflow="fold")
    for trial in rows:
        assert trial.timing is not None
        table.add_row(
            str(trial.shape),
            *("" if trial.config[name] is None else str(trial.config[name]) for name in parameters),
            f"{trial.timing.median_us:.0f} us",
            "" if (rate := trial.gbps if in_bytes else trial.tflops) is None else describe_rate(rate),
            "" if trial.default_timing is None else f"{speed_up(trial.default_timing, trial.timing).value:.2f}x",
            ""
            if trial.baseline_timing is None
            else f"{speed_up(trial.baseline_timing, trial.timing).value:.2f}x {trial.baseline.removeprefix('sdpa ')}",
            f"{trial.started_at:%Y-%m-%d}{', replay' if trial.executor == 'replay' else ''}{policy_text(trial.policy)}",
        )
    return table


def _row_text(row: Trial) -> str:
    tools = asdict(row.toolchain)
    versions = ", ".join(f"{name} {tools[name]}" for name in ("triton", "torch", "driver") if tools[name])
    time = "" if row.timing is None else f"{row.timing.median_us:.1f} us{policy_text(row.policy)}, "
    verb = "replayed" if row.executor == "replay" else "measured"
    return f"{time}{verb} {row.started_at:%Y-%m-%d} with {versions}"
