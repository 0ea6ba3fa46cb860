"""``autotune bench``: the served kernel beside every other system, in one interleaved race; and the suites."""

import itertools
import os
from pathlib import Path
from typing import Final

from autotune.console.command import command, flag_of, number, option
from autotune.console.options import implementation_option, json_option, output_option, split_names
from autotune.console.output import make_console
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.console.shapes import describe
from autotune.dispatch import Among
from autotune.errors import AutotuneError, UsageError
from autotune.lab.bench.comparison import comparison_data, comparison_sheet
from autotune.lab.bench.each_shape import choose, compare_all
from autotune.lab.bench.forms import Forms, end_as
from autotune.lab.commands import CPU_SIZES_TEXT, sized_for_cpu
from autotune.lab.suites.suite import SUITES
from autotune.registry import get_implementation
from autotune.sheets import markdown

SECONDS: Final = 5.0
QUIET_PROFILER: Final = "6"  # below it torch 2.13's profiler writes two lines a run to standard error


@command("bench")
@option("--suite", metavar="NAME", help=f"Measure a published comparison instead of a shape: {', '.join(SUITES)}.")
@option(
    "--seconds",
    type=number(1.0),
    help="Most time to measure each shape, once all are ready.",
    default_text=f"{SECONDS:g}",
)
@option(
    "--against", metavar="NAMES", help='"all", or baselines by name, comma-separated.', default_text="the usual ones"
)
@implementation_option("all of ours")
@option(
    "--cpu",
    is_flag=True,
    help="Compare the baselines on this machine's processor, which runs no kernel of ours; "
    f"smaller by default: {CPU_SIZES_TEXT}.",
)
@option("--markdown", "as_markdown", is_flag=True, help="Print Markdown on standard output.")
@json_option
@output_option(content="Write a Parquet table, a row a system.")
@shape_options()
def bench(
    *,
    shape: ShapeOptions,
    suite: str | None,
    seconds: float | None,
    against: str | None,
    implementations: tuple[str, ...],
    cpu: bool,
    as_markdown: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Measure the kernel that get_kernel serves, the default, and what others offer for the same, on this GPU."""
    console = make_console(as_json or as_markdown)
    forms = Forms(as_json, as_markdown, output)
    forms.check()
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET_PROFILER)  # read when torch is imported
    if suite is not None:
        from autotune.lab.suites.run import run_suite

        given = {**shape.given(), "seconds": seconds, "against": against, "implementation": implementations or None}
        if flags := [flag_of(name) for name, value in given.items() if value is not None]:
            raise UsageError(f"--suite has its own shapes, systems and times; leave out {', '.join(flags)}")
        run_suite(suite, console, forms, cpu=cpu)
        return
    if cpu and implementations:
        raise UsageError("--implementation chooses among kernels, and none runs with --cpu; leave out one")
    wanted = describe(sized_for_cpu(shape) if cpu else shape)
    for operation, name in itertools.product({operation.name for operation, _ in wanted.problems}, implementations):
        get_implementation(operation, name)  # one that is unknown is refused before anything is measured
    chosen, notes = choose(wanted.problems, _names_in(against), cpu=cpu)
    for note in (*wanted.notes, *notes):
        console.print(note)
    among: Among = implementations or "ours"
    benched = compare_all(wanted.problems, chosen, console, seconds=seconds or SECONDS, cpu=cpu, among=among)
    data = [comparison_data(comparison) for comparison in benched.comparisons]
    is_any_timed = any(comparison.timed for comparison in benched.comparisons)
    parts = [markdown(comparison_sheet(each, name=each.operation), level=2) for each in benched.comparisons]
    forms.hand_out(data, "\n".join([*parts, *(f"{note}\n" for note in notes)]), data if is_any_timed else [])
    end_as(benched.ending)
    if benched.failures:
        failed = f"{len(benched.failures)} of {len(wanted.problems)} shapes failed"
        raise AutotuneError(f"{failed}: {'; '.join(benched.failures)}")


def _names_in(against: str | None) -> tuple[str, ...]:
    names = split_names(against)
    if against is not None and not names:
        raise UsageError(f"against={against!r} names no baseline; leave it out for the usual ones, or give all")
    return names
