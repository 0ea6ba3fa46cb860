"""``autotune bench --suite``: a published comparison, measured again, table by table, for people and as plain data."""

from dataclasses import asdict
from typing import Any

from rich.console import Console

from autotune import platforms
from autotune.console.output import print_sheet, say
from autotune.errors import AutotuneError, MissingDependencyError, UsageError, one_line
from autotune.executor.select import NO_GPU
from autotune.lab import suites
from autotune.lab.bench.comparison import comparison_data, disturbances, place
from autotune.lab.bench.forms import Forms, end_as
from autotune.lab.suites.suite import SuiteResult, SuiteSheet
from autotune.sheets import Sheet, markdown, sheet_data


def run_suite(name: str, console: Console, forms: Forms, *, cpu: bool) -> None:
    """Run a suite and print each table as soon as it is measured; what ends it early keeps the tables before."""
    suite = suites.find_suite(name)
    if forms.output is not None and not suite.has_comparisons:
        raise UsageError(f"--output writes races of systems, and --suite {name} has none; --json has its tables")
    if not cpu and not platforms.has_gpu():
        raise MissingDependencyError(f"{NO_GPU}; --cpu runs the suite on the processor, reduced where it must be")
    machine: suites.Machine = suites.CpuMachine(on_step=say) if cpu else suites.GpuMachine(on_step=say)
    console.print(f"{suite.name}: {suite.description}")
    sheets, ending = _measure(suite, machine, console)
    result = suite.result(machine, sheets)
    console.print()
    console.print(heading(result))
    if isinstance(ending, KeyboardInterrupt):
        those = "this table" if len(sheets) == 1 else f"these {len(sheets)} tables"
        console.print(f"interrupted: the suite has more than {those}")
    data = suite_data(result)
    forms.hand_out(data, suite_markdown(result), data["comparisons"])
    end_as(ending)
    if result.failures:
        raise AutotuneError(f"suite {name}: {len(result.failures)} failed: {'; '.join(result.failures)}")


def _measure(
    suite: suites.Suite, machine: suites.Machine, console: Console
) -> tuple[list[suites.SuiteSheet], BaseException | None]:
    """Return the tables, and what ended the suite before the last; raise that if there are none."""
    sheets: list[suites.SuiteSheet] = []
    ending: BaseException | None = None
    try:
        for sheet in suite.measure(machine):
            console.print()
            print_sheet(console, whole_sheet(sheet))
            sheets.append(sheet)
    except (RuntimeError, MemoryError) as error:  # torch's, above all where memory ends
        ending = AutotuneError(f"suite {suite.name}: {one_line(error)}")
        ending.__cause__ = error
    except (KeyboardInterrupt, Exception) as error:
        ending = error
    if ending is not None and not sheets:
        raise ending
    return sheets, ending


def whole_sheet(found: SuiteSheet) -> Sheet:
    """Return the sheet with all notes below it: failures first, then what disturbed which race."""
    failed = [f"FAILED: {failure}" for failure in found.failures]
    disturbed = [f"{each.shape}: {text}" for each in found.comparisons for text in disturbances(each.conditions)]
    return Sheet(found.title, found.columns, found.rows, (*failed, *disturbed, *found.notes))


def heading(result: SuiteResult) -> str:
    """Name the suite, where it ran, and how times were taken."""
    if result.policy is None:
        return f"{result.suite} on {result.device}: nothing was measured here"
    how = "a CUDA graph's replay" if result.policy.mode == "graph" else "runs from Python"
    caches = "warm caches" if result.policy.cache == "warm" else "cold caches"
    return f"{result.suite} on {place(result.device, result.threads)}: {how}, {caches}"


def suite_markdown(result: SuiteResult) -> str:
    parts = [f"## {heading(result)}\n\n{result.description}\n"]
    return "\n".join([*parts, *(markdown(whole_sheet(sheet), level=3) for sheet in result.sheets)])


def suite_data(result: SuiteResult) -> dict[str, Any]:
    """Return plain data for JSON: times in microseconds, memory in bytes; a comparison names its ``table``."""
    return {
        "suite": result.suite,
        "description": result.description,
        "device": result.device,
        "threads": result.threads,
        "toolchain": asdict(result.toolchain),
        "policy": None if result.policy is None else asdict(result.policy),
        "tables": [{**sheet_data(sheet), "failures": list(sheet.failures)} for sheet in result.sheets],
        "comparisons": [
            {**comparison_data(comparison), "table": sheet.title}
            for sheet in result.sheets
            for comparison in sheet.comparisons
        ],
        "failures": list(result.failures),
    }
