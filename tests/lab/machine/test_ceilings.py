"""Ceilings from times that are given, and the samples of a clock that counts calls."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from triton.language import target_info

from autotune.lab.machine import ceilings, sampling
from autotune.lab.machine.ceilings import Ceilings, Rate, measure_ceilings
from autotune.lab.machine.processor import Processor
from tests.kernels.test_precision import TARGETS

PROCESSOR = Processor("cpu", "a CPU", 2**20, 4)
GPU = Processor("cuda", "a GPU", 2**20, 4)


def test_the_roof_has_two_sides_that_meet_at_the_ridge() -> None:
    found = Ceilings(PROCESSOR, "float32", (Rate("read", 200.0), Rate("copy", 150.0)), (Rate("a", 1.0), Rate("b", 3.0)))
    assert (found.gbps, found.tflops, found.ridge) == (200.0, 3.0, 15.0)
    assert found.attainable(5.0) == pytest.approx(1.0)
    assert found.attainable(15.0) == found.attainable(1000.0) == 3.0


def test_rates_count_bytes_read_and_written_and_two_flops_a_multiply_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call takes a microsecond, its slower samples more: the best sample is the ceiling."""
    calls: list[Any] = []

    def sample(given: Sequence[sampling.TimedCall], processor: Processor) -> list[float]:
        calls.append(given[0]())
        return [5.0, 1.0, 2.0]

    monkeypatch.setattr(ceilings, "sample_times", sample)
    monkeypatch.setattr(ceilings, "MIN_BUFFER", {"cpu": 2**12})
    monkeypatch.setattr(ceilings, "WIDTHS", {"cpu": (8, 16)})
    found = measure_ceilings(PROCESSOR, "bfloat16")
    size = 4 * 2**20  # four times the last cache
    assert [rate.value for rate in found.memory] == [size / 1e3, 2 * size / 1e3]
    assert [rate.name for rate in found.memory] == ["read (sum) of 4 MiB", "copy of 4 MiB"]
    assert [rate.value for rate in found.compute] == [2 * 8**3 / 1e6, 2 * 16**3 / 1e6]
    assert calls[0] == size // 4  # the sum of as many ones
    assert str(calls[2].dtype) == "torch.bfloat16"


def test_after_a_long_product_no_wider_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "sample_times", lambda given, processor: [2e5])
    monkeypatch.setattr(ceilings, "MIN_BUFFER", {"cpu": 2**12})
    monkeypatch.setattr(ceilings, "WIDTHS", {"cpu": (8, 16)})
    assert len(measure_ceilings(PROCESSOR, "float32").compute) == 1


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's, which takes a microsecond for each byte of an element."""

    def sample(given: Sequence[sampling.TimedCall], processor: Processor) -> list[float]:
        product = given[0]()
        assert isinstance(product, torch.Tensor)
        return [float(product.itemsize)]

    monkeypatch.setattr(ceilings, "sample_times", sample)
    monkeypatch.setattr(ceilings, "_bandwidths", lambda processor: (Rate("copy", 1.0),))
    monkeypatch.setattr(ceilings, "WIDTHS", {"cpu": (8,), "cuda": (8, 16)})
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *size, device: randn(*size))


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize(
    ("processor", "dtype", "precision", "is_split"),
    [
        (GPU, "float32", "bf16x6", True),
        (GPU, "float32", "ieee", False),
        (GPU, "bfloat16", "bf16x6", False),
        (PROCESSOR, "float32", "bf16x6", False),
    ],
    ids=["split", "IEEE", "bfloat16", "CPU"],
)
def test_float32_counts_a_sixth_of_bfloat16_where_kernels_are_made_so(
    monkeypatch: pytest.MonkeyPatch,
    processor: Processor,
    dtype: str,
    precision: str,
    is_split: bool,
) -> None:
    monkeypatch.setattr("autotune.kernels.tiles.precision.product_precision", lambda dtype: precision)
    microseconds = getattr(torch, dtype).itemsize
    widths = ceilings.WIDTHS[processor.kind]
    expected = [Rate(f"{dtype} product of {n} x {n}", 2 * n**3 / microseconds / 1e6) for n in widths]
    if is_split:
        name = "a sixth of the bfloat16 product"
        expected += [Rate(f"{name} of {n} x {n}", 2 * n**3 / 6 / 2 / 1e6) for n in widths]
    assert list(measure_ceilings(processor, dtype).compute) == expected


def test_samples_of_a_cpu_are_microseconds_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only calls advance, by 100 us each: two inputs, one of them called as often as the other."""
    now, counts = [0.0], [0, 0]
    monkeypatch.setattr("autotune.lab.machine.sampling.time.perf_counter", lambda: now[0])

    def call(index: int) -> Any:
        def run() -> None:
            counts[index] += 1
            now[0] += 100e-6

        return run

    samples = sampling.sample_times([call(0), call(1)], PROCESSOR)
    assert samples == pytest.approx([100.0] * sampling.MAX_SAMPLES)
    assert counts[0] == counts[1] == 1 + 1 + 5 * sampling.MAX_SAMPLES  # warm-up, first look, samples of 1 ms


def test_a_slow_call_is_sampled_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("autotune.lab.machine.sampling.time.perf_counter", lambda: now[0])

    def run() -> None:
        now[0] += 2.0

    assert sampling.sample_times([run], PROCESSOR) == pytest.approx([2e6] * sampling.MIN_SAMPLES)


@pytest.mark.parametrize("name", [name for name, (target, _) in TARGETS.items() if target is not None])
def test_the_measured_ceiling_is_of_the_products_that_are_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, expected = TARGETS[name]
    assert target is not None
    monkeypatch.setattr(target_info, "current_target", lambda: target)
    assert ceilings._splits_float32(Processor("cuda", name, 2**20, 4)) == (expected == "bf16x6")
