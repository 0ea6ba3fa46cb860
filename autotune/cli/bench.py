"""``autotune bench``: the served kernel beside every other system, in one interleaved race; and the suites."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from autotune.cli import options, shapes
from autotune.cli.bench_suite import bench_suite
from autotune.cli.benched import Forms, end_as, print_rows
from autotune.cli.cpu_sizes import CPU_SIZES_TEXT, sized_for_cpu
from autotune.cli.options import flag_of
from autotune.cli.output import make_console, say
from autotune.cli.shape_options import OPERATION, ShapeOptions
from autotune.cli.turns import Problem
from autotune.comparison import Comparison, choose_names, compare_on_cpu, compare_on_gpu, suites, why_not_here
from autotune.errors import AutotuneError, MissingDependencyError, UsageError, one_line
from autotune.executor import Executor
from autotune.executor.select import Settings, open_gpu
from autotune.operation import Operation
from autotune.registry import load_kernel
from autotune.report import comparison as comparison_report
from autotune.shape import Shape

SECONDS: Final = 5.0
TUNED: Final = {"flex_attention": "flex"}  # the baseline whose options an operation tunes
QUIET_PROFILER: Final = "6"  # below it torch 2.13's profiler writes two lines a run to standard error

Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds", min=1.0, help=f"Most time to measure each shape, once all are ready [default: {SECONDS:g}]."
    ),
]
Against = Annotated[
    str | None,
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
    against: Against = None,
    cpu: OnCpu = False,
    as_markdown: Markdown = False,
    as_json: options.Json = False,
    output: Output = None,
) -> None:
    """Measure the kernel that get_kernel serves, the default, and what others offer for the same, on this GPU."""
    console = make_console(as_json or as_markdown)
    forms = Forms(as_json, as_markdown, output)
    forms.check()
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET_PROFILER)  # read when torch is imported
    if suite is not None:
        _require_alone(wanted, seconds=seconds, against=against)
        bench_suite(suite, console, forms, cpu=cpu)
        return
    found = shapes.describe(sized_for_cpu(wanted) if cpu else wanted)
    for note in found.notes:
        console.print(note)
    if cpu:
        _require_baselines(found.problems)
    benched = _compare(found, console, seconds=seconds or SECONDS, against=against, cpu=cpu)
    data = [comparison_report.comparison_data(comparison) for comparison in benched.comparisons]
    is_any_timed = any(comparison.timed for comparison in benched.comparisons)
    markdown = comparison_report.markdown(benched.comparisons)
    notes = "".join(f"\n{note}\n" for note in benched.notes)
    forms.hand_out(data, f"{markdown}{notes}", data if is_any_timed else [])
    end_as(benched.ending)
    if benched.failures:
        failed = f"{len(benched.failures)} of {len(found.problems)} shapes failed"
        raise AutotuneError(f"{failed}: {'; '.join(benched.failures)}")


bench = options.with_options(_bench, "wanted", ShapeOptions)
bench.__name__ = "bench"


@dataclass
class Benched:
    """What the problems of one command came to, as far as it got; ``ending`` is what ended it before the last.

    ``notes`` are of whom was compared.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ending: BaseException | None = None


def _compare(wanted: shapes.Wanted, console: Console, *, seconds: float, against: str | None, cpu: bool) -> Benched:
    """Each problem's race or why there is none, printed as it ends; Ctrl-C keeps those that ended before.

    A problem that nobody who was asked for can do is a comparison, with why, and a failure too.

    Raises:
        UsageError: ``against`` is empty.
        UnknownNameError: ``against`` names no baseline.
        MissingDependencyError: there is no GPU, and no ``--cpu``.
    """
    names = [] if against is None else _names_in(against)
    benched = Benched()
    chosen = [choose_names(load_kernel(operation.name).baselines(), names) for operation, _ in wanted.problems]
    if cpu and not names:
        chosen, benched.notes = _usual_on_cpu(wanted.problems, chosen)
    for note in benched.notes:
        console.print(note)
    try:
        with contextlib.ExitStack() as stack:
            executor = None if cpu else stack.enter_context(contextlib.closing(_open_gpu()))
            for (operation, shape), those in zip(wanted.problems, chosen, strict=True):
                try:
                    if executor is None:
                        found = compare_on_cpu(operation, shape, those, seconds=seconds, room=_room(), on_step=say)
                    else:
                        found = compare_on_gpu(executor, operation, shape, those, seconds=seconds)
                except (AutotuneError, RuntimeError, MemoryError) as error:  # torch's, above all where memory ends
                    benched.failures.append(f"{shape}: {_told(error)}")
                    console.print(f"FAILED: {benched.failures[-1]}")
                    continue
                _print_comparison(console, found)
                benched.comparisons.append(found)
                if (reason := _why_failed(found, operation, those, cpu=cpu)) is not None:
                    benched.failures.append(f"{shape}: {reason}")
                    console.print(reason)
    except KeyboardInterrupt as error:
        benched.ending = error
        console.print(f"interrupted: {len(benched.comparisons)} of {len(wanted.problems)} shapes were compared")
    except Exception as error:
        if not benched.comparisons:
            raise
        benched.ending = error  # a mistake of this program costs nothing that was compared before
    return benched


def _names_in(against: str) -> list[str]:
    if names := [name for name in against.split(",") if name.strip()]:
        return names
    raise UsageError(f"against={against!r} names no baseline; leave it out for the usual ones, or give all")


def _open_gpu() -> Executor:
    """The GPU here.

    Raises:
        MissingDependencyError: there is none; what can be had without.
    """
    try:
        return open_gpu(Settings())
    except MissingDependencyError as error:
        raise MissingDependencyError(f"{error}; --cpu compares the baselines on the processor") from error


def _room() -> int:
    """The memory that may be asked for on the processor."""
    from autotune.analysis.processor import read_processor, usable_bytes  # loads torch

    return usable_bytes(read_processor("cpu"))


def _require_baselines(problems: Sequence[Problem]) -> None:
    """Refuse problems whose baselines are all for GPUs: nothing about them can be changed on a CPU.

    Raises:
        MissingDependencyError: the message names the operations.
    """
    names = dict.fromkeys(operation.name for operation, _ in problems)
    if not any(baseline.available() is None for name in names for baseline in load_kernel(name).baselines()):
        raise MissingDependencyError(f"every baseline of {', '.join(names)} needs a GPU: --cpu has none to compare")


def _told(error: Exception) -> str:
    """An error in one line; of somebody else's its type, too."""
    return " ".join(str(error).split()) if isinstance(error, AutotuneError) else one_line(error)


def _usual_on_cpu(problems: Sequence[Problem], usual: Sequence[list[str]]) -> tuple[list[list[str]], list[str]]:
    """The usual baselines of each problem, and what is said of them: where none can run on this CPU, those that can
    join them, which say why they do not. What the operation tunes on a GPU is usual where nothing of ours runs."""
    chosen, notes = [], []
    for (operation, shape), names in zip(problems, usual, strict=True):
        able = _able(operation, shape)
        is_replaced = bool(able) and not set(able) & set(names)
        others = able if is_replaced else [name for name in able if name == TUNED.get(operation.name)]
        chosen.append([*names, *others])
        if is_replaced:
            left = f"none of the usual baselines ({', '.join(names)}) runs here; compared: {', '.join(able)}"
            notes.append(f"{left}; --against all lists the others too, and what they lack")
    return chosen, list(dict.fromkeys(notes))


def _able(operation: Operation[Any], shape: Shape) -> list[str]:
    """The names of the baselines that can run over a shape on this CPU."""
    known = load_kernel(operation.name).baselines()
    return [baseline.name for baseline in known if why_not_here(baseline, shape) is None]


def _why_failed(found: Comparison, operation: Operation[Any], asked: Sequence[str], *, cpu: bool) -> str | None:
    """What a comparison lacks: a time of what is served, or any; then who else could be asked, on a CPU of the able."""
    if found.served is not None and found.served.timing is None:
        return f"{found.config} is {found.served.message}"
    if found.timed:
        return None
    known = _able(operation, found.shape) if cpu else [each.name for each in load_kernel(operation.name).baselines()]
    if not known:
        return f"no baseline of {operation.name} runs here for this shape"
    others = [name for name in known if name not in asked]
    return f"nothing ran here; --against all also has: {', '.join(others)}" if others else "nothing ran here"


def _require_alone(wanted: ShapeOptions, *, seconds: float | None, against: str | None) -> None:
    """Refuse what a suite has of its own: sizes, systems, patience."""
    given = [flag_of(name) for name, value in wanted.given().items() if (name, value) != ("tp", 1)]
    given += [flag for flag, value in (("--seconds", seconds), ("--against", against)) if value is not None]
    if given:
        raise UsageError(f"--suite has its own shapes, systems and times; leave out {', '.join(given)}")


def _print_comparison(console: Console, comparison: Comparison) -> None:
    operation = "" if comparison.operation == OPERATION else f"{comparison.operation}: "
    console.print(f"{operation}{comparison_report.title(comparison)}")
    if comparison.config is not None:
        console.print(f"served: {comparison.config} ({comparison.reason})")
    if comparison.timed:
        headers = comparison_report.headers(comparison)
        print_rows(console, headers, [header == "" for header in headers], comparison_report.cells(comparison))
    for note in comparison_report.notes(comparison):
        console.print(note)
