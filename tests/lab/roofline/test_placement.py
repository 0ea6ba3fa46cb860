"""Points under the roof: their places, what is measured here, and what says why it is not."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.kernels.baselines.naive import kernel_traffic
from autotune.lab.formulas import product_flops, works
from autotune.lab.machine.ceilings import Ceilings, Rate
from autotune.lab.machine.processor import Processor
from autotune.lab.machine.sampling import TimedCall
from autotune.lab.machine.subjects import GPU_ONLY, ServedKernel, subjects, why_not
from autotune.lab.roofline import placement
from autotune.lab.roofline.placement import (
    RooflinePoint,
    count_sets,
    kernel_model,
    measure_points,
    model_bytes,
    place,
    points_data,
    serial_us,
)
from autotune.lab.roofline.words import point_sheet
from autotune.shape import AttentionShape
from autotune.timing import summarize
from autotune.trial import Timing
from tests import sample

PROCESSOR = Processor("cpu", "a CPU", 2**16, 4)
CEILINGS = Ceilings(PROCESSOR, "float32", (Rate("copy", 100.0),), (Rate("product", 1.0),))  # ridge at 10 FLOP/B
SHAPE = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=64, dtype="float32")


def point(flops: int, moved: int, microseconds: float, name: str = "sdpa flash") -> RooflinePoint:
    return RooflinePoint(name, SHAPE, flops, moved, Timing(microseconds, microseconds, microseconds, 3))


def test_left_of_the_ridge_the_memory_is_the_ceiling() -> None:
    """5 FLOP/B: 0.5 TFLOP/s attainable; 10 MFLOP in 40 us are 0.25."""
    found = place(point(10_000_000, 2_000_000, 40.0), CEILINGS)
    assert found.bound == "memory"
    assert (found.attainable, found.reached) == pytest.approx((0.5, 0.5))
    assert "5.0 FLOP/B is left of the ridge at 10.0; moving takes 20.0 us at least, computing 10.0 us" in found.why


def test_right_of_it_arithmetic_is() -> None:
    found = place(point(100_000_000, 1_000_000, 400.0), CEILINGS)
    assert found.bound == "compute"
    assert (found.attainable, found.reached) == pytest.approx((1.0, 0.25))
    assert "right of the ridge" in found.why
    assert "Far from both: they leave 300.0 us of 400.0 us unexplained: it may be the softmax" in found.why
    assert "an exponential for 256 FLOPs" in found.why  # 2 (D + D_v)


def test_faster_than_the_memory_means_caches() -> None:
    assert "stays in the caches" in place(point(10_000_000, 2_000_000, 10.0), CEILINGS).why


def test_a_point_without_a_time_has_a_place_and_no_distance() -> None:
    found = place(RooflinePoint("naive", SHAPE, 100, 10, None, GPU_ONLY), CEILINGS)
    assert found.reached is None
    assert found.bound == "compute"


def test_a_sequence_of_operations_takes_the_sum_of_their_ceilings() -> None:
    """Naive, S = D = 64, 2 heads, fp32: products of 1.048576 MFLOP over 98304 bytes, a softmax of 65536 bytes."""
    product_us, softmax_us = max(1048576 / 1e6, 98304 / 1e5), 65536 / 1e5
    assert serial_us("naive", SHAPE, CEILINGS) == pytest.approx(2 * product_us + softmax_us)
    slow = Ceilings(PROCESSOR, "float32", (Rate("copy", 1.0),), (Rate("product", 1.0),))
    assert serial_us("naive", SHAPE, slow) == pytest.approx(2 * 98304 / 1e3 + 65536 / 1e3)
    assert serial_us("eager", SHAPE, slow) == pytest.approx(2 * 98304 / 1e3 + 2 * 65536 / 1e3)
    why = place(point(product_flops(SHAPE), model_bytes("eager", SHAPE), 1e6, "eager"), slow).why
    assert "one after another, take 327.7 us at their ceilings, which leaves 999.672 ms of 1.000 s" in why


def far_from_both(name: str, microseconds: float, processor: Processor = PROCESSOR) -> str:
    """The text on a kernel by eager's numbers, behind these words; its operations take 328 us at their ceilings."""
    slow = Ceilings(processor, "float32", (Rate("copy", 1.0),), (Rate("product", 1.0),))
    return place(point(10**5, 10**5, microseconds, name), slow).why.partition("Far from both: ")[2]


def test_a_sum_that_takes_the_time_explains_it_and_nothing_is_left() -> None:
    told = "its operations, one after another, take 327.7 us at their ceilings, which explains it"
    assert far_from_both("eager", 350.0) == told
    assert far_from_both("eager", 300.0) == told  # a part of its traffic stays in the caches


def test_what_a_sum_leaves_is_said_and_what_it_may_be() -> None:
    told = far_from_both("eager", 127_936.5)
    assert "take 327.7 us at their ceilings, which leaves 127.609 ms of 127.936 ms unexplained: it may be" in told
    assert "page faults of memory that is allocated anew" in told
    on_gpu = far_from_both("eager", 127_936.5, replace(PROCESSOR, kind="cuda"))
    assert "it may be launches" in on_gpu
    assert "page faults" not in on_gpu


@pytest.mark.parametrize(
    ("name", "cause"), [("softmax_rows", "its launch, tiles too few"), ("autotune", "the softmax")]
)
def test_nothing_is_the_cause_of_a_time_that_was_not_accounted_for(name: str, cause: str) -> None:
    """100 us are those of the memory; of the others only guesses are known."""
    assert far_from_both(name, 400.0).startswith(f"they leave 300.0 us of 400.0 us unexplained: it may be {cause}")


def test_under_the_roof_a_time_has_its_unit_and_who_is_absent_stands_last() -> None:
    """The two that no CPU runs once for both lengths; what holds for one length with the length."""
    longer = replace(SHAPE, seq_q=128, seq_kv=128)
    points = [
        RooflinePoint("naive", SHAPE, 100, 10, None, GPU_ONLY),
        point(10_000_000, 2_000_000, 4000.0),
        RooflinePoint("eager", longer, 100, 10, None, "needs 9.0 GiB"),
        RooflinePoint("naive", longer, 100, 10, None, GPU_ONLY),
    ]
    found = point_sheet(points, CEILINGS)
    assert [(row[0], row[6]) for row in found.texts()] == [("sdpa flash", "4.000 ms (4.000-4.000)")]
    assert found.notes[0].startswith("sdpa flash at 64: ")
    assert found.notes[1:] == (f"not run: naive: {GPU_ONLY}", "not run: eager at 128: needs 9.0 GiB")


def test_each_naive_kernel_has_its_own_flops_and_bytes() -> None:
    parts = [kernel_model(name, SHAPE) for name in placement.KERNELS]
    assert sum(flops for flops, _ in parts) == sum(work.flops for work in works(SHAPE))
    assert [moved for _, moved in parts] == list(kernel_traffic(SHAPE).values())
    assert parts[1][0] == 5 * 2 * 64 * 64


def test_on_a_cpu_eager_and_flash_are_measured_and_the_others_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their calls compute attention, over inputs that are together twice the last cache, each drawn anew."""
    outs: list[list[torch.Tensor]] = []

    def sample(calls: Sequence[TimedCall], processor: Processor) -> list[float]:
        outs.append([call() for call in calls])  # type: ignore[misc]
        return [3.0, 1.0, 2.0]

    monkeypatch.setattr(placement, "sample_times", sample)
    monkeypatch.setattr(placement, "ROTATION", 3.0)  # 3 x 2^16 bytes over q, k and v of 98304: two sets
    steps: list[str] = []
    points = {found.name: found for found in measure_points(SHAPE, PROCESSOR, on_step=steps.append)}
    assert steps == ["timing eager at 64", "timing sdpa flash at 64"]
    assert list(points) == ["eager", "naive", "sdpa flash", "sdpa efficient", "sdpa cudnn", "autotune"]
    assert {name for name, found in points.items() if found.timing} == {"eager", "sdpa flash"}
    assert points["eager"].timing == summarize([3.0, 1.0, 2.0])
    assert points["naive"].reason == points["autotune"].reason == GPU_ONLY
    assert points["sdpa flash"].bytes == 4 * 2 * 64 * 64 * 4
    eager, flash = outs
    assert len(eager) == len(flash) == 2
    torch.testing.assert_close(eager, flash)
    assert not torch.equal(eager[0], eager[1])


H200 = Processor("cuda", "NVIDIA H200", 60 * 2**20, 132)
EPYC = Processor("cpu", "AMD EPYC", 32 * 2**20, 2)


@pytest.mark.parametrize(
    ("processor", "fields", "input_bytes"),
    [
        (EPYC, {"heads": 8, "seq_q": 128, "head_dim": 64, "dtype": "float32"}, 3 * 128 * 8 * 64 * 4),
        (H200, {"heads": 16, "seq_q": 128, "head_dim": 128}, 3 * 128 * 16 * 128 * 2),
        (H200, {"heads": 16, "kv_heads": 2, "seq_q": 128, "head_dim": 128}, 128 * (16 + 2 * 2) * 128 * 2),
        (H200, {"heads": 16, "seq_q": 16384, "head_dim": 128}, 3 * 16384 * 16 * 128 * 2),
    ],
    ids=["CPU, 128", "H200, 128", "H200, 128, groups", "H200, 16384"],
)
def test_inputs_are_together_twice_the_last_cache(
    processor: Processor, fields: dict[str, Any], input_bytes: int
) -> None:
    shape = AttentionShape(batch=1, **fields)
    held = count_sets(shape, processor) * input_bytes
    assert 2 * processor.cache_bytes <= held < 2 * processor.cache_bytes + input_bytes
    ceilings = replace(CEILINGS, processor=processor)
    found = RooflinePoint("eager", shape, 10**9, 10**9, Timing(1e4, 1e4, 1e4, 3))
    assert "stay in the cache" not in place(found, ceilings).why


def test_inputs_too_small_to_exceed_the_cache_are_said_to_stay_there() -> None:
    """A head of 128 on an H200: 256 inputs of 96 KiB lie in its L2; the naive kernels rotate over none."""
    shape = AttentionShape(batch=1, heads=1, seq_q=128, head_dim=128)
    ceilings = replace(CEILINGS, processor=H200)
    timing = Timing(100.0, 100.0, 100.0, 3)
    assert count_sets(shape, H200) == 256
    why = place(RooflinePoint("sdpa flash", shape, 10**7, 10**6, timing), ceilings).why
    assert "Its inputs stay in the cache: 256 of them together fit it" in why
    assert "Its inputs" not in place(RooflinePoint("softmax_rows", shape, 10**7, 10**6, timing), ceilings).why


def test_what_fails_is_a_point_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(calls: Sequence[TimedCall], processor: Processor) -> list[float]:
        raise RuntimeError("No available kernel.\nAborting execution.")

    monkeypatch.setattr(placement, "sample_times", refuse)
    assert next(iter(measure_points(SHAPE, PROCESSOR))).reason == "No available kernel."


def test_scores_that_do_not_fit_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "usable_bytes", lambda processor: 2**16)
    monkeypatch.setattr(placement, "sample_times", lambda calls, processor: [1.0])
    eager, *_ = measure_points(SHAPE, PROCESSOR)
    assert eager.timing is None
    assert eager.reason == "needs 96.0 KiB beside its inputs, 64.0 KiB may be asked for"


def test_a_mask_that_a_backend_lacks_is_named() -> None:
    windowed = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=64, window=8)
    flash = next(baseline for _, baseline in subjects() if baseline.name == "sdpa flash")
    assert "no window" in (why_not(flash, windowed, "cpu") or "")


def test_what_is_served_needs_a_gpu_and_calls_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    sample.hide_gpu(monkeypatch)
    assert "GPU" in (ServedKernel().available() or "")
    calls: list[dict[str, Any]] = []

    def kernel(q: object, k: object, v: object, **options: Any) -> str:
        calls.append(options)
        return "out"

    monkeypatch.setattr("autotune.dispatch.get_kernel", lambda shape: kernel)
    from autotune.kernels.flash_attention.definition import DEFINITION

    run = ServedKernel().prepare(SHAPE, DEFINITION.make_inputs(SHAPE, seed=0, device="cpu"))
    assert run() == "out"
    assert calls == [{"scale": 0.125, "softcap": None}] * 2  # once to compile


def test_plain_data_has_rates_and_places() -> None:
    given = [point(10_000_000, 2_000_000, 40.0), RooflinePoint("naive", SHAPE, 100, 10, None, GPU_ONLY)]
    first, second = json.loads(json.dumps(points_data(given, CEILINGS)))
    assert (first["bound"], first["intensity"], first["tflops"], first["gbps"]) == ("memory", 5.0, 0.25, 50.0)
    assert (second["timing"], second["reason"], second["reached"]) == (None, GPU_ONLY, None)
