"""Batch-invariant picks: one config for all batches of a problem, by an argument or by the environment."""

import itertools
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel, pick_for_device, reload
from autotune.errors import InvalidConfigError, UsageError
from autotune.models import MODELS
from autotune.registry import get_implementation, get_operation
from autotune.shape import PagedShape
from tests import sample
from tests.dispatch.tables import H200, Tables

DECODE: Final = PagedShape(batch=3, heads=32, kv_heads=8, max_context=300, head_dim=128)
PREFILL: Final = replace(DECODE, seq_q=100)
DEVICES: Final = (H200, "NVIDIA H100", "A100", "RTX 4090", "MI300X")
VARIABLE: Final = "AUTOTUNE_BATCH_INVARIANT"


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(VARIABLE, "1")
    return monkeypatch


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_all_batches_and_lengths_get_one_config(shape: PagedShape, device: str) -> None:
    found, others = set(), set()
    for batch, context, mean in itertools.product((1, 5, 64), (16, 4096, 131072), (1, 4)):
        problem = replace(shape, batch=batch, max_context=context, mean_context=context // mean)
        found.add(get_kernel(problem, device=device, batch_invariant=True).candidate)
        others.add(get_kernel(problem, device=device).candidate)
    (candidate,) = found
    assert len(others) > 1
    operation = "paged_decode" if shape is DECODE else "paged_prefill"
    assert get_implementation(operation, candidate.implementation).is_batch_invariant(candidate.config)
    chunks = {get_kernel(replace(PREFILL, seq_q=seq_q), device=device, batch_invariant=True) for seq_q in (9, 8192)}
    assert len({kernel.candidate for kernel in chunks}) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_every_named_model_has_one(device: str) -> None:
    for model in MODELS.values():
        if model.has_cache:
            for seq_q in (1, 8, 100):
                shape = model.shape(PagedShape, batch=2, max_context=77, seq_q=seq_q)
                if get_operation("paged_prefill").unsupported(shape) and seq_q > 8:
                    continue
                assert get_kernel(shape, device=device, batch_invariant=True).provenance.rung == "pinned"


def test_what_follows_the_batch_is_passed_over(tables: Tables) -> None:
    usual = get_operation("paged_decode").usual_batch
    assert usual is not None
    flat = get_kernel(usual(DECODE), device=H200, config={"schedule": "flat", "PROGRAMS_PER_SM": 2}).config
    tables.tune(sample.trial(usual(DECODE), flat, operation="paged_decode", implementation="triton"))
    assert get_kernel(usual(DECODE), device=H200).config["schedule"] == "flat"
    kernel = get_kernel(DECODE, device=H200, batch_invariant=True)
    assert kernel.config["schedule"] == "split"
    assert len(kernel.alternatives) == 1
    assert kernel.provenance.reason.startswith(f"batch-invariant, as for {usual(DECODE)}: ")


def test_the_variable_holds_for_functions_and_for_operations_that_have_such_picks(
    variable: pytest.MonkeyPatch, tables: Tables
) -> None:
    reload()
    expected = get_kernel(DECODE, device=H200, batch_invariant=True).candidate
    assert get_kernel(DECODE, device=H200).candidate == expected
    assert pick_for_device(DECODE, NVIDIA_H200, "paged_decode").candidate == expected
    assert get_kernel(sample.shape(), device=H200).provenance.rung == "default"
    variable.setenv(VARIABLE, "0")
    reload()
    assert get_kernel(DECODE, device=H200).provenance.rung == "default"


def test_a_pin_is_kept_where_it_is_invariant_and_else_refused(tables: Tables) -> None:
    whole: dict[str, Any] = {"schedule": "flat", "PROGRAMS_PER_SM": 2}
    with pytest.raises(
        InvalidConfigError, match=r"flat.*, named by config=.*, is not batch-invariant, beside AUTOTUNE"
    ):
        get_kernel(DECODE, device=H200, config=whole, batch_invariant=True)
    kernel = get_kernel(DECODE, device=H200, config={"NUM_SPLITS": 6}, batch_invariant=True)
    assert kernel.config["NUM_SPLITS"] == 6
    assert "named by config={'NUM_SPLITS': 6}" in kernel.provenance.reason


def test_wrong_values_are_refused(variable: pytest.MonkeyPatch, tables: Tables) -> None:
    with pytest.raises(UsageError, match="batch_invariant='yes' is not allowed; expected True or False"):
        get_kernel(DECODE, device=H200, batch_invariant="yes")  # type: ignore[arg-type]
    expected = "batch_invariant=True is not allowed for flash_attention; expected one of paged_decode, paged_prefill"
    with pytest.raises(UsageError, match=expected):
        get_kernel(sample.shape(), device=H200, batch_invariant=True)
    variable.setenv(VARIABLE, "yes")
    reload()
    with pytest.raises(UsageError, match=r"AUTOTUNE_BATCH_INVARIANT='yes' is not allowed; expected 1, .*, or 0"):
        get_kernel(DECODE, device=H200)
