"""Options that several commands share, and the forms of their values: names, times and configs."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from autotune.console.command import Decorator, option
from autotune.device import Device
from autotune.errors import InvalidConfigError, UsageError
from autotune.space import Config, Space, Value

if TYPE_CHECKING:  # click before 8.2 has no such subscript
    PathType = click.Path[Path]
else:
    PathType = click.Path


class LocalPath(PathType):
    """A path of this machine; a URI would be taken for a folder named ``s3:``."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a text to a path; UsageError for a URI."""
        if "://" in str(value):
            name = "path" if param is None else param.name
            hint = "expected a path of this machine; `autotune tables pull` copies tables from elsewhere"
            raise UsageError(f"{name}={str(value)!r} is a URI; {hint}")
        return super().convert(value, param, ctx)


PATH: Final = LocalPath()

NOT_WRITTEN: Final = "no folder as `autotune search --tables` writes it, with files that are named by their SHA-256"

json_option: Final = option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
tables_option: Final = option(
    "--tables", metavar="FOLDER", type=PATH, help="Folder of the tables.", default_text="$AUTOTUNE_HOME"
)


def implementation_option(default: str = "all of ours") -> Decorator:
    return option(
        "--implementation",
        "implementations",
        metavar="NAMES",
        callback=lambda context, parameter, value: split_names(value),
        help="Implementations by name, comma-separated.",
        default_text=default,
    )


def device_option(default: str = "the GPU here, or NVIDIA H200") -> Decorator:
    return option("--device", metavar="NAME", help="A device by name.", default_text=default)


def place_option(*places: str) -> Decorator:
    return option("--device", metavar="|".join(places), help="Where to measure.", default_text="what is here")


def output_option(default: str | None = None, *, content: str = "File to write.", default_text: str = "") -> Decorator:
    return option("--output", metavar="FILE", type=PATH, default=default, help=content, default_text=default_text)


def split_names(text: str | None) -> tuple[str, ...]:
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))


def parse_seconds(text: str) -> float:
    """Parse the seconds of ``90``, ``90s``, ``2m`` or ``1m30s``; UsageError for any other text, and for zero."""
    expected = "expected more than 0 seconds (90), or 90s, 2m, 1m30s, 1h"
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"(?:{number}\s*h)?\s*(?:{number}\s*m)?\s*(?:{number}\s*s?)?", text.strip())
    if match is None or not any(match.groups()):
        raise UsageError(f"budget={text!r} is not a time; {expected}")
    seconds = sum(float(part or 0) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True))
    if seconds == 0:
        raise UsageError(f"budget={text!r} is not allowed; {expected}")
    return seconds


def parse_share(text: str, name: str) -> float:
    """Parse the share of ``5%``, ``5`` or ``0.5 %``, all in percent; UsageError for any other text.

    A number below 1 needs the sign: ``0.05`` alone may be meant as 5 %.

    Example:
        >>> parse_share("5%", "above")
        0.05
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text.strip())
    if match is None:
        raise UsageError(f"{name}={text!r} is no share; expected percent, such as 5% or 2.5%")
    percent = float(match[1])
    if 0 < percent < 1 and not match[2]:
        meant = f"{100 * percent:g}% or {percent:g}%"
        raise UsageError(f"{name}={text!r} may mean two shares; expected percent with its sign, {meant}")
    return percent / 100


def parse_config(text: str, space: Space[Any], device: Device) -> Config:
    """Parse a config from ``BLOCK_Q=128 num_warps=8`` or a JSON object, in the order of its space.

    Parameters that the device does not have may be left out; for others InvalidConfigError says what is missing. What
    the space does not know is kept.

    Example:
        >>> config = parse_config("BLOCK_Q=64 BLOCK_K=32 num_warps=4 num_stages=3 loads=pointer", space, NVIDIA_H200)
        >>> config["num_stages"], config["kpack"]
        (3, None)
    """
    given = Config.parse(text)
    names = [parameter.name for parameter in space.parameters]
    unknown = ", ".join(name for name in given if name not in names)
    values: dict[str, Value] = {}
    for parameter in space.parameters:
        choices = parameter.choices(device, values)
        if parameter.name not in given and choices != (None,):
            if unknown:  # explains more than a missing parameter
                expected = ", ".join(names)
                raise InvalidConfigError(f"config={text!r} has {unknown}, which is no parameter; expected {expected}")
            allowed = ", ".join(map(str, choices))
            raise InvalidConfigError(f"config={text!r} has no {parameter.name}; allowed: {allowed}")
        values[parameter.name] = given.get(parameter.name)
    return Config({**values, **given})
