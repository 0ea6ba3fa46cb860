"""The suites over paged caches: Intel's notebook on Gaudi, NVIDIA's on cuDNN's frontend."""

import sys
from dataclasses import astuple
from typing import Any

import pytest
import torch

from autotune.dispatch import TunedKernel, get_kernel
from autotune.lab.suites import cudnn_paged as cudnn_paged
from autotune.lab.suites import gaudi as gaudi
from autotune.lab.suites.gaudi import GaudiSetting
from autotune.shape import PagedShape
from tests.lab.bench.fake_machine import EXTRA_BYTES, HELD_BYTES, FakeMachine

SMALL = GaudiSetting(batch=3, heads=4, kv_heads=2, seq=70, head_dim=16, page_size=16, pool_blocks=20, dtype="float32")


def test_gaudis_setting_is_the_notebooks() -> None:
    assert astuple(gaudi.SETTING) == (32, 32, 32, 1024, 128, 128, 1024, "bfloat16")
    assert (gaudi.SEED, gaudi.WARMUPS, gaudi.ACTIVE) == (42, 1, 3)


def test_context_lengths_are_drawn_once_and_a_smaller_batch_has_the_first() -> None:
    lengths = gaudi.draw_lengths(gaudi.SETTING)
    torch.manual_seed(42)
    assert lengths.tolist() == torch.randint(1, 1025, (32,)).tolist()
    assert gaudi.draw_lengths(gaudi.CPU_SETTING).tolist() == lengths[:8].tolist()
    assert 1 <= int(lengths.min()) <= int(lengths.max()) <= 1024


def test_fragmentation_is_counted_block_by_block() -> None:
    (row,) = gaudi.fragmentation(gaudi.SETTING).rows
    lengths = gaudi.draw_lengths(gaudi.SETTING).tolist()
    real = sum(1 for length in lengths for start in range(0, 1024, 128) if start < length)
    assert row[:4] == (32, sum(lengths), 32 * 8, real)
    assert row[4] == pytest.approx(1.0 - real / 256)
    assert row[6] == real * 2 * 128 * 32 * 128 * 2


def test_gaudis_three_are_right_and_every_step_is_told() -> None:
    _, steps, summary = gaudi.measure_gaudi(FakeMachine(), SMALL)
    assert summary.failures == ()
    assert [row[0] for row in summary.rows] == ["fused SDPA *", "initial paged", "flat paged"]
    assert all(isinstance(row[5], float) and row[5] < 1e-5 for row in summary.rows)
    counts = [-(-length // 16) for length in gaudi.draw_lengths(SMALL).tolist()]
    assert [row[1] for row in summary.rows] == [3 * 5, 3 * max(counts), sum(counts)]
    assert [row[3] for row in summary.rows] == [1.0, 1 / 2, pytest.approx(1 / 3)]
    assert [(row[0], row[1]) for row in steps.rows] == [(name, step) for name in gaudi_names() for step in (1, 2, 3)]
    (comparison,) = summary.comparisons  # without the fused one, whose problem is another
    assert [entry.name for entry in comparison.entries] == ["initial paged", "flat paged"]


def test_the_fused_attention_has_its_padded_keys_and_values_in_its_memory() -> None:
    _, _, summary = gaudi.measure_gaudi(FakeMachine(), SMALL)
    padded = 2 * 3 * 5 * 16 * 2 * 16 * 4  # K and V: 3 sequences of 5 blocks of 16 tokens, 2 heads of 16, 4 bytes
    assert summary.columns[4].name == "extra memory"
    own = EXTRA_BYTES + HELD_BYTES
    assert [row[4] for row in summary.rows] == [own + padded, own, own]
    fragments = gaudi.fragmentation(SMALL)
    assert fragments.rows[0][5] == padded


def on_an_h200(shape: PagedShape, **options: Any) -> TunedKernel:
    return get_kernel(shape, device="NVIDIA H200", **options)


def test_gaudis_and_cudnns_tables_say_which_config_ours_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that passes for a GPU; neither ours nor cuDNN runs, which is said."""
    tensors = gaudi.make_inputs
    monkeypatch.setattr(gaudi, "get_kernel", on_an_h200)
    monkeypatch.setattr(gaudi, "make_inputs", lambda setting, lengths, device: tensors(setting, lengths, "cpu"))
    *_, summary = gaudi.measure_gaudi(FakeMachine(kind="cuda"), SMALL)
    monkeypatch.setattr(cudnn_paged, "get_kernel", on_an_h200)
    setting = cudnn_paged.CudnnSetting(batch=2, heads=3, seq=100, head_dim=16, page_size=16)
    paged = cudnn_paged._on_gpu(FakeMachine(), setting, cudnn_paged.make_tensors(setting, "cpu"))
    for table in (summary, paged):
        (served,) = [note for note in table.notes if note.startswith("served: ")]
        assert served.endswith("the space's default)")
        assert "BLOCK_K=" in served


def test_inputs_of_gaudis_batch_that_do_not_fit_are_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(gaudi, "make_inputs", refuse)
    fragments, steps, summary = gaudi.measure_gaudi(FakeMachine(), SMALL)
    assert len(fragments.rows) == 2
    assert steps.rows == ()
    assert [row[2] for row in summary.rows] == [None] * 3
    assert summary.failures == ("inputs and reference cannot be made: RuntimeError: not enough memory",)


def gaudi_names() -> tuple[str, ...]:
    return (gaudi.FUSED, gaudi.INITIAL, gaudi.FLAT)


def test_a_wrong_paged_attention_fails_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.kernels.baselines.gaudi import paged

    right = paged.flat_paged_attention
    monkeypatch.setattr(paged, "flat_paged_attention", lambda *args, **named: right(*args, **named) * 1.01)
    *_, summary = gaudi.measure_gaudi(FakeMachine(), SMALL)
    (failure,) = summary.failures
    assert failure.startswith("flat paged: BaselineUnavailableError: largest error")


def test_cudnns_setting_is_the_notebooks() -> None:
    assert astuple(cudnn_paged.CudnnSetting()) == (4, 12, 1024, 64, 64, "float16")
    assert (cudnn_paged.ATOL, cudnn_paged.RTOL) == (5e-3, 3e-3)


@pytest.mark.parametrize("seq", [64, 100])
def test_pages_hold_the_contiguous_keys_where_the_table_says(seq: int) -> None:
    setting = cudnn_paged.CudnnSetting(batch=2, heads=3, seq=seq, head_dim=8, page_size=16)
    k = torch.randn(2, seq, 3, 8)
    tensors = cudnn_paged.make_tensors(setting, "cpu")
    container = cudnn_paged.cut_into_pages(k, tensors.page_table.long(), 16)
    assert container.shape == (2 * -(-seq // 16), 3, 16, 8)
    for batch, position in ((0, 0), (1, 15), (1, 16), (0, seq - 1)):
        page = int(tensors.page_table[batch, position // 16])
        assert torch.equal(container[page, :, position % 16], k[batch, position])
    assert tensors.page_table.flatten().tolist() != sorted(tensors.page_table.flatten().tolist())


def test_cudnns_place_is_taken_and_its_tolerance_kept() -> None:
    setting = cudnn_paged.CudnnSetting(batch=2, heads=3, seq=100, head_dim=16, page_size=16)
    *_, table = cudnn_paged.measure_cudnn_paged(FakeMachine(), setting)
    assert table.failures == ()
    assert [row[:2] for row in table.rows] == [("gaudi initial paged", 1), ("gaudi flat paged", 1)]
    assert [row[4] for row in table.rows] == ["yes", "yes"]


def test_an_error_beyond_the_tolerance_fails() -> None:
    reference = torch.tensor([0.0, 100.0])
    check = cudnn_paged.tolerance_check(reference)
    error, limit = check(torch.tensor([0.0049, 100.3]))  # nearer to its limit, but not the largest
    assert error == pytest.approx(0.3, rel=1e-4)
    assert limit == pytest.approx(0.305)  # of the element that is so far off
    with pytest.raises(Exception, match=r"error 0\.4 where 0\.305 is allowed"):
        check(torch.tensor([0.0, 100.4]))
    with pytest.raises(Exception, match=r"error 0\.006 where 0\.005 is allowed"):
        check(torch.tensor([0.006, 100.0]))
    with pytest.raises(Exception, match="error nan"):
        check(torch.tensor([float("nan"), 100.0]))


def test_cudnns_graph_is_validated_without_a_gpu() -> None:
    pytest.importorskip("cudnn")
    table = cudnn_paged.validate_graph(cudnn_paged.CudnnSetting())
    assert (table.rows[0][1], table.failures) == ("valid", ())
    refused = cudnn_paged.validate_graph(cudnn_paged.CudnnSetting(head_dim=100))
    assert str(refused.rows[0][1]).startswith("refused: ")
    assert len(refused.failures) == 1


def test_an_absent_frontend_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", None)
    table = cudnn_paged.validate_graph(cudnn_paged.CudnnSetting())
    assert "not installed" in str(table.rows[0][1])
    assert 'pip install ".[cudnn]"' in str(table.rows[0][1])
    assert table.failures == ()
