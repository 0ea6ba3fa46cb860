"""The files of a package that one of its modules imports, found without importing any of them."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
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
    try:
        found = find_spec(root)  # of a top-level name, which imports nothing
    except ValueError:  # of a program, which has no specification
        found = None
    places = [Path(each) for each in (found and found.submodule_search_locations) or ()]
    package = root if places else ""
    if found is not None and found.origin is not None and found.has_location and not places:
        places = [Path(found.origin).parent]
    first = _file_of(module, package, places)
    if first is None:
        raise UsageError(f"module={module!r} is in no file; expected one that can be imported from a file")
    reached: set[Path] = set()
    pending = [(first, module)]
    while pending:
        path, name = pending.pop()
        if path not in reached:
            reached.add(path)
            files = ((_file_of(each, package, places), each) for each in _imported(path, name))
            pending += [(file, each) for file, each in files if file is not None]
    return tuple(sorted(reached))


def _file_of(module: str, package: str, places: list[Path]) -> Path | None:
    """Return the file of a module of the package in these folders; None for another's and for a name in a module.

    Without a package that is a file beside: a folder beside, as in ``site-packages``, is somebody else's.
    """
    first, *below = module.split(".")
    if not package:
        candidates = [place / f"{first}.py" for place in places] if not below else []
    elif first != package:
        candidates = []
    else:
        tops = [place.joinpath(*below) for place in places]
        candidates = [path for top in tops for path in (top / f"{INITIAL}.py", top.with_suffix(".py"))]
    return next((path for path in candidates if path.is_file()), None)


def _imported(path: Path, module: str) -> Iterator[str]:
    """Yield the absolute names of what a file imports, modules or names in them, and of the packages above."""
    package = module.split(".") if path.stem == INITIAL else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
