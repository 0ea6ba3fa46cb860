"""Traced implementations as tables, where to look at the traces, and plain data."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from autotune.analysis.operators import Place
from autotune.analysis.sheets import Sheet
from autotune.analysis.trace import Traced
from autotune.shape import Shape

PERFETTO: Final = "https://ui.perfetto.dev"
HABANA: Final = "https://perfetto.habana.ai"  # Intel's build of it, which knows a Gaudi's engines


def trace_sheets(traced: Traced, shape: Shape) -> list[Sheet]:
    """Its steps and its operators."""
    steps = tuple(
        (str(step.number), traced.name, str(shape), f"{step.milliseconds:.3f}", step.phase) for step in traced.steps
    )
    operators = tuple(
        (operator.name, str(operator.calls), f"{operator.milliseconds:.3f}", f"{operator.share:.1%}")
        for operator in traced.operators
    )
    files = tuple(f"wrote {file}" for file in traced.files)
    what = "operators on the CPU" if traced.timed_on == "cpu" else f"kernels on {traced.timed_on}"
    return [
        Sheet(traced.name, ("step", "name", "parameters", "ms", "phase"), steps),
        Sheet(f"{traced.name}: {what}, by their own time", ("name", "calls", "ms", "share"), operators, files),
    ]


def viewer_lines(folder: Path, place: Place) -> list[str]:
    """How to look at the traces."""
    lines = [
        f"open {PERFETTO}, choose Open trace file, and pick a file of {folder} as it is, compressed; it stays in the "
        "browser. W, S, A and D zoom and move; a click on a slice shows its stack",
    ]
    also = f"a Gaudi's traces also open at {HABANA}, which names its engines: look for TPC and MME side by side"
    return [*lines, also] if place == "hpu" else [*lines, f"traces of a Gaudi also open at {HABANA}"]


def trace_data(traced: Traced, shape: Shape) -> dict[str, Any]:
    """Plain data for ``--json``."""
    data = asdict(traced) | {"files": [str(file) for file in traced.files]}
    return {"shape": shape.as_dict(), **data}
