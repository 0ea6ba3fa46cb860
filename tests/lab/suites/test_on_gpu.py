"""The suites on a GPU, over small problems; run by hand."""

import pytest
import torch

from autotune import platforms
from autotune.lab.suites import GpuMachine
from autotune.lab.suites.assignment import measure_assignment
from autotune.lab.suites.axes.kv_cache import kv_sheet
from autotune.lab.suites.axes.score_functions import flex_sheet
from autotune.lab.suites.cudnn_paged import CudnnSetting, measure_cudnn_paged
from autotune.lab.suites.exercise import measure_exercise
from autotune.lab.suites.gaudi import GaudiSetting, measure_gaudi

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not platforms.has_gpu(), reason="no GPU is visible"),
]

MIB = 2**20


def test_the_gpu_times_calls_counts_their_memory_and_names_their_operators() -> None:
    machine = GpuMachine()
    left = torch.ones(512, 512, device="cuda")

    def call() -> torch.Tensor:
        held = left + 1.0  # 1 MiB
        return (left @ held)[:1].clone()

    call()
    assert {name: timing.samples for name, timing in machine.time({"a": call, "b": call}).items()} == {"a": 15, "b": 15}
    assert len(machine.steps(call, warmups=1, active=3)) == 3
    assert machine.extra_bytes(call) >= 2 * MIB
    names = [operator.name for operator in machine.operators(call)]
    assert "aten::mm" in names
    assert all(not name.startswith("void ") for name in names)  # kernels are no operators


def test_the_exercise_is_right_in_both_dtypes_and_says_where_it_ran() -> None:
    tables = list(measure_exercise(GpuMachine(), ((2, 2, 65, 64),)))
    comparisons = [comparison for table in tables for comparison in table.comparisons]
    assert {comparison.gpu for comparison in comparisons} == {platforms.current_device()}
    assert all(comparison.conditions is not None and comparison.started_at is not None for comparison in comparisons)
    assert len(tables) == 4
    assert [failure for table in tables for failure in table.failures] == []


def test_the_assignments_three_are_right() -> None:
    _, kernels, fusion = measure_assignment(GpuMachine(), (128, 200))
    assert kernels.failures == ()
    assert [row[1] for row in kernels.rows] == ["naive", "autotune", "sdpa"] * 2
    assert len(fusion.rows) == 2


def test_gaudis_attentions_and_ours_are_right() -> None:
    setting = GaudiSetting(batch=3, heads=4, kv_heads=2, seq=300, head_dim=64, page_size=64, pool_blocks=20)
    *_, summary = measure_gaudi(GpuMachine(), setting)
    assert summary.failures == ()
    assert [row[0] for row in summary.rows] == ["fused SDPA *", "initial paged", "flat paged", "autotune"]


def test_cudnns_paged_attention_and_ours_are_within_the_tolerance() -> None:
    (table,) = measure_cudnn_paged(GpuMachine(), CudnnSetting(batch=2, seq=256))
    assert table.failures == ()
    assert table.rows[0][0] == "autotune"


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo asks all tensors of a trace for it
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it loads inductor
def test_the_axes_are_right() -> None:
    assert kv_sheet(GpuMachine(), ((4, 32),), runs=5).failures == ()
    assert flex_sheet(GpuMachine(), ((2, 32, 64),), runs=5).failures == ()
