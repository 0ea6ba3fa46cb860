"""Stored configs that the Triton here refuses, or spills in a steady loop, unlike the one that timed them.

``benchmarks.toolchain_drift`` records that ahead, without a GPU (``autotune.table.Compilation``), by series of Triton:
3.9.1 is taken to compile as 3.9.0 did. No file of it is opened where the stored configs were timed with the series that
is installed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autotune.dispatch.evidence import triton_here
from autotune.dispatch.provenance import Alternative
from autotune.dispatch.table_reading import compilations_of
from autotune.implementation import Implementation
from autotune.registry import get_implementation
from autotune.shape import Shape
from autotune.space import Config

if TYPE_CHECKING:
    from autotune.table import Assignment


def why_unfit(alternative: Alternative, operation: str, generation: int) -> str:
    """Return the reason why a stored row is not served with the Triton here, empty where none is recorded.

    A baseline is not compiled by this Triton, and what no row was timed of is not judged.
    """
    row = alternative.provenance.row
    if row is None or alternative.provenance.baseline or not _differs(row.toolchain.triton):
        return ""
    implementation = get_implementation(operation, row.implementation)
    why = _why(implementation, row.device.arch, row.shape, row.config, row.toolchain.triton, generation)
    return why and f"{alternative.candidate}, tuned for {row.shape}, is not served: {why}"


def fit_assignments(
    rows: "Sequence[Assignment]", implementation: Implementation[Any], generation: int
) -> "list[Assignment]":
    """Leave out the assignments whose config is recorded as unfit, for their very shape, with the Triton here."""
    unlike = {version for version in {row.triton_version for row in rows} if _differs(version)}
    return [
        row
        for row in rows
        if row.triton_version not in unlike
        or not _why(implementation, row.device.arch, row.shape, row.config, row.triton_version, generation)
    ]


def _differs(version: str) -> bool:
    """Return True if another series of Triton is installed than this version's."""
    here = triton_here()
    return bool(here and version) and _series(here) != _series(version)


def _series(version: str) -> str:
    """Return the series of a version, ``3.9`` of ``3.9.0+git1234``."""
    return ".".join(version.split(".")[:2])


def _why(
    implementation: Implementation[Any], arch: str, shape: Shape, config: Config, timed_with: str, generation: int
) -> str:
    recorded = compilations_of(implementation.operation, implementation.name, arch, generation)
    rows = [row for row in recorded.get((shape, config), ()) if row.source_hash == implementation.source_hash]
    now, before = (
        next((row for row in rows if _series(row.triton_version) == _series(version)), None)
        for version in (triton_here(), timed_with)
    )
    return "" if now is None else now.why_unfit(before)
