"""Traced implementations as tables and as plain data, and how to look at the traces."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from autotune import sheets
from autotune.lab.trace.operator_times import TraceDevice
from autotune.lab.trace.profiling import Traced
from autotune.shape import Shape
from autotune.sheets import Sheet

PERFETTO: Final = "https://ui.perfetto.dev"
HABANA: Final = "https://perfetto.habana.ai"  # Intel's build of it, which knows a Gaudi's engines
MILLISECONDS: Final = sheets.number("ms", ".3f")
STEP_COLUMNS: Final = (*map(sheets.text, ("step", "name", "parameters")), MILLISECONDS, sheets.text("phase"))
OPERATOR_COLUMNS: Final = (
    *(sheets.text("name"), sheets.number("calls", "")),
    *(MILLISECONDS, sheets.number("share", ".1%")),
)


def trace_sheets(traced: Traced, shape: Shape) -> list[Sheet]:
    steps = tuple((step.number, traced.name, str(shape), step.milliseconds, step.phase) for step in traced.steps)
    operators = tuple((each.name, each.calls, each.milliseconds, each.share) for each in traced.operators)
    files = tuple(f"wrote {file}" for file in traced.files)
    what = "operators on the CPU" if traced.timed_on == "cpu" else f"kernels on {traced.timed_on}"
    return [
        Sheet(traced.name, STEP_COLUMNS, steps),
        Sheet(f"{traced.name}: {what}, by their own time", OPERATOR_COLUMNS, operators, files),
    ]


def viewer_lines(folder: Path, device: TraceDevice) -> list[str]:
    lines = [
        f"open {PERFETTO}, choose Open trace file, and pick a file of {folder} as it is, compressed; it stays in the "
        "browser. W, S, A and D zoom and move; a click on a slice shows its stack"
    ]
    also = f"a Gaudi's traces also open at {HABANA}, which names its engines: look for TPC and MME side by side"
    return [*lines, also] if device == "hpu" else [*lines, f"traces of a Gaudi also open at {HABANA}"]


def trace_data(traced: Traced, shape: Shape) -> dict[str, Any]:
    data = asdict(traced) | {"files": [str(file) for file in traced.files]}
    return {"shape": shape.as_dict(), **data}
