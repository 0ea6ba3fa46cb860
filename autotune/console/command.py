"""Commands on click: lazily imported, with help in sections, shared options, and errors that name options."""

import difflib
import functools
import importlib
import math
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from autotune.console import interrupts
from autotune.errors import AutotuneError, UsageError, one_line

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

OWN: Final = "Options"  # the section of a command's own options
NEARLY: Final = 0.8  # difflib's ratio of two names, one with a letter or two missing, doubled or swapped
IMPORTED: Final = f"{__name__}.imported"  # a key of click's, which several libraries may share


class Option(click.Option):
    """An option in a section of the help, which ends with its default: ``default_text`` where that is found later."""

    def __init__(self, declarations: Sequence[str], *, section: str = OWN, default_text: str = "", **given: Any):
        if not default_text and given.get("default") is not None:
            default = given["default"]
            default_text = f"{default:g}" if isinstance(default, float) else str(default)
        if default_text:
            given["help"] = f"{given['help'].removesuffix('.')} [default: {default_text}]."
        super().__init__(declarations, **given)
        self.section = section


def option(*declarations: str, section: str = OWN, **given: Any) -> Decorator:
    return click.option(*declarations, cls=Option, section=section, **given)


def collected(name: str, make: Callable[..., object], options: dict[str, Decorator]) -> Decorator:
    """Add options to a command, which takes one argument ``name``: what ``make`` returns for their values, by name."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(**values: Any) -> Any:
            return function(**{name: make(**{each: values.pop(each) for each in options})}, **values)

        for add in reversed(options.values()):
            add(run)
        return run

    return decorate


if TYPE_CHECKING:  # click before 8.2 has no such subscript
    Convertible = click.ParamType[float]
else:
    Convertible = click.ParamType


class Number(Convertible):
    """An integer or a finite float within limits; an error names the limits."""

    def __init__(self, kind: type[int] | type[float], minimum: float | None = None, maximum: float | None = None):
        self.name = "integer" if kind is int else "number"
        self._kind, self._minimum, self._maximum = kind, minimum, maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a value to the number; UsageError for another, or one outside the limits."""
        low, high = self._minimum, self._maximum
        try:
            number = self._kind(value)
            given = value
        except ValueError:
            number, given = math.nan, repr(value)
        is_within = (low is None or low <= number) and (high is None or number <= high)
        if is_within and abs(number) < math.inf:  # which nan is not
            return number
        article = "an integer" if self._kind is int else "a number"
        limits = ("" if low is None else f" from {low:g}") + ("" if high is None else f" to {high}")
        name = "value" if param is None else param.opts[0]
        raise UsageError(f"{name}={given} is not allowed; expected {article}{limits}")


integer: Final = functools.partial(Number, int)
number: Final = functools.partial(Number, float)


def import_from_here() -> None:
    """Let modules be imported from the current folder, as ``python -m autotune`` does; children get the same path."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)


def import_module(name: str, given: str) -> None:
    """Import a module, from the current folder, too; UsageError, with what was ``given``, where it cannot be."""
    import_from_here()
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # of a module of the user's, which may raise anything
        text = f"{given} cannot be imported: {one_line(error)}"
        if not isinstance(error, AutotuneError):  # which says itself what it expected
            text += "; expected a module such as my_package.register, installed or below this folder"
        raise UsageError(text) from error


def _import_modules(context: click.Context, parameter: click.Parameter, names: Sequence[str]) -> None:
    if context.resilient_parsing:  # which completion sets
        return
    for name in names:
        import_module(name, f"--import={name!r}")
    context.meta[IMPORTED] = tuple(names)


def imported_modules() -> tuple[str, ...]:
    """Return the modules that ``--import`` named, for another process to import, too; none outside a command."""
    context = click.get_current_context(silent=True)
    return () if context is None else context.meta.get(IMPORTED, ())


def typed_options() -> dict[str, Any]:
    """Return the options of the command under way that were typed, by their names, with their values."""
    context = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    return {name: value for name, value in context.params.items() if context.get_parameter_source(name) is typed}


class Command(click.Command):
    """A command whose help has a section for each kind of options; each command has ``--import``."""

    def __init__(self, name: str | None, *, params: Sequence[click.Parameter] | None = None, **given: Any):
        importing = Option(
            ["--import"],
            metavar="MODULE",
            multiple=True,
            is_eager=True,
            expose_value=False,
            callback=_import_modules,
            help="Import a module that registers operations or implementations of your own; may be repeated.",
        )
        super().__init__(name, params=[*(params or ()), importing], **given)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, the command's own options first."""
        sections: dict[str, list[tuple[str, str]]] = {OWN: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                sections.setdefault(getattr(parameter, "section", OWN), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; an error always knows the command, whose help is named."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # which click leaves out where an option has no value
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a refused argument is named by its option: ``--format='xml' ...``."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            interrupts.stop()
        except UsageError as error:
            error.args = (self._with_option(str(error)),)
            raise

    def _with_option(self, text: str) -> str:
        options = [(each.name, each.opts[0]) for each in self.params if each.opts[0].startswith("--")]
        flags = {name: flag for own, flag in options for name in (own, flag.removeprefix("--").replace("-", "_"))}
        name, sign, rest = text.partition("=")
        return f"{flags.get(name, name)}{sign}{rest}"


def command(name: str) -> Callable[[Function], Command]:
    """Turn a function into the command of this name; its docstring is the help."""
    return click.command(name, cls=Command)


class Reference(NamedTuple):
    """A command by its place, ``"module:attribute"``, and its line in the help.

    A reader only reads and prints: it ends at once when interrupted, or when its output is closed. A command that
    ``listens_later`` calls ``interrupts.listen`` itself, once it has loaded what it needs. A group has commands.
    """

    target: str
    help: str
    is_reader: bool = False
    listens_later: bool = False
    is_group: bool = False

    def load(self) -> click.Command:
        found: click.Command = pkgutil.resolve_name(self.target)
        return found


class Group(click.Group):
    """Commands that are imported when they are run; without one, the help is printed and the exit code is 2."""

    def __init__(self, *, references: Mapping[str, Reference], **given: Any):
        super().__init__(**given)
        self.references = references

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.references)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        reference = self.references.get(cmd_name)
        return None if reference is None else reference.load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was typed; an error for an unknown one says which is like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = self._like(args[0])
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise click.UsageError(f"{error.format_message()}{hint}", ctx) from None

    def _like(self, typed: str) -> list[str]:
        """List the commands, also of groups, whose own name was typed or nearly so; else one here that is like it."""
        names = {path: path.rpartition(" ")[2] for path in self._paths()}
        near = difflib.get_close_matches(typed, names.values(), n=1, cutoff=NEARLY)
        found = [path for path, name in names.items() if name in near]
        return found or difflib.get_close_matches(typed, self.references, n=1)

    def _paths(self) -> list[str]:
        """List the commands as they are typed, with those of groups: ``"tables import"``."""
        groups = {name: each.load() for name, each in self.references.items() if each.is_group}
        below = [
            f"{name} {path}" for name, group in groups.items() if isinstance(group, Group) for path in group._paths()
        ]
        return [*self.references, *below]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, reference.help) for name, reference in self.references.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # which completion sets
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)


def flag_of(name: str) -> str:
    """Return the flag of an option: ``"kv_heads"`` is ``--kv-heads``."""
    return f"--{name.replace('_', '-')}"
