"""Points under the roof: their places, what is measured here, and what says why it is not."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from autotune import hardware
from autotune.analysis import roofline
from autotune.analysis.ceilings import Ceilings, Rate
from autotune.analysis.clock import Call
from autotune.analysis.contenders import GPU_ONLY, Served, contenders, why_not
from autotune.analysis.processor import Processor
from autotune.analysis.roofline import Point, kernel_model, measure_points, model_bytes, place, points_data, serial_us
from autotune.analysis.traffic import product_flops, works
from autotune.kernels.baselines.naive import kernel_traffic
from autotune.shape import AttentionShape
from autotune.timing import summarize
from autotune.trial import Timing

PROCESSOR = Processor("cpu", "a CPU", 2**16, 4)
CEILINGS = Ceilings(PROCESSOR, "float32", (Rate("copy", 100.0),), (Rate("product", 1.0),))  # ridge at 10 FLOP/B
SHAPE = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=64, dtype="float32")


def point(flops: int, moved: int, microseconds: float, name: str = "sdpa flash") -> Point:
    return Point(name, SHAPE, flops, moved, Timing(microseconds, microseconds, microseconds, 3))


def test_left_of_the_ridge_the_memory_is_the_ceiling() -> None:
    """5 FLOP/B: 0.5 TFLOP/s attainable; 10 MFLOP in 40 us are 0.25."""
    found = place(point(10_000_000, 2_000_000, 40.0), CEILINGS)
    assert found.bound == "memory"
    assert (found.attainable, found.reached) == pytest.approx((0.5, 0.5))
    assert "5.0 FLOP/B is left of the ridge at 10.0; moving takes 20 us at least, computing 10 us" in found.why


def test_right_of_it_arithmetic_is() -> None:
    found = place(point(100_000_000, 1_000_000, 400.0), CEILINGS)
    assert found.bound == "compute"
    assert (found.attainable, found.reached) == pytest.approx((1.0, 0.25))
    assert "right of the ridge" in found.why
    assert "an exponential for 256 FLOPs" in found.why  # 2 (D + D_v)


def test_faster_than_the_memory_means_caches() -> None:
    assert "stays in the caches" in place(point(10_000_000, 2_000_000, 10.0), CEILINGS).why


def test_a_point_without_a_time_has_a_place_and_no_distance() -> None:
    found = place(Point("naive", SHAPE, 100, 10, None, GPU_ONLY), CEILINGS)
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
    assert "one after another, take 328 us" in why


def test_each_naive_kernel_has_its_own_flops_and_bytes() -> None:
    parts = [kernel_model(name, SHAPE) for name in roofline.KERNELS]
    assert sum(flops for flops, _ in parts) == sum(work.flops for work in works(SHAPE))
    assert [moved for _, moved in parts] == list(kernel_traffic(SHAPE).values())
    assert parts[1][0] == 5 * 2 * 64 * 64


def test_on_a_cpu_eager_and_flash_are_measured_and_the_others_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their calls compute attention, over inputs that are together twice the last cache, each drawn anew."""
    outs: list[list[torch.Tensor]] = []

    def sample(calls: Sequence[Call], processor: Processor) -> list[float]:
        outs.append([call() for call in calls])  # type: ignore[misc]
        return [3.0, 1.0, 2.0]

    monkeypatch.setattr(roofline, "sample_times", sample)
    monkeypatch.setattr(roofline, "ROTATION", 4.0)  # 4 x 2^16 bytes over 2^17 a set: two sets
    points = {found.name: found for found in measure_points(SHAPE, PROCESSOR)}
    assert list(points) == ["eager", "naive", "sdpa flash", "sdpa efficient", "sdpa cudnn", "autotune"]
    assert {name for name, found in points.items() if found.timing} == {"eager", "sdpa flash"}
    assert points["eager"].timing == summarize([3.0, 1.0, 2.0])
    assert points["naive"].reason == points["autotune"].reason == GPU_ONLY
    assert points["sdpa flash"].bytes == 4 * 2 * 64 * 64 * 4
    eager, flash = outs
    assert len(eager) == len(flash) == 2
    torch.testing.assert_close(eager, flash)
    assert not torch.equal(eager[0], eager[1])


def test_what_fails_is_a_point_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(calls: Sequence[Call], processor: Processor) -> list[float]:
        raise RuntimeError("No available kernel.\nAborting execution.")

    monkeypatch.setattr(roofline, "sample_times", refuse)
    assert next(iter(measure_points(SHAPE, PROCESSOR))).reason == "No available kernel."


def test_scores_that_do_not_fit_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "usable_bytes", lambda processor: 2**16)
    monkeypatch.setattr(roofline, "sample_times", lambda calls, processor: [1.0])
    eager, *_ = measure_points(SHAPE, PROCESSOR)
    assert eager.timing is None
    assert "GiB beside its inputs" in eager.reason


def test_a_mask_that_a_backend_lacks_is_named() -> None:
    windowed = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=64, window=8)
    flash = next(baseline for _, baseline in contenders() if baseline.name == "sdpa flash")
    assert "no window" in (why_not(flash, windowed, "cpu") or "")


def test_what_is_served_needs_a_gpu_and_calls_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    assert "GPU" in (Served().available() or "")
    calls: list[dict[str, Any]] = []

    def kernel(q: object, k: object, v: object, **options: Any) -> str:
        calls.append(options)
        return "out"

    monkeypatch.setattr("autotune.dispatch.get_kernel", lambda shape: kernel)
    from autotune.kernels.flash_attention import KERNEL

    run = Served().prepare(SHAPE, KERNEL.make_inputs(SHAPE, seed=0, device="cpu"))
    assert run() == "out"
    assert calls == [{"scale": 0.125, "softcap": None}] * 2  # once to compile


def test_plain_data_has_rates_and_places() -> None:
    given = [point(10_000_000, 2_000_000, 40.0), Point("naive", SHAPE, 100, 10, None, GPU_ONLY)]
    first, second = json.loads(json.dumps(points_data(given, CEILINGS)))
    assert (first["bound"], first["intensity"], first["tflops"], first["gbps"]) == ("memory", 5.0, 0.25, 50.0)
    assert (second["timing"], second["reason"], second["reached"]) == (None, GPU_ONLY, None)
