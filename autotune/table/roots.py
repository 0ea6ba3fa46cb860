"""Roots: the folders of tables that are served from beside the user's own and the shipped ones.

Both kinds are stores, as ``autotune tables merge --into`` writes them, and nothing is ever written there: the site's,
for all users of a machine, a container or an environment, and those that installed packages bring for their kernels.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final, Literal, NamedTuple

from autotune.errors import TableError, one_line
from autotune.references import TABLE_ENTRY_POINTS
from autotune.registry import table_packages
from autotune.table.parts import OnDamaged

Origin = Literal["user", "site", "package", "shipped"]  # of one problem rows of the first that has some are served

SITE: Final = "AUTOTUNE_SITE"
UNCONFIRMED: Final = ".unconfirmed"  # in a store; hidden, so nothing there is ever served


class Root(NamedTuple):
    """A folder of tables, whose it is, and its name among theirs: that of a package."""

    origin: Origin
    path: Path
    name: str = ""

    @property
    def title(self) -> str:
        return f"{self.origin} {self.name}".rstrip()


def extra_roots(on_damaged: OnDamaged) -> list[Root]:
    """Return the site's root, if there is one, and those of packages, by name; they are read in this order.

    The site's is ``$AUTOTUNE_SITE``, by default ``share/autotune`` in the environment's prefix (``sys.prefix``). A
    package names a folder of its own by an entry point of the group ``autotune.tables``, whose value is the folder's
    dotted place below the package (``my_kernels.tables``); no code of the package runs.

    ``on_damaged`` is called with a ``TableError`` for each root that is named and is not there.
    """
    return [*_site(on_damaged), *_packages(on_damaged)]


def site_folder() -> Path:
    """Return the place of the site's root, whether or not it is there; tables that were pulled are a link to them.

    Raises:
        TableError: ``$AUTOTUNE_SITE`` is a URI.
    """
    chosen = os.environ.get(SITE)
    if chosen and "://" in chosen:
        raise TableError(f"{SITE}={chosen!r} is a URI; expected a folder of this machine")
    return Path(os.path.expanduser(chosen)).absolute() if chosen else Path(sys.prefix, "share", "autotune")


def _site(on_damaged: OnDamaged) -> list[Root]:
    try:
        path = site_folder()
    except TableError as error:
        on_damaged(error)
        return []
    if path.is_dir():
        return [Root("site", path.resolve() if path.is_symlink() else path)]  # one version, though another is pulled
    if not (chosen := os.environ.get(SITE)):
        return []
    on_damaged(
        TableError(
            f"{SITE}={chosen!r} is not a folder; expected one that `autotune tables pull` or `merge --into` wrote"
        )
    )
    return []


def _packages(on_damaged: OnDamaged) -> list[Root]:
    roots = []
    for name, value in sorted(table_packages()):
        try:
            roots.append(Root("package", _folder_of(value), name))
        except (TableError, ImportError, ValueError) as error:
            what = f"the entry point {name!r} of the group {TABLE_ENTRY_POINTS}"
            on_damaged(TableError(f"{what} names no folder: {value!r}: {one_line(error)}"))
    return roots


def _folder_of(place: str) -> Path:
    """Return the folder at a dotted place; the top package is found and not imported."""
    if not all(part.isidentifier() for part in place.split(".")):
        raise TableError("expected a dotted place, such as my_kernels.tables")
    top, *below = place.split(".")
    spec = importlib.util.find_spec(top)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(folder, *below)).is_dir():
            return path
    raise TableError(f"there is no folder {'/'.join([top, *below])}")
