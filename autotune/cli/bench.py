"""``autotune bench``: the served kernel beside torch's SDPA backends, in one interleaved race."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from autotune.cli import options, shapes
from autotune.cli.output import make_console
from autotune.dispatch import get_kernel
from autotune.errors import AutotuneError
from autotune.executor import Race
from autotune.executor.select import Settings, open_gpu
from autotune.operation import Operation
from autotune.report.summary import describe_time, is_memory_bound, speed_up
from autotune.roofline import rates
from autotune.shape import Shape
from autotune.trial import Status, Timing

Seconds = Annotated[float, typer.Option("--seconds", min=1.0, help="Time for each shape.")]


@shapes.takes_shapes
def bench(
    *,
    wanted: shapes.Wanted,
    seconds: Seconds = 5.0,
    as_json: options.Json = False,
) -> None:
    """Measure the kernel that get_kernel serves, the default, and what torch has for the same, on this GPU."""
    executor = open_gpu(Settings())
    console = make_console(as_json)
    data = []
    try:
        for operation, shape in wanted.problems:
            kernel = get_kernel(shape, device=executor.device.name, operation=operation.name)
            default = operation.space.default(shape, executor.device)
            executor.open(operation, shape)
            configs = list(dict.fromkeys([kernel.config, default]))
            race = executor.race(configs, seconds=seconds, every_baseline=True)
            if race.outcomes[0].status is not Status.OK:
                raise AutotuneError(f"{kernel.config} is {race.outcomes[0].status}: {race.outcomes[0].message}")
            console.print(f"{shape} on {executor.device.name}")
            console.print(f"served: {kernel.config} ({kernel.provenance.reason})")
            rows = _rows(operation, shape, race)
            console.print(_table(rows))
            data.append(
                {"shape": shape.as_dict(), "config": dict(kernel.config), "rows": [_plain(row) for row in rows]}
            )
    finally:
        executor.close()
    if as_json:
        print(json.dumps(data, indent=2))


def _rows(operation: Operation[Any], shape: Shape, race: Race) -> list[dict[str, Any]]:
    """Name, timing, rates and how many times faster the served kernel is, or why there is no time."""
    served = race.outcomes[0].timing
    assert served is not None
    entries: list[tuple[str, Timing | None, str]] = [("autotune", served, "")]
    entries += [("autotune default", outcome.timing, outcome.message) for outcome in race.outcomes[1:]]
    entries += [(baseline.name, baseline.timing, baseline.message) for baseline in race.baselines]
    cost = operation.cost(shape)
    return [
        {
            "name": name,
            "timing": timing,
            **dict(zip(("tflops", "gbps"), rates(cost, timing.median_us) if timing else (None, None), strict=True)),
            "ratio": None if timing is None else speed_up(timing, served),
            "message": message,
        }
        for name, timing, message in entries
    ]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: asdict(value) if key in ("timing", "ratio") and value else value for key, value in row.items()}


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    unit, rate = "TFLOP/s", "tflops"
    if is_memory_bound(rows[0]["tflops"], rows[0]["gbps"]):
        unit, rate = "GB/s", "gbps"
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("", "time (95 %)", unit, "autotune is"):
        table.add_column(header, justify="left" if header == "" else "right")
    for row in rows:
        if row["timing"] is None:
            table.add_row(row["name"], "refused", "", row["message"][:60])
            continue
        ratio = "" if row["name"] == "autotune" else f"{row['ratio']} its speed"
        table.add_row(row["name"], describe_time(row["timing"]), f"{row[rate]:.0f}", ratio)
    return table
