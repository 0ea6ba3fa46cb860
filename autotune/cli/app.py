"""The commands, and how every error becomes one line and an exit code: 0 done, 1 failed, 2 wrong usage."""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, get_args

import typer

from autotune import __version__
from autotune.cli import interrupts, streams
from autotune.cli.analyze import analyze
from autotune.cli.bench import bench
from autotune.cli.doctor import doctor
from autotune.cli.explain import explain
from autotune.cli.report import report
from autotune.cli.search import search, sweep
from autotune.cli.tables import export, lookup, show
from autotune.errors import AutotuneError, UsageError

EXIT_CODES: Final = "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C, 143 stopped by SIGTERM."

INTERRUPTED: Final = 130  # Typer's code for a KeyboardInterrupt, whatever raised it

# Typer has its own copy of click since 0.2x and uses click itself before, so the class is found by what both export.
WrongUsage: Final[type[Exception]] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="autotune",
    help="Tune Triton attention kernels on this device, keep the results in Parquet, serve the best for a shape.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# What only reads and prints: a signal ends it at once, and who stops reading it has seen what they wanted.
READERS: Final = (show, lookup, explain, report, export, doctor)
LISTEN_LATER: Final = (search, sweep)  # once they have loaded what they need and begin to work

for command in (search, show, lookup, explain, bench, report, sweep, export, doctor):
    app.command()(command)
app.add_typer(analyze, name="analyze")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"attention-autotune {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def options(context: typer.Context, version: Version = False) -> None:
    """What stands before a command; Typer runs the callback of --version, which needs no command."""
    name = context.invoked_subcommand
    if name not in _names(READERS):
        streams.tell_of_closing()
        if name not in _names(LISTEN_LATER):
            interrupts.listen()


def _names(commands: Iterable[Callable[..., None]]) -> set[str]:
    return {command.__name__ for command in commands}


def main() -> None:
    """Run the command line."""
    warnings.formatwarning = lambda message, *_, **__: f"autotune: {message}\n"
    try:
        code = app(prog_name="autotune", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):  # Abort: what older Typers make of it
        code = INTERRUPTED
    except WrongUsage as error:
        print(_refusal(error), file=sys.stderr)
        code = 2
    except UsageError as error:
        print(f"autotune: {_with_option(' '.join(str(error).split()))}", file=sys.stderr)
        code = 2
    except OSError as error:
        print(
            f"autotune: {error.filename}: {error.strerror}" if error.filename else f"autotune: {error}", file=sys.stderr
        )
        code = 1
    except AutotuneError as error:
        print(f"autotune: {' '.join(str(error).split())}", file=sys.stderr)
        code = 1
    sys.exit(interrupts.exit_code() if code == INTERRUPTED else code)


def _with_option(text: str) -> str:
    """A refusal that begins with the argument of a function, with the option that gave it: ``--format='xml' ...``."""
    flags: dict[str, str] = {}
    for parameter in _options(typer.main.get_command(app)):
        flag = parameter.opts[0]
        flags |= {parameter.name: flag, flag.removeprefix("--").replace("-", "_"): flag}
    name, sign, rest = text.partition("=")
    return f"{flags.get(name, name)}{sign}{rest}"


def _options(command: Any) -> Iterator[Any]:
    """The options of a command, or of all commands below it."""
    yield from (parameter for parameter in command.params if parameter.param_type_name == "option")
    for below in getattr(command, "commands", {}).values():
        yield from _options(below)


def _refusal(error: Any) -> str:
    """What Typer refused in one line, with the value where Typer leaves it out; the help where no command was named."""
    text = error.format_message()
    if len(sys.argv) == 1:
        return str(text)
    line = " ".join(text.split()).rstrip(".")
    if hasattr(error.__cause__, "errors"):  # pydantic's, which newer Typers check values with
        found = error.__cause__.errors()[0]
        if expected := _numbers_of(error):
            value = found["input"] if found["type"].endswith("_than_equal") else repr(found["input"])
            return f"autotune: {error.param.opts[0]}={value} is not allowed; expected {expected}"
        line += f", not {found['input']!r}"
    command = error.ctx.command_path if error.ctx else "autotune"
    return f"autotune: {line}; see `{command} --help`"


def _numbers_of(error: Any) -> str:
    """What the refused option takes, if it takes numbers: ``an integer from 1``."""
    hint = inspect.signature(error.ctx.command.callback).parameters[error.param.name].annotation
    annotated, info = get_args(hint)
    kinds = get_args(annotated) or (annotated,)
    if int not in kinds and float not in kinds:
        return ""
    text = "an integer" if int in kinds else "a number"
    text += "" if info.min is None else f" from {info.min:g}"
    return text + ("" if info.max is None else f" to {info.max}")
