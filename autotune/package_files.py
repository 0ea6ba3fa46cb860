"""The files of a package that one of its modules imports, found without importing any of them."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from autotune.errors import UsageError

INITIAL: Final = "__init__"


def package_files(module: str) -> tuple[Path, ...]:
    """Return the file of a module, and those of its top-level package that it imports, at any depth, sorted.

    Of a module without a package, the files beside it count as its package. Imports inside functions count; what is
    imported by a computed name is not seen.

    Raises:
        UsageError: the module is in no file.

    Example:
        >>> package_files("my_package.kernels.norm")
        (PosixPath('.../my_package/kernels/norm.py'), PosixPath('.../my_package/rows.py'))
    """
    root, _, _ = module.partition(".")
    found = PathFinder.find_spec(root)
    places = [] if found is None else [Path(each) for each in found.submodule_search_locations or ()]
    is_package = bool(places)
    if found is not None and found.origin is not None and not is_package:
        places = [Path(found.origin).parent]
    first = _file_of(module, root if is_package else "", places)
    if first is None:
        raise UsageError(f"module={module!r} is in no file; expected one that can be imported from a file")
    reached: dict[Path, str] = {}
    pending = [(first, module)]
    while pending:
        path, name = pending.pop()
        if path in reached:
            continue
        reached[path] = name
        names = _imported(path, name)
        files = ((_file_of(each, root if is_package else "", places), each) for each in names)
        pending += [(file, each) for file, each in files if file is not None]
    return tuple(sorted(reached))


def _file_of(module: str, package: str, places: list[Path]) -> Path | None:
    """Return the file of a module of the package in these folders; None for another's and for a name in a module."""
    parts = module.split(".")
    if package and parts[0] != package:
        return None
    below = parts[1:] if package else parts
    for place in places:
        for path in (place.joinpath(*below, f"{INITIAL}.py"), place.joinpath(*below).with_suffix(".py")):
            if path.is_file():
                return path
    return None


@cache
def _tree(path: Path, _changed: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imported(path: Path, module: str) -> Iterator[str]:
    """Yield the absolute names of what a file imports, modules or names in them, and of the packages above."""
    package = module.split(".") if path.stem == INITIAL else module.split(".")[:-1]
    for node in ast.walk(_tree(path, path.stat().st_mtime_ns)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module or ""]))
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
