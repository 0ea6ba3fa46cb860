"""Time a process's first look-up over a store of many trials: ``python -m benchmarks.first_lookup``.

Imports are not counted. Each number is the least of several fresh processes, since a machine that others use only adds.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from autotune.device import NVIDIA_H200
from autotune.shape import AttentionShape
from autotune.table import Store, shipped_sweeps
from autotune.trial import Stage

TRIALS: Final = 30_000
PROCESSES: Final = 7
OPERATION: Final = "flash_attention"
CALLS: Final = {
    "served_winners": "table.served_winners('flash_attention')",
    "get_kernel": "get_kernel(shape, device='NVIDIA H200')",
}
LOOK_UP: Final = """
import sys, time
from autotune import AttentionShape, dispatch, get_kernel, table
from autotune.registry import implementations_of, operation_names
for name in operation_names():
    implementations_of(name)
shape = AttentionShape(batch=3, heads=16, seq_q=1000, head_dim=128, causal=True)
wall, own = time.perf_counter(), time.thread_time()
{call}
print(time.perf_counter() - wall, time.thread_time() - own)
"""


def main() -> None:
    print(f"{TRIALS} trials of {OPERATION}; the least of {PROCESSES} fresh processes")
    print(f"{'':20}", *(f"{name + ' (processor)':>32}" for name in CALLS))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        print(f"{'no store':20}", *_least(Path(folder, "absent")))
        fill(store, TRIALS)
        print(f"{'without a snapshot':20}", *_least(store.root))
        store.compact(OPERATION, NVIDIA_H200)
        print(f"{'with a snapshot':20}", *_least(store.root))


def fill(store: Store, count: int) -> None:
    """Append the trials of as many searches as it takes: rows of a shipped sweep, under another batch size each."""
    recorded = shipped_sweeps(OPERATION)[0].trials()
    rows = [row for row in recorded if row.stage is Stage.SCREEN][:115]
    rows += [row for row in recorded if row.stage is Stage.RACE][:5]
    shape = rows[0].shape
    assert isinstance(shape, AttentionShape)
    for number in range(count // len(rows)):
        store.append(
            replace(
                row,
                shape=replace(shape, batch=number + 1),
                study=f"study {number}",
                race_id=row.race_id and f"race {number}",
                started_at=row.started_at + timedelta(minutes=number),
                outcome=replace(row.outcome, judge_seconds=(row.outcome.judge_seconds or 1.0) + number),
            )
            for row in rows
        )


def _least(home: Path) -> list[str]:
    """Return the least times of a first call, on the wall and of the processor; each process makes one."""
    environment = {**os.environ, "AUTOTUNE_HOME": str(home)}
    cells = []
    for call in CALLS.values():
        program = [sys.executable, "-c", LOOK_UP.format(call=call)]
        said = [subprocess.run(program, env=environment, capture_output=True, check=True) for _ in range(PROCESSES)]
        wall, own = map(min, zip(*(map(float, each.stdout.split()) for each in said), strict=True))
        cells.append(f"{1000 * wall:17.1f} ms ({1000 * own:6.1f} ms)")
    return cells


if __name__ == "__main__":
    main()
