"""A package outside the tree adds an implementation to flash attention: one folder, one module, one registration."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import dispatch
from autotune.correctness import check_config, make_cases
from autotune.registry import load_definition, load_kernel
from autotune.search import Observer
from autotune.space import Config
from autotune.table import write_shipped
from autotune.trial import Stage, Status
from autotune.tuning import shape_searches, tune
from tests import sample
from tests.outside import recorded, register

FASTER, SLOWER = 64, 128  # lengths
OURS, THEIRS = "triton", "naive"
LIMITS: dict[str, Any] = {"trials": None, "sampler": "exhaustive", "budget": None}


@pytest.fixture
def naive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registration, for one test."""
    register(monkeypatch)


@pytest.fixture
def machine(naive: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without a GPU; recorded are a length at which the added implementation is faster, and one at which it is not."""
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    sample.hide_gpu(monkeypatch)
    monkeypatch.setattr(shape_searches, "confirm", lambda *_: None)
    folder = Path("nvidia_h200/flash_attention/sweeps")
    for seq, microseconds in ((FASTER, 50.0), (SLOWER, 900.0)):
        for name, rows in ((OURS, sample.sweep(sample.shape(seq))), (THEIRS, recorded(seq, microseconds))):
            write_shipped(folder / f"{name}_{seq}.parquet", rows, results=tmp_path / "results")
    dispatch.reload()
    yield
    dispatch.reload()


@pytest.mark.usefixtures("machine")
@pytest.mark.slow
def test_it_is_tuned_raced_and_served_where_it_won() -> None:
    found = tune([sample.shape(FASTER), sample.shape(SLOWER)], **LIMITS)
    assert [each.winner and each.winner.implementation for each in found.results] == [THEIRS, OURS]
    for result in found.results:
        assert result.search is not None
        tuned = [part.implementation for part in result.search.implementations if not part.skipped]
        assert tuned == [OURS, THEIRS]
        assert len({trial.race_id for trial in result.search.recorded if trial.stage is Stage.RACE}) == 1
        kernel = dispatch.get_kernel(result.shape, device="NVIDIA H200")
        assert result.winner is not None
        assert (kernel.provenance.rung, kernel.candidate) == ("exact", result.winner.candidate)


@pytest.mark.usefixtures("machine")
def test_it_is_tuned_alone_by_its_name() -> None:
    (result,) = tune(sample.shape(SLOWER), implementations=[THEIRS], **LIMITS).results
    assert result.winner is not None
    assert result.winner.implementation == THEIRS
    assert dispatch.get_kernel(result.shape, device="NVIDIA H200", among=(THEIRS,)).implementation == THEIRS


def test_it_is_served_though_picks_were_made_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def picked() -> list[str]:
        kernel = dispatch.get_kernel(sample.shape(64, head_dim=72), device="NVIDIA H200")
        return [each.candidate.implementation for each in kernel._alternatives]

    dispatch.reload()
    before = picked()
    register(monkeypatch)
    assert (THEIRS in before, THEIRS in picked()) == (False, True)
    monkeypatch.undo()
    dispatch.reload()


@pytest.mark.usefixtures("naive")
def test_without_recordings_of_it_a_replay_reports_it_and_tunes_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped: list[str] = []

    class Notes(Observer):
        def on_skipped(self, implementation: str, reason: str) -> None:
            skipped.append(f"{implementation}: {reason}")

    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    sample.hide_gpu(monkeypatch)
    monkeypatch.setattr(shape_searches, "confirm", lambda *_: None)
    path = Path("nvidia_h200/flash_attention/sweeps/triton_64.parquet")
    write_shipped(path, sample.sweep(sample.shape(64)), results=tmp_path / "results")
    (result,) = tune(sample.shape(64), trials=5, sampler="random", budget=None, observer=Notes()).results
    assert result.winner is not None
    assert result.winner.implementation == OURS
    where = f"is recorded for {sample.shape(64)} on NVIDIA H200"
    unrecorded = ("gluon_hopper", "triton_split_keys", THEIRS)
    assert skipped == [f"{name}: no sweep of flash_attention/{name} {where}" for name in unrecorded]


@pytest.mark.usefixtures("naive")
@pytest.mark.parametrize("causal", [True, False])
def test_its_numbers_pass_the_gate(causal: bool) -> None:
    shape = sample.shape(64, batch=1, heads=2, head_dim=16, causal=causal, dtype="float16")
    definition, kernel = load_definition("flash_attention"), load_kernel("flash_attention", THEIRS)
    cases = make_cases(definition, definition.check_shapes(shape), device="cpu")
    assert check_config(kernel, Config(CHUNK=32), cases, every_output=True).status is Status.OK
    inputs = definition.make_inputs(shape, seed=0, device="cpu")
    out = kernel.bind(Config(CHUNK=16), shape)(inputs.q, inputs.k, inputs.v)
    torch.testing.assert_close(out, definition.reference(inputs, dtype=torch.float16)[0], atol=2e-3, rtol=2e-3)
