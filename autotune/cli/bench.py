"""``autotune bench``: the served kernel beside every other system, in one interleaved race; and the suites."""

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from autotune import hardware
from autotune.cli import interrupts, options, shapes
from autotune.cli.cpu_sizes import CPU_SIZES_TEXT, sized_for_cpu
from autotune.cli.options import flag_of
from autotune.cli.output import make_console, say
from autotune.cli.shape_options import ShapeOptions
from autotune.cli.turns import Problem
from autotune.comparison import Comparison, choose_names, compare_on_cpu, compare_on_gpu, suites, why_not_here
from autotune.errors import AutotuneError, MissingDependencyError, UsageError
from autotune.executor.select import NO_GPU, Settings, open_gpu
from autotune.operation import Operation
from autotune.registry import load_kernel
from autotune.report import comparison as comparison_report
from autotune.report import suite as suite_report
from autotune.shape import Shape
from autotune.table import write_comparisons

SECONDS: Final = 5.0
QUIET_PROFILER: Final = "6"  # below it torch 2.13's profiler writes two lines a run to standard error

Seconds = Annotated[
    float | None,
    typer.Option("--seconds", min=1.0, help=f"Time to measure each shape, once all are ready [default: {SECONDS:g}]."),
]
Against = Annotated[
    str,
    typer.Option(
        "--against", metavar="NAMES", help='"all", or baselines by name, comma-separated [default: the usual ones].'
    ),
]
OnCpu = Annotated[
    bool,
    typer.Option(
        "--cpu",
        help="Compare the baselines on this machine's processor, which runs no kernel of ours; "
        f"smaller by default: {CPU_SIZES_TEXT}.",
    ),
]
SuiteName = Annotated[
    str | None,
    typer.Option(
        "--suite", metavar="NAME", help=f"What others measured, again, instead of a shape: {', '.join(suites.SUITES)}."
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown on standard output.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write a Parquet table, a row a system.")]


def _bench(
    *,
    wanted: ShapeOptions,
    suite: SuiteName = None,
    seconds: Seconds = None,
    against: Against = "",
    cpu: OnCpu = False,
    as_markdown: Markdown = False,
    as_json: options.Json = False,
    output: Output = None,
) -> None:
    """Measure the kernel that get_kernel serves, the default, and what others offer for the same, on this GPU."""
    console = make_console(as_json or as_markdown)
    forms = Forms(as_json, as_markdown, output)
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET_PROFILER)  # read when torch is imported
    if suite is not None:
        _require_alone(wanted, seconds=seconds, against=against)
        _bench_suite(suite, console, forms, cpu=cpu)
        return
    found = shapes.describe(sized_for_cpu(wanted) if cpu else wanted)
    for note in found.notes:
        console.print(note)
    benched = _compare(found, console, seconds=seconds or SECONDS, against=against, cpu=cpu)
    data = [comparison_report.comparison_data(comparison) for comparison in benched.comparisons]
    is_any_timed = any(comparison.timed for comparison in benched.comparisons)
    forms.hand_out(data, comparison_report.markdown(benched.comparisons), data if is_any_timed else [])
    if benched.interrupted:
        raise typer.Exit(interrupts.exit_code())
    if benched.failures:
        failed = f"{len(benched.failures)} of {len(found.problems)} shapes failed"
        raise AutotuneError(f"{failed}: {'; '.join(benched.failures)}")


bench = options.with_options(_bench, "wanted", ShapeOptions)
bench.__name__ = "bench"


@dataclass(frozen=True, slots=True)
class Forms:
    """What is wanted beside what people read: one text on standard output, and a Parquet file."""

    as_json: bool
    as_markdown: bool
    output: Path | None

    def hand_out(self, data: object, markdown: str, comparisons: Sequence[dict[str, Any]]) -> None:
        """Print and write; where nothing was compared a file stays as it was.

        Raises:
            TableError: the file cannot be written.
        """
        if self.as_json:
            print(json.dumps(data, indent=2))
        elif self.as_markdown:
            print(markdown, end="")
        if self.output is not None and comparisons:
            write_comparisons(self.output, comparisons)


@dataclass
class Benched:
    """What the problems of one command came to, as far as it got."""

    comparisons: list[Comparison] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    interrupted: bool = False


def _compare(wanted: shapes.Wanted, console: Console, *, seconds: float, against: str, cpu: bool) -> Benched:
    """Each problem's race or why there is none, printed as it ends; Ctrl-C keeps those that ended before.

    A problem that nobody who was asked for can do is a comparison, with why, and a failure too.

    Raises:
        UnknownNameError: ``against`` names no baseline.
        MissingDependencyError: there is no GPU, and no ``--cpu``.
    """
    names = [name for name in against.split(",") if name.strip()]
    chosen = [choose_names(load_kernel(operation.name).baselines(), names) for operation, _ in wanted.problems]
    if cpu and not names:
        chosen = _usual_on_cpu(wanted.problems, chosen, console)
    benched = Benched()
    try:
        with contextlib.ExitStack() as stack:
            executor = None if cpu else stack.enter_context(contextlib.closing(open_gpu(Settings())))
            for (operation, shape), those in zip(wanted.problems, chosen, strict=True):
                try:
                    if executor is None:
                        found = compare_on_cpu(operation, shape, those, seconds=seconds, on_step=say)
                    else:
                        found = compare_on_gpu(executor, operation, shape, those, seconds=seconds)
                except AutotuneError as error:
                    benched.failures.append(f"{shape}: {' '.join(str(error).split())}")
                    console.print(f"FAILED: {benched.failures[-1]}")
                    continue
                _print_comparison(console, found)
                benched.comparisons.append(found)
                if not found.timed:
                    reason = _nothing_ran(operation, shape, those, cpu=cpu)
                    benched.failures.append(f"{shape}: {reason}")
                    console.print(reason)
    except KeyboardInterrupt:
        benched.interrupted = True
        console.print(f"interrupted: {len(benched.comparisons)} of {len(wanted.problems)} shapes were compared")
    return benched


def _usual_on_cpu(problems: Sequence[Problem], usual: Sequence[list[str]], console: Console) -> list[list[str]]:
    """The usual baselines of each problem; where none of them can run on this CPU, those that can, which is said."""
    chosen, notes = [], []
    for (operation, shape), names in zip(problems, usual, strict=True):
        able = _able(operation, shape)
        is_replaced = bool(able) and not set(able) & set(names)
        chosen.append(able if is_replaced else names)
        if is_replaced:
            notes.append(f"none of the usual baselines ({', '.join(names)}) runs here; compared: {', '.join(able)}")
    for note in dict.fromkeys(notes):
        console.print(note)
    return chosen


def _able(operation: Operation[Any], shape: Shape) -> list[str]:
    """The names of the baselines that can run over a shape on this CPU."""
    known = load_kernel(operation.name).baselines()
    return [baseline.name for baseline in known if why_not_here(baseline, shape) is None]


def _nothing_ran(operation: Operation[Any], shape: Shape, asked: Sequence[str], *, cpu: bool) -> str:
    """What to say where none of the baselines that were asked for has a time: others, on a CPU those that can run."""
    known = _able(operation, shape) if cpu else [each.name for each in load_kernel(operation.name).baselines()]
    if not known:
        return f"no baseline of {operation.name} runs here for this shape"
    others = [name for name in known if name not in asked]
    return f"nothing ran here; --against all also has: {', '.join(others)}" if others else "nothing ran here"


def _require_alone(wanted: ShapeOptions, *, seconds: float | None, against: str) -> None:
    """Refuse what a suite has of its own: sizes, systems, patience."""
    given = [flag_of(name) for name, value in wanted.given().items() if (name, value) != ("tp", 1)]
    given += [flag for flag, value in (("--seconds", seconds), ("--against", against)) if value]
    if given:
        raise UsageError(f"--suite has its own shapes, systems and times; leave out {', '.join(given)}")


def _bench_suite(name: str, console: Console, forms: Forms, *, cpu: bool) -> None:
    """Run a suite, printing each table as it is there; what ends it early ends it behind the output of those.

    Raises:
        UsageError: no such suite, or ``--output`` of one that has no races to write.
        MissingDependencyError: there is no GPU, and no ``--cpu``.
        AutotuneError: the suite ran, and something failed that it is to show.
        typer.Exit: Ctrl-C came.
    """
    suite = suites.find_suite(name)
    if forms.output is not None and not suite.has_comparisons:
        raise UsageError(f"--output writes races of systems, and --suite {name} has none; --json has its tables")
    if not cpu and not hardware.has_gpu():
        raise MissingDependencyError(f"{NO_GPU}; --cpu runs the suite on the processor, reduced where it must be")
    machine: suites.Machine = suites.CpuMachine() if cpu else suites.GpuMachine()
    console.print(f"{suite.name}: {suite.description}")
    tables: list[suites.Table] = []
    stopped: KeyboardInterrupt | AutotuneError | None = None

    def keep(table: suites.Table) -> None:
        _print_table(console, table)
        tables.append(table)

    try:
        suite.run(machine, keep)
    except (KeyboardInterrupt, AutotuneError) as error:
        if not tables:
            raise
        stopped = error
    result = suite.result(machine, tables)
    console.print(f"\n{suite_report.heading(result)}")
    if isinstance(stopped, KeyboardInterrupt):
        console.print(f"interrupted: the suite has more than these {len(tables)} tables")
    data = suite_report.suite_data(result)
    forms.hand_out(data, suite_report.markdown(result), data["comparisons"])
    if isinstance(stopped, KeyboardInterrupt):
        raise typer.Exit(interrupts.exit_code())
    if stopped is not None:
        raise stopped
    if result.failures:
        raise AutotuneError(f"suite {name}: {len(result.failures)} failed: {'; '.join(result.failures)}")


def _print_comparison(console: Console, comparison: Comparison) -> None:
    console.print(comparison_report.title(comparison))
    if comparison.config is not None:
        console.print(f"served: {comparison.config} ({comparison.reason})")
    if comparison.timed:
        headers = comparison_report.headers(comparison)
        _print_rows(console, headers, [header == "" for header in headers], comparison_report.cells(comparison))
    for note in comparison_report.notes(comparison):
        console.print(note)


def _print_table(console: Console, table: suites.Table) -> None:
    console.print(f"\n{table.title}")
    _print_rows(console, suite_report.headers(table), suite_report.is_text(table), suite_report.cells(table))
    for note in suite_report.notes(table):
        console.print(note)


def _print_rows(
    console: Console, headers: Sequence[str], from_left: Sequence[bool], rows: Sequence[Sequence[str]]
) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header, is_text in zip(headers, from_left, strict=True):
        table.add_column(header, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
