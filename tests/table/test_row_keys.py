"""Keys of rows are equal where the trials are, and in every process."""

import dataclasses
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from autotune.registry import get_implementation
from autotune.table import table_schema
from autotune.table.row_keys import keys_of_trials
from autotune.table.schema import TableSchema
from tests import sample as rows


def _schema() -> TableSchema:
    return table_schema(get_implementation("flash_attention", "triton"))


def test_keys_are_equal_where_trials_are() -> None:
    one = rows.trial()
    another_driver = dataclasses.replace(one.device, memory_mib=one.device.memory_mib - 100)
    others = [
        dataclasses.replace(one, study="other"),
        dataclasses.replace(one, device=dataclasses.replace(one.device, power_cap_watts=500)),
        dataclasses.replace(one, toolchain=dataclasses.replace(one.toolchain, driver="other")),
        rows.trial(rows.shape(2048)),
        rows.trial(chosen=rows.config(num_warps=4)),
        rows.trial(timing=rows.timing(201.0)),
    ]
    later = one.started_at + timedelta(microseconds=1)  # both fields differ, by as little as may be
    others += [dataclasses.replace(one, started_at=later, number=each) for each in (one.number, one.number ^ 1)]
    same = dataclasses.replace(one, device=another_driver)
    assert same == one
    first, equal, *different = keys_of_trials(_schema(), [one, same, *others])
    assert first == equal
    assert len({first, *different}) == 1 + len(others) == len({one, *others})


def test_keys_are_the_same_in_every_process() -> None:
    program = (
        "from tests import sample\n"
        "from tests.table.test_row_keys import _schema\n"
        "from autotune.table.row_keys import keys_of_trials\n"
        "print(*keys_of_trials(_schema(), [sample.trial()]))\n"
    )
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(key) for key in keys_of_trials(_schema(), [rows.trial()])]
