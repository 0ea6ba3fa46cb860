"""One digest of all that is served: equal on two servers that serve the same, whatever files they read it from."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.registry import operation_names
from autotune.table.compilations import shipped_compilations
from autotune.table.parts import raise_damaged
from autotune.table.portfolios import shipped_portfolios
from autotune.table.served import served_winners


@dataclass(frozen=True)
class TablesDigest:
    """The digests of what is served: of ``<operation>/<implementation>/<device or architecture>/<kind>`` each."""

    parts: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the digests of all parts."""
        return _sha256(f"{name} {digest}" for name, digest in self.parts.items())

    def __str__(self) -> str:
        return self.digest

    def differences(self, other: Mapping[str, str]) -> list[str]:
        """Return the names of the parts that differ, or that one alone has."""
        return sorted(name for name in self.parts.keys() | other.keys() if self.parts.get(name) != other.get(name))


def tables_digest(root: Path | None = None) -> TablesDigest:
    """Digest all that ``get_kernel`` serves from: winners of every root in their order, portfolios and compilations.

    Tables are read as they are on the disk now; what a process serves is as old as its last ``autotune.reload()``. How
    rows are spread over files makes no difference, nor whose table has them, nor rows that are not served. A server
    with another release, or other implementations, may have another digest for that alone.

    Args:
        root: the user's store, ``$AUTOTUNE_HOME`` by default.

    Raises:
        TableError: a table is damaged.

    Example:
        >>> autotune.reload()
        >>> assert autotune.tables_digest().digest == expected
    """
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for operation in operation_names():
        ranks: defaultdict[object, int] = defaultdict(int)
        for trial in (row.trial for row in served_winners(operation, root=root, on_damaged=raise_damaged)):
            problem = (trial.device, trial.shape, trial.policy)
            lines[_name(trial, trial.device.slug, "winners")].append(f"{ranks[problem]} {trial!r}")
            ranks[problem] += 1
        for assignment in shipped_portfolios(operation):
            lines[_name(assignment, assignment.device.arch, "portfolio")].append(repr(assignment))
        for compilation in shipped_compilations(operation):
            lines[_name(compilation, compilation.device.arch, "compilations")].append(repr(compilation))
    return TablesDigest({name: _sha256(sorted(lines[name])) for name in sorted(lines)})


def _name(row: Any, place: str, kind: str) -> str:
    return f"{row.operation}/{row.implementation}/{place}/{kind}"


def _sha256(lines: Iterable[str]) -> str:
    total = hashlib.sha256()
    for line in lines:
        total.update(f"{line}\n".encode("utf-8", "surrogatepass"))
    return total.hexdigest()
