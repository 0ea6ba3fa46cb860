"""Batch-invariant picks: one config for all batches of a problem, by an argument or by the environment."""

import itertools
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import TunedKernel, get_kernel, pick_for_device, reload
from autotune.errors import InvalidConfigError, NoTunedKernelError, UsageError
from autotune.kernels.paged_decode.triton import launch
from autotune.models import MODELS
from autotune.registry import get_implementation, get_operation
from autotune.search_spaces.paged_decode import triton
from autotune.shape import PagedShape
from autotune.space import Config
from autotune.table import read_misses
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


def usual(shape: PagedShape) -> PagedShape:
    operation = get_operation("paged_decode" if shape.seq_q == 1 else "paged_prefill")
    assert operation.usual_batch is not None
    found: PagedShape = operation.usual_batch(shape)
    return found


def is_invariant(kernel: TunedKernel) -> bool:
    implementation = get_implementation(kernel.operation, kernel.implementation)
    return implementation.batch_invariant(kernel.config, kernel.shape) == kernel.config


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_all_batches_and_lengths_get_one_config(shape: PagedShape, device: str) -> None:
    found, others = set(), set()
    for batch, context, mean in itertools.product((1, 5, 64), (16, 4096, 131072), (1, 4)):
        problem = replace(shape, batch=batch, max_context=context, mean_context=context // mean)
        kernel = get_kernel(problem, device=device, batch_invariant=True)
        assert is_invariant(kernel)
        assert (kernel.shape, kernel.picked_for) == (problem, usual(problem))
        found.add(kernel.candidate)
        others.add(get_kernel(problem, device=device).candidate)
    assert len(found) == 1
    assert len(others) > 1


@pytest.mark.parametrize("device", DEVICES)
def test_chunks_of_all_lengths_get_one_config(device: str) -> None:
    chunks = (replace(PREFILL, seq_q=seq_q) for seq_q in (9, 100, 8192))
    assert len({get_kernel(each, device=device, batch_invariant=True).candidate for each in chunks}) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_every_width_and_every_named_model_has_one(device: str) -> None:
    shapes = [
        model.shape(PagedShape, batch=2, max_context=77, seq_q=seq_q)
        for model in MODELS.values()
        if model.has_cache
        for seq_q in (1, 8, 100)
    ]
    widths = ((4, 1, 512), (16, 1, 256), (8, 8, 72), (64, 8, 64))
    for (heads, kv_heads, width), kv_dtype in itertools.product(widths, ("bfloat16", "int8")):
        sizes: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": width, "kv_dtype": kv_dtype}
        shapes += [PagedShape(batch=2, max_context=77, seq_q=seq_q, **sizes) for seq_q in (1, 3, 100)]
    for shape in shapes:
        if not shape.is_latent or shape.seq_q <= 8:
            assert is_invariant(get_kernel(shape, device=device, batch_invariant=True))


def test_the_bound_of_what_is_merged_at_once_is_that_of_the_launch() -> None:
    assert triton.MERGED_AT_ONCE == launch.COMBINED_OF_MANY < launch.COMBINED_OF_FEW
    wide = replace(DECODE, head_dim=256, head_dim_v=256)
    config = Config({**get_kernel(wide, device=H200, batch_invariant=True).config, "COMBINE": "kernel"})
    for splits, expected in ((16, 16), (24, 16), (32, 16), (12, 12)):
        changed = Config({**config, "NUM_SPLITS": splits})
        assert triton.batch_invariant(changed, wide)["NUM_SPLITS"] == expected
        assert triton.batch_invariant(changed, DECODE) == changed
        last = Config({**changed, "COMBINE": "last"})
        assert triton.batch_invariant(last, wide) == last


def test_a_row_of_the_usual_batch_is_served(tables: Tables) -> None:
    here = usual(DECODE)
    split = get_kernel(here, device=H200, config={"NUM_SPLITS": 6}).config
    tables.tune(sample.trial(here, split, operation="paged_decode", implementation="triton"))
    kernel = get_kernel(DECODE, device=H200, batch_invariant=True)
    assert (kernel.config, kernel.provenance.rung, kernel.provenance.origin) == (split, "exact", "user")
    assert kernel.provenance.reason == f"batch-invariant, as for {here}: tuned for this shape on NVIDIA H200"
    assert kernel.provenance.expected_regret is None  # of other batches nothing is known
    assert len(kernel.alternatives) == 1


def test_a_row_that_follows_the_batch_is_passed_over(tables: Tables) -> None:
    here = usual(DECODE)
    flat = get_kernel(here, device=H200, config={"schedule": "flat", "PROGRAMS_PER_SM": 2}).config
    tables.tune(sample.trial(here, flat, operation="paged_decode", implementation="triton"))
    assert get_kernel(here, device=H200).config == flat
    kernel = get_kernel(DECODE, device=H200, batch_invariant=True)
    assert kernel.config["schedule"] == "split"
    assert f"as for {here}: with triton schedule=flat" in kernel.provenance.reason
    assert not kernel.is_untuned  # a search would find the same row
    assert get_kernel(DECODE, device=H200, batch_invariant=True, on_miss="error") == kernel
    pins: list[dict[str, Any]] = [{"implementation": "triton"}, {"config": {"num_warps": 8}}]
    for pin in (*pins, {"config": {"NUM_SPLITS": 12}}):
        assert is_invariant(get_kernel(DECODE, device=H200, batch_invariant=True, **pin))


def test_what_no_candidate_offers_is_a_config_like_the_first() -> None:
    wide = PagedShape(batch=3, heads=8, kv_heads=1, max_context=300, head_dim=256, kv_dtype="int8")
    served = get_kernel(usual(wide), device=H200).config
    assert served["NUM_SPLITS"] == 32
    kernel = get_kernel(wide, device=H200, batch_invariant=True)
    assert kernel.config == Config({**served, "NUM_SPLITS": 16})
    assert kernel.provenance.reason.endswith("depend on the batch: the batch-invariant config that is like it")


def test_a_miss_is_of_the_usual_batch(tables: Tables) -> None:
    with pytest.raises(NoTunedKernelError, match=r"shape: batch 8, .* context 8192"):
        get_kernel(DECODE, device=H200, batch_invariant=True, on_miss="error")
    get_kernel(DECODE, device=H200, batch_invariant=True, on_miss="record")
    assert read_misses() == [(get_operation("paged_decode"), usual(DECODE))]


def test_the_variable_holds_for_functions_and_for_operations_that_have_such_picks(
    variable: pytest.MonkeyPatch, tables: Tables
) -> None:
    reload()
    expected = get_kernel(DECODE, device=H200, batch_invariant=True).candidate
    assert get_kernel(DECODE, device=H200).candidate == expected
    assert pick_for_device(DECODE, NVIDIA_H200, "paged_decode").candidate == expected
    assert get_kernel(DECODE, device=H200, batch_invariant=False).candidate != expected
    assert get_kernel(sample.shape(), device=H200).picked_for == sample.shape()
    variable.setenv(VARIABLE, "0")
    reload()
    assert get_kernel(DECODE, device=H200).candidate != expected


def test_a_pin_is_kept_where_it_is_invariant_and_else_refused(tables: Tables) -> None:
    whole: dict[str, Any] = {"schedule": "flat", "PROGRAMS_PER_SM": 2}
    expected = r"config=.* for the usual batch of batch-invariant picks: triton schedule=flat.* is not batch-invariant"
    with pytest.raises(InvalidConfigError, match=expected):
        get_kernel(DECODE, device=H200, config=whole, batch_invariant=True)
    kernel = get_kernel(DECODE, device=H200, config={"NUM_SPLITS": 6}, batch_invariant=True)
    assert kernel.config["NUM_SPLITS"] == 6
    assert "named by config={'NUM_SPLITS': 6} for the usual batch" in kernel.provenance.reason


def test_wrong_values_are_refused(variable: pytest.MonkeyPatch, tables: Tables) -> None:
    wrong: list[Any] = ["yes", 1, []]
    for value in wrong:
        with pytest.raises(UsageError, match=r"batch_invariant=.* is not allowed; expected True, False or None"):
            get_kernel(DECODE, device=H200, batch_invariant=value)
    expected = "batch_invariant=True is not allowed for flash_attention; expected one of paged_decode, paged_prefill"
    with pytest.raises(UsageError, match=expected):
        get_kernel(sample.shape(), device=H200, batch_invariant=True)
    variable.setenv(VARIABLE, "yes")
    reload()
    with pytest.raises(UsageError, match=r"AUTOTUNE_BATCH_INVARIANT='yes' is not allowed; expected 1, .*, or 0"):
        get_kernel(DECODE, device=H200)
