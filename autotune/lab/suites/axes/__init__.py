"""The article on optimizing scaled dot-product attention, axis by axis, and torch's operators at each largest size.

The axes are a cache of keys and values, quantization, and score functions; its grids, on one thread and on two, 100
runs each.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from autotune import sheets
from autotune.lab.bench.machines import Call, CpuMachine, Machine
from autotune.lab.suites.axes.kv_cache import KV_GRID, kv_calls, kv_sheet
from autotune.lab.suites.axes.quantization import quantization_calls, quantization_sheet
from autotune.lab.suites.axes.score_functions import FLEX_GRID, flex_calls, flex_sheet
from autotune.lab.suites.suite import Suite, SuiteSheet
from autotune.lab.suites.threads import torch_threads

TOP: Final = 6  # operators of a call that are shown
OPERATOR_COLUMNS: Final = (
    sheets.text("call"),
    sheets.text("operator"),
    sheets.number("calls"),
    sheets.time("own time"),
    sheets.size("own memory"),
)
NOTE: Final = (
    f"the {TOP} operators that took longest, by torch.profiler, which lengthens what it watches; "
    "own: without what they call; memory: allocated less freed"
)


def measure_axes(machine: Machine) -> Iterator[SuiteSheet]:
    # Dynamic quantization exists on a processor alone.
    processor = machine if machine.kind == "cpu" else CpuMachine(on_step=machine.on_step)
    yield kv_sheet(machine)
    sequence, hidden = KV_GRID[-1]
    size = f"sequence {sequence}, hidden {hidden}"
    yield operator_sheet(machine, f"a cache of keys and values, {size}", kv_calls(sequence, hidden, machine.kind))
    yield quantization_sheet(processor)
    yield operator_sheet(processor, f"quantization, {size}", quantization_calls(sequence, hidden))
    yield flex_sheet(machine)
    batch, sequence, hidden = FLEX_GRID[-1]
    size = f"batch {batch}, sequence {sequence}, hidden {hidden}"
    yield operator_sheet(machine, f"score functions, {size}", flex_calls(batch, sequence, hidden, machine.kind))
    machine.release()


def operator_sheet(machine: Machine, title: str, calls: Mapping[str, Call]) -> SuiteSheet:
    """List the most expensive operators of one run, on one thread, after a first run.

    A call without any is a failure: either the profiler does not work here, or its rows are not understood.
    """
    rows: list[tuple[Any, ...]] = []
    failures: list[str] = []
    machine.on_step(f"operators: {title}")
    with torch_threads(1):
        for name, call in calls.items():
            call()
            found = machine.operators(call)[:TOP]
            rows += [(name, o.name, o.calls, o.microseconds, o.bytes) for o in found]
            failures += [] if found else [f"{name}: the profiler saw no operator of it"]
    return SuiteSheet(f"operators: {title}", OPERATOR_COLUMNS, tuple(rows), (NOTE,), tuple(failures))


SUITE: Final = Suite(
    "axes",
    "what a KV cache, quantization and score functions change, by size and threads (article on SDPA optimization)",
    measure_axes,
    has_own_threads=True,
)
