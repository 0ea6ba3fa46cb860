"""The options of ``autotune search`` that run a grid on a cluster in place of single shapes here."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.console.command import collected, option
from autotune.console.options import PATH
from autotune.errors import UnknownNameError, UsageError
from autotune.redaction import redacted, secrets_in

ENGINES: Final = ("ray",)
OF_GRIDS: Final = frozenset({"grid", "engine", "place", "address", "replay", "as_json"})
# Options of a search that a grid's file has keys for.
KEYS_OF_GRIDS: Final = {
    **{name: name for name in ("budget", "trials", "sampler", "seed")},
    "implementations": "implementations",
    "device": "devices",
}
PLACE: Final = "AUTOTUNE_PLACE"  # stands for a place on a command line, which all can read, and Ray keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """A grid file, the place of its results, and the cluster that runs it."""

    grid: Path
    place: str
    address: str | None
    replay: bool


def _make(
    grid: Path | None, engine: str | None, place: str | None, address: str | None, replay: bool
) -> GridOptions | None:
    given = {"engine": engine, "place": place, "address": address, "replay": replay}
    if grid is None:
        for name, value in given.items():
            if value:
                shown = f"--{name}" if value is True else f"--{name}={redacted(str(value))!r}"
                raise UsageError(f"{shown} needs a grid; name its file by --grid FILE")
        return None
    if engine is not None and engine not in ENGINES:
        raise UnknownNameError(f"engine={engine!r} is unknown; allowed: {', '.join(ENGINES)}")
    place = os.environ.get(PLACE) if place is None else require_no_secrets(place)
    if not place:
        raise UsageError(
            f"--grid needs --place, where its results go: a folder that all hosts share, or a URI, here or in {PLACE}"
        )
    return GridOptions(grid=grid, place=place, address=address, replay=replay)


def require_no_secrets(uri: str, name: str = "place", variable: str = PLACE) -> str:
    """Return a URI that was typed; UsageError where it holds credentials."""
    if secrets_in(uri):
        wanted = f"put the URI into {variable}"
        raise UsageError(f"{name}={redacted(uri)!r} holds credentials, which others can read here; {wanted}")
    return uri


_option: Final = functools.partial(option, section="Grids")

grid_options: Final = collected(
    "grid",
    _make,
    {
        "grid": _option("--grid", metavar="FILE", type=PATH, help="Run the tasks of a grid file on a cluster."),
        "engine": _option("--engine", help="Runs them: ray.", default_text="ray"),
        "place": _option(
            "--place",
            metavar="URI",
            help="Keep the results here: a shared folder, s3://..., gs://...",
            default_text=f"${PLACE}",
        ),
        "address": _option(
            "--address", help="The Ray cluster's.", default_text="RAY_ADDRESS, the one here, else one is started"
        ),
        "replay": _option("--replay", is_flag=True, help="Let recorded sweeps answer; tasks take no GPU."),
    },
)
