"""Texts of tables draw nothing on a terminal, make no second line, and compute nothing in a spreadsheet."""

import csv
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from autotune.device import NVIDIA_H200
from tests import sample
from tests.cli.conftest import Machine, Ran

HOSTILE: Final = "\x1b[2J\x1b]0;title\x07 first\nsecond\rthird \u202egnp\u2066 \x9b31m\u200b"


@pytest.fixture
def hostile(machine: Machine) -> Machine:
    row = sample.trial(
        device=replace(NVIDIA_H200, name=f"NVIDIA H200 {HOSTILE}"),
        race_id=HOSTILE,
        study=HOSTILE,
        worker=HOSTILE,
        baseline=HOSTILE,
        baseline_timing=sample.timing(50),
        source_hash=HOSTILE,
        toolchain=replace(sample.trial().toolchain, triton=HOSTILE, torch=HOSTILE, driver=HOSTILE),
    )
    machine.tune(row, replace(row, device=NVIDIA_H200))
    machine.plant(replace(row, device=NVIDIA_H200, number=7), BLOCK_Q=7, message=HOSTILE)
    return machine


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "--all"],
        ["show", "--device", "h100"],
        ["lookup", "--batch", "4", "--heads", "16", "--seq", "1024"],
        ["lookup", "--batch", "4", "--heads", "16", "--seq", "1024", "--among", "fastest"],
        ["explain", "--batch", "4", "--heads", "16", "--seq", "1024"],
        ["doctor"],
        ["export", "--format", "csv"],
        ["export", "--format", "triton-config"],
    ],
    ids=" ".join,
)
def test_no_command_prints_what_moves_a_cursor(run: Callable[..., Ran], hostile: Machine, arguments: list[str]) -> None:
    found = run(*arguments)
    shown = {each for each in found.out + found.err if unicodedata.category(each)[0] == "C"} - {"\n"}
    assert not shown, arguments
    assert not any(line.startswith(("second", "third")) for line in (found.out + found.err).splitlines())


@pytest.mark.parametrize("cell", ["=cmd|' /C calc'!A1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_of_csv_is_a_formula(run: Callable[..., Ran], machine: Machine, cell: str) -> None:
    machine.tune(sample.trial(study=cell))
    (row,) = csv.DictReader(run("export", "--format", "csv").out.splitlines())
    assert row["study"][0] == "'"
    assert row["study"][1:].lstrip("?") == cell.lstrip("\t\r")
    assert float(row["median_us"]) == sample.trial().timing.median_us  # type: ignore[union-attr]
