"""Compilations: what several versions of Triton make of stored configs, measured without a GPU.

They ship as ``<architecture>/<operation>/compilations/<implementation>.parquet`` below ``results``, a row for each
winner and version (``row_format``). ``benchmarks.toolchain_drift`` writes them, and serving reads them where the Triton
here is not the one that a stored config was timed with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.shape import Shape
from autotune.space import Config
from autotune.table.parts import OnDamaged, raise_damaged
from autotune.table.row_format import RowFormat
from autotune.table.schema import COUNT, NAME, TEXT, TableColumn
from autotune.table.shipped import RESULTS

COMPILATIONS: Final = "compilations"
# A steady loop of a shipped winner has 300 instructions and more (sm_90, Triton 3.6 and 3.9, 2026-11-24), of which so
# few are 1 %, which no race tells from none.
FEW_SPILLS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """A stored config as one version of Triton compiles it for its shape and device.

    Numbers are the most that one of a launch's binaries takes; None where no tool can read it.

    Attributes:
        source_hash: the kernel source that was compiled.
        refusal: the reason why it does not compile, or does not fit the device; empty where it does.
        shared_bytes: bytes of shared memory a block.
        registers: a thread's.
        spill_bytes: bytes that a thread spills anywhere.
        loop_spills: instructions that load or store spilled values in the steady loops: those over keys that every row
            of a tile runs, where a spill costs at each step. Loops that mask, and what comes before and after, are not
            counted.
    """

    operation: str
    implementation: str
    device: Device
    shape: Shape
    config: Config
    source_hash: str
    triton_version: str
    refusal: str = ""
    shared_bytes: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    loop_spills: int | None = None

    def why_unfit(self, before: "Compilation | None") -> str:
        """Return the reason why the config is not served with this Triton, empty where it may be.

        ``before`` is the same by the Triton that timed the config; without it no spill is known to be new. Of new
        spills those in steady loops count, where they are more than ``FEW_SPILLS``.
        """
        if self.refusal:
            return f"Triton {self.triton_version} refuses it: {self.refusal}"
        if before is None or self.loop_spills is None or before.loop_spills is None:
            return ""
        if self.loop_spills <= before.loop_spills + FEW_SPILLS:
            return ""
        return (
            f"Triton {self.triton_version} spills registers in its steady loops ({self.loop_spills} instructions, "
            f"{before.loop_spills} with {before.triton_version})"
        )


FORMAT: Final = RowFormat(
    Compilation,
    "a file of compilations",
    COMPILATIONS,
    "autotune.compilations_version",
    "1",
    (
        TableColumn("source_hash", NAME),
        TableColumn("triton_version", NAME),
        TableColumn("refusal", TEXT),
        *(
            TableColumn(name, COUNT, nullable=True)
            for name in ("shared_bytes", "registers", "spill_bytes", "loop_spills")
        ),
    ),
)


def shipped_compilations(
    operation: str,
    *,
    arch: str = "*",
    implementation: str = "*",
    results: Path = RESULTS,
    on_damaged: OnDamaged = raise_damaged,
) -> list[Compilation]:
    """Return the compilations of an operation's implementations, or of one, on all architectures or on one.

    Rows that are not of today's space are left out. ``on_damaged`` is called with the error of each file that is
    refused; where it returns, the others are still read.

    Raises:
        TableError: by ``on_damaged``.
    """
    return FORMAT.read(operation, results, on_damaged, arch=arch, implementation=implementation)


def write_compilations(rows: Sequence[Compilation], *, results: Path = RESULTS) -> Path:
    """Write or replace the compilations of one implementation on one architecture, and list them in ``SHA256SUMS``.

    Raises:
        TableError: there are no rows, or rows of several; a value is impossible, or a file cannot be written.
    """
    return FORMAT.write(rows, results)
