"""The commands, and how every error becomes one line and an exit code: 0 done, 1 failed, 2 wrong usage."""

import sys
import warnings
from typing import Annotated

import typer

from autotune import __version__
from autotune.cli.bench import bench
from autotune.cli.doctor import doctor
from autotune.cli.search import search, sweep
from autotune.cli.tables import export, lookup, show
from autotune.errors import AutotuneError, UsageError

app = typer.Typer(
    name="autotune",
    help="Tune Triton attention kernels on this device, keep the results in Parquet, serve the best for a shape.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (search, show, lookup, bench, sweep, export, doctor):
    app.command()(command)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"attention-autotune {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def options(version: Version = False) -> None:
    """What stands before a command; Typer runs the callback of --version, which needs no command."""


def main() -> None:
    """Run the command line."""
    warnings.formatwarning = lambda message, *_, **__: f"autotune: {message}\n"
    try:
        app(prog_name="autotune")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except (AutotuneError, OSError) as error:
        print(f"autotune: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
