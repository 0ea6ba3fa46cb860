"""The tables that really ship: whole, measured with this source, complete over the benchmark, found from any folder."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from autotune.correctness import TOLERATED
from autotune.registry import get_implementation
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.table import (
    Sweep,
    grid_path,
    shipped_compilations,
    shipped_grid,
    shipped_outsiders,
    shipped_portfolios,
    shipped_sweeps,
    shipped_winners,
)
from autotune.table.comparisons import holds_comparisons
from autotune.trial import Status, Trial
from tests import flex_sample

RESULTS: Final = Path(__file__).resolve().parent.parent / "results"
SHIPPED: Final = ("flash_attention", "flash_attention_varlen", "paged_decode", "paged_prefill")
DEVICE: Final = "NVIDIA H200"
REGENERATE: Final = "python -m benchmarks.record winners"
COMPARISONS: Final = sorted(RESULTS.glob("*/bench/*.parquet"))
TABLES: Final = sorted(
    path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*.parquet") if path not in COMPARISONS
)
BENCHMARK: Final = [
    AttentionShape(
        batch=16384 // seq, heads=2048 // head_dim, seq_q=seq, head_dim=head_dim, dtype="bfloat16", causal=causal
    )
    for head_dim in (64, 128, 256)
    for causal in (True, False)
    for seq in (512, 1024, 2048, 4096, 8192, 16384)
]


def shipped() -> list[Trial]:
    return [trial for operation in SHIPPED for trial in shipped_winners(operation)]


def sweeps() -> list[Sweep]:
    return [sweep for operation in SHIPPED for sweep in shipped_sweeps(operation)]


def test_every_table_is_listed_whole_and_read() -> None:
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=RESULTS, capture_output=True)
    assert checked.returncode == 0, checked.stdout.decode() + checked.stderr.decode()
    listed = [line.split()[1] for line in (RESULTS / "SHA256SUMS").read_text().splitlines()]
    assert sorted(listed) == TABLES
    read = {f"{trial.device.slug}/{trial.operation}/{trial.implementation}.parquet" for trial in shipped()}
    read |= {sweep.path.as_posix() for sweep in sweeps()}
    read |= {grid_path(trial).as_posix() for operation in SHIPPED for trial in shipped_grid(operation)}
    read |= {
        f"{row.device.arch}/{row.operation}/portfolios/{row.implementation}.parquet"
        for operation in SHIPPED
        for row in shipped_portfolios(operation)
    }
    read |= {
        f"{row.device.arch}/{row.operation}/compilations/{row.implementation}.parquet"
        for operation in SHIPPED
        for row in shipped_compilations(operation)
    }
    assert sorted(read) == TABLES


def test_every_row_is_of_todays_spaces() -> None:
    outsiders = [outsider for operation in SHIPPED for outsider in shipped_outsiders(operation)]
    reasons = {f"{outsider.where}: row {outsider.row}: {outsider.reason}" for outsider in outsiders}
    assert not reasons, "a space or shape changed: declare `absent` or `removed` for what older rows had"


def test_no_measurement_is_lost() -> None:
    """The tables of the first release, beside what joined since."""
    assert len(shipped()) >= 88
    assert len(sweeps()) >= 14


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_a_comparison_ships_with_its_command_and_all_that_ran_agree(path: Path) -> None:
    assert holds_comparisons(path.read_bytes())
    text = path.with_suffix(".md").read_text()
    assert f"--output results/{path.relative_to(RESULTS).as_posix()}\n" in text
    rows = pq.read_table(path).to_pylist()
    timed = [row for row in rows if row["median_us"] is not None]
    assert {"autotune", "autotune default", "cudnn", "cudnn best plan", "flashinfer"} <= {row["name"] for row in timed}
    for row in timed:
        assert row["error"] <= TOLERATED * row["error_limit"], row["name"]
        assert re.search(rf"^\| {row['name']}( \*)? \| {number_of(row['median_us'])} ", text, re.MULTILINE), row["name"]
    for row in rows:
        assert row["median_us"] is not None or f"- not compared: {row['name']}: " in text


def number_of(microseconds: float) -> str:
    return f"{microseconds:.1f} us" if microseconds < 1000 else f"{microseconds / 1000:.3f} ms"


def test_winners_were_measured_with_this_source() -> None:
    """Of torch's FlexAttention that is the torch that a row names, whichever is installed here."""
    stale = {
        (trial.operation, trial.implementation, trial.device.name)
        for trial in shipped()
        if not get_implementation(trial.operation, trial.implementation).is_source_of(trial)
    }
    commands = [
        f"on {device}, run `{REGENERATE} --operation {operation} --implementation {name}`"
        for operation, name, device in sorted(stale)
    ]
    assert not stale, f"a kernel's source has changed since its shipped winners were measured; {'; '.join(commands)}"


def test_portfolios_were_recorded_with_this_source() -> None:
    """Of torch's FlexAttention the hash is that of a torch, whichever is installed here."""
    rows = [row for operation in SHIPPED for row in shipped_portfolios(operation)]
    ours = [(get_implementation(row.operation, row.implementation), row) for row in rows]
    ours = [(implementation, row) for implementation, row in ours if implementation.is_ours]
    assert {implementation.operation for implementation, _ in ours} == set(SHIPPED)
    stale = {f"{each.title} on {row.device.name}" for each, row in ours if row.source_hash != each.source_hash}
    assert not stale, (
        f"a kernel's source has changed since the recordings of its portfolio: {', '.join(sorted(stale))}; record "
        "winners and sweeps anew, and run `python -m benchmarks.portfolios`"
    )


def test_winners_are_valid_correct_and_measured() -> None:
    for trial in shipped():
        space = get_implementation(trial.operation, trial.implementation).space
        assert space.why_invalid(trial.config, trial.shape, trial.device) is None, trial
        assert (trial.status, trial.executor) == (Status.OK, "gpu"), trial
        assert trial.outcome.error is not None, trial
        assert not trial.outcome.conditions.contended, trial


def test_no_winner_loses_to_the_default_of_its_race() -> None:
    for trial in shipped():
        assert trial.timing is not None
        if trial.default_timing is not None:
            assert trial.timing.median_us <= 1.01 * trial.default_timing.median_us, trial


def test_the_benchmark_of_flash_attention_is_complete() -> None:
    rows = shipped_winners("flash_attention", implementation="triton")
    found = {trial.shape for trial in rows if trial.device.name == DEVICE}
    missing = [str(shape) for shape in BENCHMARK if shape not in found]
    assert not missing, f"no winner on {DEVICE} for {'; '.join(missing)}; on that device, run `{REGENERATE}`"


def test_flex_ships_for_all_its_problems_measured_with_one_torch() -> None:
    rows = shipped_winners("flash_attention", implementation="flex")
    found = [trial for trial in rows if trial.device.name == DEVICE]
    problems = flex_sample.SHAPES
    missing = [str(shape) for shape in problems if shape not in {trial.shape for trial in found}]
    command = f"{REGENERATE} --implementation flex --missing"
    assert not missing, f"no winner on {DEVICE} for {'; '.join(missing)}; on that device, run `{command}`"
    assert len({trial.toolchain.torch for trial in found}) == 1


@pytest.mark.parametrize("seq", [1024, 4096])
def test_the_replayed_sweeps_cover_their_space(seq: int) -> None:
    shape = next(cell for cell in BENCHMARK if (cell.head_dim, cell.causal, cell.seq_q) == (128, True, seq))
    trials = [trial for sweep in sweeps() for trial in sweep.trials() if trial.shape == shape]
    assert trials, f"no sweep of {shape}; on that device, run `python benchmarks/record.py sweeps`"
    assert set(IMPLEMENTATION.space.configs(shape, trials[0].device)) <= {trial.config for trial in trials}
    assert any(trial.race_id for trial in trials), "the sweep holds no race"


LOOK_UP: Final = """
import json, sys
from autotune import AttentionShape, get_kernel
answers = []
for seq, batch, device in [(1024, 16, "NVIDIA H200"), (1023, 16, "NVIDIA H200"), (1024, 16, "Voodoo 2")]:
    shape = AttentionShape(batch=batch, heads=16, seq_q=seq, head_dim=128, causal=True)
    why = get_kernel(shape, device=device).provenance
    answers.append([why.rung, why.origin, str(why)])
print(json.dumps([answers, sorted({"optuna", "triton"} & sys.modules.keys())]))
"""


@pytest.mark.slow
def test_any_folder_finds_the_shipped_winners(tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        [sys.executable, "-c", LOOK_UP],
        cwd=tempfile.gettempdir(),
        env={**inherited, "AUTOTUNE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    answers, loaded = json.loads(result.stdout)
    exact, nearest, default = answers
    assert exact == ["exact", "shipped", f"tuned for this shape on {DEVICE}"]
    assert nearest[:2] == ["nearest", "shipped"]
    assert nearest[2].startswith("tuned for the nearest shape (batch 16, 16 heads of 128, seq 1024, bfloat16, causal; ")
    assert default == ["default", "", "no table knows the device Voodoo 2, taken for an sm_80: the space's default"]
    assert loaded == []
