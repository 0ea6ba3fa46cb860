"""Options that several commands share, and the forms of their values."""

import re
from pathlib import Path
from typing import Final

import click

from autotune.console.command import Decorator, option
from autotune.console.shape_options import OPERATION
from autotune.errors import UsageError

PATH: Final = click.Path(path_type=Path)

json_option: Final = option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
operation_option: Final = option("--operation", default=OPERATION, help="What is computed.")
tables_option: Final = option(
    "--tables", metavar="FOLDER", type=PATH, help="Folder of the tables.", default_text="$AUTOTUNE_HOME"
)


def implementation_option(default: str = "all of ours") -> Decorator:
    """Make an option that names implementations; the text describes the default."""
    return option(
        "--implementation",
        "implementations",
        metavar="NAMES",
        callback=lambda context, parameter, value: split_names(value),
        help="Implementations by name, comma-separated.",
        default_text=default,
    )


def device_option(default: str = "the GPU here, or NVIDIA H200") -> Decorator:
    """Make an option that names a device; the text describes the default."""
    return option("--device", metavar="NAME", help="A device by name.", default_text=default)


def place_option(*places: str) -> Decorator:
    """Make an option that names a kind of processor to measure on."""
    return option("--device", metavar="|".join(places), help="Where to measure.", default_text="what is here")


def output_option(default: str | None = None, *, content: str = "File to write.", default_text: str = "") -> Decorator:
    """Make an option that names a file to write."""
    return option("--output", metavar="FILE", type=PATH, default=default, help=content, default_text=default_text)


def split_names(text: str | None) -> tuple[str, ...]:
    """Split a list of names at its commas."""
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))


def parse_seconds(text: str) -> float:
    """Parse the seconds of ``90``, ``90s``, ``2m`` or ``1m30s``.

    Raises:
        UsageError: the text is not a time, or the time is zero.
    """
    expected = "expected more than 0 seconds (90), or 90s, 2m, 1m30s, 1h"
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"(?:{number}\s*h)?\s*(?:{number}\s*m)?\s*(?:{number}\s*s?)?", text.strip())
    if match is None or not any(match.groups()):
        raise UsageError(f"budget={text!r} is not a time; {expected}")
    seconds = sum(float(part or 0) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True))
    if seconds == 0:
        raise UsageError(f"budget={text!r} is not allowed; {expected}")
    return seconds
