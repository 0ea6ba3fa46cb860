"""Strained inputs are what their names say, and a kernel that breaks on one is found."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from autotune.errors import UnknownNameError, UsageError
from autotune.kernels.flash_attention.definition import DEFINITION, Inputs
from autotune.kernels.paged_decode.definition import DEFINITION as PAGED
from autotune.kernels.paged_decode.reference import gather_keys
from autotune.lab.bench.comparison import OURS
from autotune.lab.machine import subjects
from autotune.lab.stability import examination
from autotune.lab.stability.disturbances import CASES, disturb
from autotune.lab.stability.examination import examine, failure_lines, judge, stability_data, stability_sheet
from autotune.registry import get_operation
from autotune.shape import AttentionShape, PagedShape
from autotune.space import Config

SHAPE = AttentionShape(batch=2, heads=4, kv_heads=2, seq_q=13, head_dim=16, dtype="float32", causal=True)
CACHE = PagedShape(batch=3, heads=4, kv_heads=2, max_context=37, mean_context=20, head_dim=16, page_size=8)
NAMES = ("eager", "sdpa math")
OPERATION = get_operation("flash_attention")


def draw(shape: AttentionShape = SHAPE) -> Inputs:
    return DEFINITION.make_inputs(shape, seed=3, device="cpu")


@pytest.mark.parametrize(
    ("case", "factor"), [("normal", 1.0), ("times 0.1", 0.1), ("times 10", 10.0), ("times 100", 100.0)]
)
def test_magnitudes_are_factors(case: str, factor: float) -> None:
    before, after = draw(), disturb(draw(), case)
    for name in ("q", "k", "v"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name) * factor)
    assert (after.causal, after.scale) == (before.causal, before.scale)


def test_noise_is_a_tenth_and_another_for_each_tensor() -> None:
    before = draw(replace(SHAPE, seq_q=200, seq_kv=200))
    after = disturb(before, "noisy", seed=1)
    noise = {name: getattr(after, name) - getattr(before, name) for name in ("q", "k", "v")}
    assert all(float(each.std()) == pytest.approx(0.1, rel=0.05) for each in noise.values())
    assert not torch.equal(noise["k"], noise["v"])
    assert not torch.equal(after.q, disturb(before, "noisy", seed=2).q)


@pytest.mark.parametrize("seq_q", [1, 13])
def test_outlier_is_one_token_of_each_sequence(seq_q: int) -> None:
    before = draw(replace(SHAPE, seq_q=seq_q, seq_kv=13))
    after = disturb(before, "outlier token")
    for name in ("q", "k", "v"):
        changed = (getattr(after, name) != getattr(before, name)).any(3).any(2)
        assert changed.sum(1).tolist() == [1, 1]
    grown = (after.k / before.k)[:, 0 if seq_q == 13 else 12]
    position = 6 if seq_q == 13 else 12  # the query's own key, last query and last key aligned
    torch.testing.assert_close(after.k[:, position], before.k[:, position] * 100.0)
    assert grown.shape == (2, 2, 16)


def test_equal_inputs_are_all_one() -> None:
    after = disturb(draw(), "all equal")
    assert all(bool((getattr(after, name) == 1.0).all()) for name in ("q", "k", "v"))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("case", CASES)
def test_slots_without_a_token_stay_empty(case: str, layout: str) -> None:
    before = PAGED.make_inputs(replace(CACHE, layout=layout), seed=0, device="cpu")
    after = disturb(before, case)
    assert bool(before.k_cache.isnan().any())
    assert torch.equal(after.k_cache.isnan(), before.k_cache.isnan())
    assert torch.equal(after.v_cache.isnan(), before.v_cache.isnan())
    assert bool(PAGED.reference(after)[0].isfinite().all())


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_outlier_of_a_cache_is_one_token_of_each_sequence(layout: str) -> None:
    before = PAGED.make_inputs(replace(CACHE, layout=layout), seed=0, device="cpu")
    after = disturb(before, "outlier token")
    for name in ("k_cache", "v_cache"):
        changed = getattr(after, name).nan_to_num() != getattr(before, name).nan_to_num()
        slots = changed if layout == "NHD" else changed.transpose(1, 2)
        assert int(slots.any(3).any(2).sum()) == 3
        for sequence, length in enumerate(before.seq_lens.tolist()):
            was, now = (
                gather_keys(getattr(each, name), each.page_table[sequence], length, layout=layout, dtype=torch.float64)
                for each in (before, after)
            )
            was[length // 2] *= 100.0
            torch.testing.assert_close(now, was, rtol=0.01, atol=0.0)
    assert torch.equal(after.q, before.q)


def test_quantized_caches_and_other_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"k_cache is torch\.int8"):
        disturb(PAGED.make_inputs(replace(CACHE, kv_dtype="int8"), seed=0, device="cpu"), "times 10")
    with pytest.raises(UnknownNameError, match=r"case='loud'.*times 100"):
        disturb(draw(), "loud")


def test_output_is_counted_and_compared() -> None:
    reference = torch.arange(6.0, dtype=torch.float64)
    out = reference.float()
    assert judge("c", OURS, out, reference, 0.1).verdict == "ok"
    out[5] = 5.5
    wrong = judge("c", OURS, out, reference, 0.4)
    assert (wrong.verdict, wrong.error, wrong.low, wrong.high) == ("over the limit", 0.5, 0.0, 5.5)
    assert judge("c", OURS, out, reference, math.inf).verdict == "finite"
    out[1] = math.inf
    assert judge("c", OURS, out, reference, math.inf).verdict == "infinite"
    out[0] = out[2] = math.nan
    broken = judge("c", OURS, out, reference, math.inf)
    assert (broken.nans, broken.infinities, broken.verdict) == (2, 1, "NaN")
    assert broken.is_failure
    assert not judge("c", "eager", out, reference, 0.1).is_failure  # not ours


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_baselines_are_examined_in_every_case(dtype: str) -> None:
    found = examine(OPERATION, replace(SHAPE, dtype=dtype), NAMES, kind="cpu")
    assert [(each.case, each.name) for each in found.findings] == [
        (case, name) for case in CASES for name in ("sdpa math", "eager")
    ]
    assert {each.verdict for each in found.findings} == {"ok"}
    assert dict(found.absent).keys() == {OURS}
    equal = found.findings[-1]
    assert (equal.low, equal.high) == pytest.approx((1.0, 1.0), abs=0.01)


@pytest.mark.slow
def test_overflow_of_eager_is_no_limit() -> None:
    """Scores of 100 times larger inputs exceed fp16, in which eager keeps them."""
    shape = replace(SHAPE, dtype="float16", seq_q=32, seq_kv=32, head_dim=64, head_dim_v=64, causal=False)
    found = examine(OPERATION, shape, NAMES, kind="cpu")
    verdicts = {each.name: each.verdict for each in found.findings if each.case == "times 100"}
    assert verdicts == {"sdpa math": "finite", "eager": "NaN"}
    assert not found.failures
    data = stability_data(found)
    assert {row["error_limit"] for row in data["findings"] if row["case"] == "times 100"} == {None}
    assert any("overflows" in note for note in stability_sheet(found).notes)


class Spoiled:
    """A kernel of ours whose launch is its fp64 reference, which ``spoil`` then changes."""

    def __init__(self, spoil: Callable[[torch.Tensor, Inputs], None]) -> None:
        self._spoil = spoil

    def launch(self, config: Config, inputs: Inputs, out: tuple[torch.Tensor, ...]) -> None:
        computed = DEFINITION.reference(inputs)[0].to(out[0].dtype)
        self._spoil(computed, inputs)
        out[0].copy_(computed)


def unstable(out: torch.Tensor, inputs: Inputs) -> None:
    """Overflows as a softmax does that subtracts no maximum."""
    if float(inputs.q.abs().max()) > 50.0:
        out.fill_(math.nan)


def inexact(out: torch.Tensor, inputs: Inputs) -> None:
    if bool((inputs.q == 1.0).all()):
        out[0, 0, 0, 0] += 0.01


def right(out: torch.Tensor, inputs: Inputs) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "cases"),
    [
        (right, set()),
        (unstable, {("times 100", "NaN"), ("outlier token", "NaN")}),
        (inexact, {("all equal", "over the limit")}),
    ],
)
def test_kernel_that_breaks_is_found(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[torch.Tensor, Inputs], None], cases: set[tuple[str, str]]
) -> None:
    monkeypatch.setattr(subjects, "load_kernel", lambda *names: Spoiled(spoil))
    monkeypatch.setattr(examination, "_why_not_ours", lambda shape, kind: None)
    found = examine(OPERATION, SHAPE, (), kind="cpu")
    assert len(found.findings) == len(CASES)
    assert {(each.case, each.verdict) for each in found.failures} == cases
    assert len(failure_lines(found)) == len(cases)


def test_kernel_that_does_not_run_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(out: torch.Tensor, inputs: Inputs) -> None:
        raise RuntimeError("no\nkernel image")

    monkeypatch.setattr(subjects, "load_kernel", lambda *names: Spoiled(refuse))
    monkeypatch.setattr(examination, "_why_not_ours", lambda shape, kind: None)
    found = examine(OPERATION, SHAPE, (), kind="cpu")
    assert {each.verdict for each in found.failures} == {"RuntimeError: no kernel image"}
    assert len(found.failures) == len(CASES)


def test_interpreter_takes_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = examine(OPERATION, replace(SHAPE, dtype="bfloat16"), (), kind="cpu")
    assert "raw bits" in dict(found.absent)[OURS]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_served_kernels_survive(dtype: str) -> None:
    dense = AttentionShape(batch=2, heads=8, seq_q=256, head_dim=64, dtype=dtype)
    paged = PagedShape(batch=4, heads=8, kv_heads=2, max_context=300, head_dim=64, dtype=dtype)
    for name, shape in (("flash_attention", dense), ("paged_decode", paged)):
        found = examine(get_operation(name), shape, NAMES, kind="cuda")
        assert any(each.name == OURS for each in found.findings)
        assert found.failures == ()
