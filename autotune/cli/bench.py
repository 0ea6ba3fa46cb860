"""``autotune bench``: the served kernel beside every other system, in one interleaved race."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from autotune.cli import options, shapes
from autotune.cli.output import make_console
from autotune.comparison import Comparison, choose_names, compare_on_cpu, compare_on_gpu
from autotune.executor.select import Settings, open_gpu
from autotune.registry import load_kernel
from autotune.report.comparison import cells, comparison_data, headers, markdown, notes, title
from autotune.table import write_comparisons

Seconds = Annotated[float, typer.Option("--seconds", min=1.0, help="Time for each shape.")]
Against = Annotated[
    str,
    typer.Option(
        "--against", metavar="NAMES", help='"all", or baselines by name, comma-separated [default: the usual ones].'
    ),
]
OnCpu = Annotated[
    bool, typer.Option("--cpu", help="Compare the baselines on this machine's processor, which runs no kernel of ours.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown on standard output.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write a Parquet table, a row a system.")]


@shapes.takes_shapes
def bench(
    *,
    wanted: shapes.Wanted,
    seconds: Seconds = 5.0,
    against: Against = "",
    cpu: OnCpu = False,
    as_markdown: Markdown = False,
    as_json: options.Json = False,
    output: Output = None,
) -> None:
    """Measure the kernel that get_kernel serves, the default, and what others offer for the same, on this GPU."""
    names = [name for name in against.split(",") if name.strip()]
    chosen = [choose_names(load_kernel(operation.name).baselines(), names) for operation, _ in wanted.problems]
    console = make_console(as_json or as_markdown)
    comparisons = []
    executor = None if cpu else open_gpu(Settings())
    try:
        for (operation, shape), those in zip(wanted.problems, chosen, strict=True):
            if executor is None:
                found = compare_on_cpu(operation, shape, those, seconds=seconds)
            else:
                found = compare_on_gpu(executor, operation, shape, those, seconds=seconds)
            _print(console, found)
            comparisons.append(found)
    finally:
        if executor is not None:
            executor.close()
    data = [comparison_data(comparison) for comparison in comparisons]
    if output is not None:
        write_comparisons(output, data)
    if as_json:
        print(json.dumps(data, indent=2))
    elif as_markdown:
        print(markdown(comparisons), end="")


def _print(console: Console, comparison: Comparison) -> None:
    console.print(title(comparison))
    if comparison.config is not None:
        console.print(f"served: {comparison.config} ({comparison.reason})")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers(comparison):
        table.add_column(header, justify="left" if header == "" else "right")
    for row in cells(comparison):
        table.add_row(*row)
    console.print(table)
    for note in notes(comparison):
        console.print(note)
