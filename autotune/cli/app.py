"""The commands; every error becomes one line and an exit code: 0 done, 1 failed, 2 wrong usage."""

import sys
import warnings
from typing import Final

import click

from autotune import __version__
from autotune.console import interrupts, streams
from autotune.console.command import Group, Reference
from autotune.errors import AutotuneError, UsageError, printable
from autotune.redaction import redacted

EXIT_CODES: Final = "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C, 143 stopped by SIGTERM."

COMMANDS: Final = {
    "search": Reference("autotune.cli.search:search", "Search the fastest config of each shape.", listens_later=True),
    "show": Reference("autotune.cli.show:show", "List the winners.", is_reader=True),
    "lookup": Reference("autotune.cli.lookup:lookup", "Look up what is served for a shape, and why.", is_reader=True),
    "explain": Reference("autotune.cli.explain:explain", "Explain why a config won or lost.", is_reader=True),
    "bench": Reference("autotune.lab.bench.command:bench", "Race the served kernel against others."),
    "report": Reference("autotune.lab.report.command:report", "Write a table as an HTML report.", is_reader=True),
    "verify": Reference(
        "autotune.cli.verify:verify", "Measure how near the best served kernels are.", listens_later=True
    ),
    "sweep": Reference("autotune.cli.search:sweep", "Measure every valid config of a shape.", listens_later=True),
    "export": Reference("autotune.cli.export:export", "Write winners in another format.", is_reader=True),
    "tables": Reference("autotune.cli.tables:tables", "List, compare, merge, check and tidy tables.", is_group=True),
    "grid": Reference("autotune.cli.grid:grid", "Plan and watch a grid of tasks on a fleet.", is_group=True),
    "warmup": Reference("autotune.cli.warmup:warmup", "Compile ahead what a model or a shape is served."),
    "doctor": Reference("autotune.cli.doctor:doctor", "Check device, versions and tables.", is_reader=True),
    "analyze": Reference(
        "autotune.cli.analyze:analyze", "Derive and measure why kernels are as fast as they are.", is_group=True
    ),
}


@click.group("autotune", cls=Group, references=COMMANDS, epilog=EXIT_CODES)
@click.version_option(__version__, message="attention-autotune %(version)s", help="Print the version and exit.")
@click.pass_context
def app(context: click.Context) -> None:
    """Tune Triton attention kernels on this device, keep the results in Parquet, serve the best for a shape."""
    reference = COMMANDS.get(context.invoked_subcommand or "")
    if reference is not None and not reference.is_reader:
        streams.report_closing()
        if not reference.listens_later:
            interrupts.listen()


def main() -> None:
    warnings.formatwarning = lambda message, *_, **__: f"{_line(str(message))}\n"
    try:
        code = app(prog_name="autotune", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):  # click makes the second of the first
        code = interrupts.exit_code()
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "autotune"  # whose help lists what was expected
        code = _fail(f"{' '.join(error.format_message().split()).rstrip('.')}; see `{path} --help`", 2)
    except UsageError as error:
        code = _fail(str(error), 2)
    except OSError as error:
        code = _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except AutotuneError as error:
        code = _fail(str(error), 1)
    except MemoryError:
        code = _fail("out of memory: free some, or raise the limit (`ulimit -v`)", 1)
    sys.exit(code)


def _fail(text: str, code: int) -> int:
    print(_line(text), file=sys.stderr)
    return code


def _line(text: str) -> str:
    return printable(redacted(f"autotune: {' '.join(text.split())}"))
