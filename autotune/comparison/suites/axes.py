"""The article on optimizing scaled dot-product attention, axis by axis: a cache of keys and values, quantization, score
functions; its grids, on one thread and on two, 100 runs each, and torch's operators by time and memory."""

from collections.abc import Iterator, Mapping
from typing import Final

from autotune.comparison.suites.flex_axis import FLEX_GRID, flex_calls, flex_table
from autotune.comparison.suites.kv_axis import KV_GRID, kv_calls, kv_table
from autotune.comparison.suites.machine import Call, CpuMachine, Machine
from autotune.comparison.suites.quantization_axis import quantization_calls, quantization_table
from autotune.comparison.suites.suite import Column, Row, Suite, Table
from autotune.comparison.suites.threads import torch_threads

TOP: Final = 6  # operators of a call that are told
OPERATOR_COLUMNS: Final = (
    Column("call"),
    Column("operator"),
    Column("calls", "count"),
    Column("own time", "time"),
    Column("own memory", "bytes"),
)


def measure_axes(machine: Machine) -> Iterator[Table]:
    """A table for each axis, and the operators at its largest size."""
    is_cpu = machine.kind == "cpu"
    processor = machine if is_cpu else CpuMachine(on_step=machine.on_step)  # where dynamic quantization is
    yield kv_table(machine)
    sequence, hidden = KV_GRID[-1]
    size = f"sequence {sequence}, hidden {hidden}"
    yield operator_table(machine, f"a cache of keys and values, {size}", kv_calls(sequence, hidden, machine.kind))
    yield quantization_table(processor)
    yield operator_table(processor, f"quantization, {size}", quantization_calls(sequence, hidden))
    yield flex_table(machine)
    batch, sequence, hidden = FLEX_GRID[-1]
    size = f"batch {batch}, sequence {sequence}, hidden {hidden}"
    yield operator_table(machine, f"score functions, {size}", flex_calls(batch, sequence, hidden, machine.kind))
    machine.release()


def operator_table(machine: Machine, title: str, calls: Mapping[str, Call]) -> Table:
    """What the most expensive operators of one run took, on one thread; the first run is not looked at.

    A call without any is a failure: then the profiler does not work here, or its rows are not understood.
    """
    rows: list[Row] = []
    failures: list[str] = []
    machine.on_step(f"operators: {title}")
    with torch_threads(1):
        for name, call in calls.items():
            call()
            found = machine.operators(call)[:TOP]
            rows += [(name, o.name, o.calls, o.microseconds, o.bytes) for o in found]
            failures += [] if found else [f"{name}: the profiler saw no operator of it"]
    note = (
        f"the {TOP} operators that took longest, by torch.profiler, which lengthens what it watches; "
        "own: without what they call; memory: allocated less freed"
    )
    return Table(f"operators: {title}", OPERATOR_COLUMNS, tuple(rows), (note,), tuple(failures))


SUITE: Final = Suite(
    "axes",
    "what a KV cache, quantization and score functions change, by size and threads (article on SDPA optimization)",
    measure_axes,
    has_own_threads=True,
)
