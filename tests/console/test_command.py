"""Commands on click: sections of the help, shared options, numbers, lazy groups."""

from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from autotune.console.command import Group, Reference, collected, command, integer, number, option
from autotune.console.options import implementation_option, place_option, split_names
from autotune.errors import UnknownNameError, UsageError

SHARED = collected(
    "size",
    lambda width, height: (width, height),
    {
        "width": option("--width", section="Size", type=integer(1, 9), default=3, help="Columns."),
        "height": option("--height", section="Size", type=number(0.5), help="Rows.", default_text="as wide"),
    },
)


@command("draw")
@option("--kv-heads", "heads", help="Heads.")
@SHARED
def draw(heads: str | None, size: tuple[int, float | None]) -> None:
    """Draw a box."""
    if heads is not None:
        raise UnknownNameError(f"heads={heads!r} is unknown")
    click.echo(f"{size}")


def invoke(*arguments: str, of: click.Command = draw) -> Result:
    return CliRunner().invoke(of, arguments)


def test_shared_options_arrive_as_one_argument_in_a_section_of_their_own() -> None:
    assert invoke("--width", "2").output == "(2, None)\n"
    assert invoke("--height", "0.5").output == "(3, 0.5)\n"
    text = invoke("--help").output
    own, _, shared = text.partition("\nSize:\n")
    assert "--kv-heads" in own
    assert "--help" in own
    assert "Columns [default: 3]." in shared
    assert "Rows [default: as wide]." in shared


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--width", "0"), "--width=0 is not allowed; expected an integer from 1 to 9"),
        (("--width", "two"), "--width='two' is not allowed; expected an integer from 1 to 9"),
        (("--height", "0"), "--height=0 is not allowed; expected a number from 0.5"),
        (("--height", "nan"), "--height=nan is not allowed; expected a number from 0.5"),
        (("--height", "inf"), "--height=inf is not allowed; expected a number from 0.5"),
        (("--kv-heads", "x"), "--kv-heads='x' is unknown"),
    ],
)
def test_a_refusal_names_the_option_and_what_it_takes(arguments: tuple[str, ...], text: str) -> None:
    error = invoke(*arguments).exception
    assert isinstance(error, UsageError)
    assert str(error) == text


def test_a_group_imports_a_command_when_it_runs() -> None:
    group = Group(
        name="tools", references={"draw": Reference(f"{__name__}:draw", "Draw."), "gone": Reference("gone:gone", "Go.")}
    )
    text = invoke("--help", of=group).output
    assert "draw  Draw." in text
    assert "gone  Go." in text
    alone = invoke(of=group)
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "draw  Draw." in alone.stderr
    assert isinstance(invoke("gone", of=group).exception, ModuleNotFoundError)


def test_names_are_split_at_commas() -> None:
    assert split_names(" triton, flex,,") == ("triton", "flex")
    assert split_names(None) == ()


@pytest.mark.parametrize(
    ("add", "argument", "arguments", "value"),
    [
        (implementation_option(), "implementations", (), ()),
        (implementation_option("all"), "implementations", ("--implementation", "triton,flex"), ("triton", "flex")),
        (place_option("cpu", "cuda"), "device", ("--device", "cpu"), "cpu"),
    ],
)
def test_options_reach_their_argument(
    add: Callable[..., Callable[..., object]], argument: str, arguments: tuple[str, ...], value: object
) -> None:
    @command("show")
    @add
    def show(**values: object) -> None:
        assert values == {argument: value}

    assert invoke(*arguments, of=show).exception is None
