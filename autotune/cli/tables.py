"""``autotune show``, ``lookup`` and ``export``: read the tables; no GPU, no torch, no triton."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from autotune.cli import options
from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.errors import UnknownNameError
from autotune.hardware import has_gpu
from autotune.report.summary import speed_up, trial_data
from autotune.table import Store, home, raise_damaged, shipped_winners, winners
from autotune.table import export as export_text
from autotune.trial import Trial

From = Annotated[Path | None, typer.Option("--from", help="Folder of the tables [default: $AUTOTUNE_HOME].")]
Form = Annotated[str, typer.Option("--format", help="json, csv, or triton: a Python list of triton.Config.")]


def show(
    operation: options.OperationName = "flash_attention",
    device: options.DeviceName = None,
    source: From = None,
    as_json: options.Json = False,
) -> None:
    """List the winners: yours, and the shipped ones that you have not tuned again."""
    rows = _winners(operation, device, source)
    if as_json:
        print(json.dumps([trial_data(trial) for trial in rows], indent=2))
        return
    console = Console()
    if not rows:
        console.print("no winners yet: run `autotune search --seq 1024`", highlight=False)
        return
    for name in dict.fromkeys(trial.device.name for trial in rows):
        console.print(_table(name, [trial for trial in rows if trial.device.name == name]))


def lookup(
    operation: options.OperationName = "flash_attention",
    seq: options.Seq = "1024",
    seq_kv: options.SeqKv = None,
    batch: options.Batch = None,
    heads: options.Heads = None,
    kv_heads: options.KvHeads = None,
    head_dim: options.HeadDim = None,
    dtype: options.Dtype = "bfloat16",
    causal: options.Causal = None,
    window: options.Window = None,
    model: options.Model = None,
    tp: options.TensorParallel = 1,
    device: options.DeviceName = None,
    as_json: options.Json = False,
) -> None:
    """Say what get_kernel answers for a shape, from which row, and why."""
    _, shapes = options.make_shapes(
        operation, seq=seq, seq_kv=seq_kv, batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        dtype=dtype, causal=causal, window=window, model=model, tp=tp,
    )  # fmt: skip
    name = device or (None if has_gpu() else NVIDIA_H200.name)
    _require_known(operation, device)
    data = []
    console = Console(stderr=as_json, soft_wrap=True)
    for shape in shapes:
        kernel = get_kernel(shape, device=name)
        why = kernel.provenance
        console.print(f"shape   {shape}", highlight=False)
        console.print(f"device  {name or 'the GPU here'}", highlight=False)
        console.print(f"config  {kernel.config}", highlight=False)
        console.print(f"why     {why.rung}: {why.reason}", highlight=False)
        if why.row is not None:
            console.print(f"row     {_row_text(why.row)} ({why.origin} table)", highlight=False)
        for note in why.notes:
            console.print(f"note    {note}", highlight=False)
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
    operation: options.OperationName = "flash_attention",
    form: Form = "json",
    device: options.DeviceName = None,
    source: From = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write [default: standard output].")] = None,
    as_json: options.Json = False,
) -> None:
    """Write the winners as JSON, CSV or a Python list of triton.Config, to copy anywhere."""
    text = export_text(_winners(operation, device, source), "json" if as_json else form)
    if out is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"out={str(out)!r} cannot be written: {error.strerror}") from error


def _winners(operation: str, device: str | None, source: Path | None) -> list[Trial]:
    """The user's winners and the shipped ones; the user's stand in for shipped ones of the same shape and device."""
    users = winners(Store(source or home()).trials(operation, on_damaged=raise_damaged))
    tuned = {(trial.device, trial.shape) for trial in users}
    shipped = [t for t in winners(shipped_winners(operation)) if (t.device, t.shape) not in tuned]
    rows = [*users, *shipped]
    if device is not None:
        known = sorted({trial.device.name for trial in rows})
        rows = [trial for trial in rows if trial.device.name == device]
        if not rows:
            raise UnknownNameError(f"device={device!r} has no rows; devices with rows: {', '.join(known) or 'none'}")
    return sorted(rows, key=lambda t: (t.device.name, t.shape.family(), t.shape.coordinates()[::-1]), reverse=False)


def _require_known(operation: str, device: str | None) -> None:
    if device is not None:
        _winners(operation, device, None)


def _table(device: str, rows: Sequence[Trial]) -> Table:
    table = Table(title=device, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for header in ("shape", "config", "time", "TFLOP/s", "vs default", "vs torch SDPA", "from"):
        table.add_column(header, justify="right" if header in ("time", "TFLOP/s") else "left", overflow="fold")
    for trial in rows:
        assert trial.timing is not None
        table.add_row(
            str(trial.shape),
            str(trial.config),
            f"{trial.timing.median_us:.0f} us",
            "" if trial.tflops is None else f"{trial.tflops:.0f}",
            "" if trial.default_timing is None else f"{speed_up(trial.default_timing, trial.timing).value:.2f}x",
            ""
            if trial.baseline_timing is None
            else f"{speed_up(trial.baseline_timing, trial.timing).value:.2f}x {trial.baseline.removeprefix('sdpa ')}",
            f"{trial.executor}, {trial.started_at:%Y-%m-%d}",
        )
    return table


def _row_text(row: Trial) -> str:
    tools = asdict(row.toolchain)
    versions = ", ".join(f"{name} {tools[name]}" for name in ("triton", "torch", "driver") if tools[name])
    time = "" if row.timing is None else f"{row.timing.median_us:.1f} us, "
    return f"{time}measured {row.started_at:%Y-%m-%d} by {row.executor} with {versions}"
