"""``autotune bench --suite``: what others measured, again, table by table."""

from rich.console import Console

from autotune import hardware
from autotune.cli.benched import Forms, end_as, print_rows
from autotune.cli.output import say
from autotune.comparison import suites
from autotune.errors import AutotuneError, MissingDependencyError, UsageError, one_line
from autotune.executor.select import NO_GPU
from autotune.report import suite as suite_report


def bench_suite(name: str, console: Console, forms: Forms, *, cpu: bool) -> None:
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
    machine: suites.Machine = suites.CpuMachine(on_step=say) if cpu else suites.GpuMachine(on_step=say)
    console.print(f"{suite.name}: {suite.description}")
    tables, ending = _run_suite(suite, machine, console)
    result = suite.result(machine, tables)
    console.print(f"\n{suite_report.heading(result)}")
    if isinstance(ending, KeyboardInterrupt):
        those = "this table" if len(tables) == 1 else f"these {len(tables)} tables"
        console.print(f"interrupted: the suite has more than {those}")
    data = suite_report.suite_data(result)
    of_races = (table.title for table in result.tables for _ in table.comparisons)
    for comparison, title in zip(data["comparisons"], of_races, strict=True):
        comparison["table"] = title
    forms.hand_out(data, suite_report.markdown(result), data["comparisons"])
    end_as(ending)
    if result.failures:
        raise AutotuneError(f"suite {name}: {len(result.failures)} failed: {'; '.join(result.failures)}")


def _run_suite(
    suite: suites.Suite, machine: suites.Machine, console: Console
) -> tuple[list[suites.Table], BaseException | None]:
    """Its tables, each printed as it is there, and what ended it before the last; raises that where there are none."""
    tables: list[suites.Table] = []
    ending: BaseException | None = None

    def keep(table: suites.Table) -> None:
        _print_table(console, table)
        tables.append(table)

    try:
        suite.run(machine, keep)
    except (RuntimeError, MemoryError) as error:  # torch's, above all where memory ends
        ending = AutotuneError(f"suite {suite.name}: {one_line(error)}")
        ending.__cause__ = error
    except (KeyboardInterrupt, Exception) as error:
        ending = error
    if ending is not None and not tables:
        raise ending
    return tables, ending


def _print_table(console: Console, table: suites.Table) -> None:
    console.print(f"\n{table.title}")
    print_rows(console, suite_report.headers(table), suite_report.is_text(table), suite_report.cells(table))
    for note in suite_report.notes(table):
        console.print(note)
