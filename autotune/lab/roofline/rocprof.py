"""AMD's counters: write the file that rocprof takes, and read its results."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.errors import AutotuneError, UsageError

# One line is one run of the program: these fit the hardware's counters together (rocprofiler, derived metrics of
# metrics.xml). FETCH_SIZE and WRITE_SIZE, in kilobytes, take most of the L2's and stand alone.
GROUPS: Final = (
    ("wavefronts and instructions a work-item", ("Wavefronts", "VALUInsts", "SALUInsts")),
    ("vector memory and LDS instructions a work-item", ("VFetchInsts", "VWriteInsts", "LDSInsts")),
    ("utilisations in percent", ("VALUUtilization", "VALUBusy", "SALUBusy")),
    ("memory unit in percent of the time", ("MemUnitBusy", "MemUnitStalled")),
    ("L2 hits in percent", ("L2CacheHit",)),
    ("bank conflicts of the LDS in percent of the time", ("LDSBankConflict",)),
    ("kilobytes read from memory", ("FETCH_SIZE",)),
    ("kilobytes written to memory", ("WRITE_SIZE",)),
)
COUNTERS: Final = tuple(name for _, names in GROUPS for name in names)


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """The counters of one kernel, the mean over its launches."""

    kernel: str
    launches: int
    values: dict[str, float]


def counter_file() -> str:
    """Return the text of a file for ``rocprof -i FILE`` and ``rocprofv3 -i FILE``: one line of counters a pass."""
    lines = [f"# {subject}\npmc: {' '.join(names)}" for subject, names in GROUPS]
    return "\n".join(["# Counters for attention kernels; each pmc line is a run of the program.", *lines]) + "\n"


def write_counter_file(path: Path) -> None:
    """Write ``counter_file`` to a path; UsageError where there is no such folder."""
    if not path.parent.is_dir():
        raise UsageError(f"rocprof_counters={str(path)!r} lies in no folder; expected one that exists")
    path.write_text(counter_file(), encoding="utf-8")


def read_results(paths: Iterable[Path]) -> list[KernelCounters]:
    """Read the counters of each kernel from one file, or from the files of several passes together.

    Both forms are read: rocprof's, a row a launch with a column a counter (``KernelName``), and rocprofv3's
    ``*_counter_collection.csv``, a row for each launch and counter (``Kernel_Name``, ``Counter_Name``,
    ``Counter_Value``); AutotuneError for others. Counters that are not in ``COUNTERS`` are left out.
    """
    samples: dict[str, dict[str, list[float]]] = {}
    for path in paths:
        try:
            found = _samples(path.read_text(encoding="utf-8"), path)
        except (UnicodeDecodeError, csv.Error) as error:
            raise AutotuneError(f"{path} is no CSV: {error}") from None
        for kernel, counter, value in found:
            samples.setdefault(kernel, {}).setdefault(counter, []).append(value)
    return [
        KernelCounters(
            kernel,
            max(map(len, counters.values())),
            {name: sum(counters[name]) / len(counters[name]) for name in COUNTERS if name in counters},
        )
        for kernel, counters in samples.items()
    ]


def _samples(text: str, path: Path) -> list[tuple[str, str, float]]:
    rows = csv.DictReader(io.StringIO(text))
    columns = rows.fieldnames or []
    found: list[tuple[str, str, float]] = []
    for row in rows:
        if None in row.values():
            raise AutotuneError(f"{path}: line {rows.line_num} is cut short; expected {len(columns)} values")
        if {"Kernel_Name", "Counter_Name", "Counter_Value"} <= set(columns):
            cells = {row["Counter_Name"]: row["Counter_Value"]}
        elif "KernelName" in columns:
            cells = {name: row[name] for name in columns}
        else:
            break
        kernel = (row.get("KernelName") or row.get("Kernel_Name") or "").removesuffix(".kd").split("(")[0].strip()
        found += [(kernel, name, _number(path, name, cells[name])) for name in COUNTERS if name in cells]
    if not found:
        raise AutotuneError(f"{path} has no counter of rocprof's or rocprofv3's; its columns: {', '.join(columns)}")
    return found


def _number(path: Path, counter: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise AutotuneError(f"{path}: {counter} is {cell!r}; expected a number") from None
