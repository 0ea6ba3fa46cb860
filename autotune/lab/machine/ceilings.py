"""Measure a device's ceilings: memory bandwidth past its caches, and the rate of a large product."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from autotune.lab.machine.processor import Processor, usable_bytes
from autotune.lab.machine.sampling import sample_times
from autotune.roofline import Roof

CACHES: Final = 4  # times the last cache that a buffer is long
MIN_BUFFER: Final = {"cpu": 2**26, "cuda": 2**30}  # bytes; on an H200 shorter buffers do not reach its bandwidth
WIDTHS: Final = {"cpu": (512, 1024, 2048, 4096), "cuda": (4096, 8192)}  # of the square matrices that are multiplied
LONG_ENOUGH_US: Final = 1e5  # a product of wider matrices is not tried after one of this time


@dataclass(frozen=True, slots=True)
class Rate:
    """One attempt and the best rate that it reached, in GB/s or in TFLOP/s."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes (10^9 a second) and FLOPs (10^12 a second) of one dtype; each is the best of what was tried."""

    processor: Processor
    dtype: str
    memory: tuple[Rate, ...]
    compute: tuple[Rate, ...]

    @property
    def gbps(self) -> float:
        return max(rate.value for rate in self.memory)

    @property
    def tflops(self) -> float:
        return max(rate.value for rate in self.compute)

    @property
    def ridge(self) -> float:
        """The intensity in FLOPs a byte above which arithmetic is the limit."""
        return Roof(self.tflops, self.gbps).ridge

    def attainable(self, intensity: float) -> float:
        """Return the most TFLOP/s that a kernel of this intensity can reach (Williams et al., CACM 52(4), 2009).

        Example:
            >>> processor = Processor("cpu", "a CPU", 2**25, 8)
            >>> Ceilings(processor, "float32", (Rate("copy", 100.0),), (Rate("matmul", 2.0),)).attainable(10.0)
            1.0
        """
        return Roof(self.tflops, self.gbps).attainable(intensity)


def measure_ceilings(processor: Processor, dtype: str) -> Ceilings:
    """Read and copy a buffer of four times the last cache and more; multiply square matrices of that dtype.

    A copy counts the bytes that it reads and those that it writes (as STREAM does). fp32 products are torch's as it is
    set up: without TF32 unless the caller allowed it. Where our kernels make an fp32 product of six in bf16, a sixth of
    the bf16 rate counts as well.
    """
    return Ceilings(processor, dtype, _bandwidths(processor), _products(processor, dtype))


def ceilings_data(ceilings: Ceilings) -> dict[str, Any]:
    """Return the ceilings as plain data, as ``roofline.saved`` reads them."""
    data = asdict(ceilings)
    return {"machine": data.pop("processor"), **data}


def _bandwidths(processor: Processor) -> tuple[Rate, ...]:
    import torch

    wanted = max(CACHES * processor.cache_bytes, MIN_BUFFER[processor.kind])
    count = min(wanted, usable_bytes(processor) // 4) // 4
    source = torch.ones(count, dtype=torch.float32, device=processor.kind)
    target = torch.zeros_like(source)  # its pages are there before they are timed
    attempts: dict[str, tuple[int, Callable[[], Any]]] = {
        "read (sum)": (source.nbytes, source.sum),
        "copy": (2 * source.nbytes, lambda: target.copy_(source)),
    }
    return tuple(
        Rate(f"{name} of {source.nbytes / 2**20:.0f} MiB", moved / min(sample_times([call], processor)) / 1e3)
        for name, (moved, call) in attempts.items()
    )


def _products(processor: Processor, dtype: str) -> tuple[Rate, ...]:
    found = _square_products(processor, dtype, f"{dtype} product")
    if dtype == "float32" and _splits_float32(processor):
        found += _square_products(processor, "bfloat16", "a sixth of the bfloat16 product", parts=6)
    return found


def _splits_float32(processor: Processor) -> bool:
    if processor.kind != "cuda":
        return False
    from autotune.kernels.tiles.precision import splits_float32

    return splits_float32()


def _square_products(processor: Processor, dtype: str, name: str, *, parts: int = 1) -> tuple[Rate, ...]:
    """Measure square products; each counts as one of ``parts`` that make a whole product."""
    import torch

    rates = []
    for width in WIDTHS[processor.kind]:
        # Random data: on zeros an H200 is faster than it is on any real problem, as it draws less power.
        left, right = (torch.randn(width, width, device=processor.kind).to(getattr(torch, dtype)) for _ in range(2))
        out = torch.empty_like(left)

        def multiply(left: Any = left, right: Any = right, out: Any = out) -> object:
            return torch.matmul(left, right, out=out)

        fastest = min(sample_times([multiply], processor))
        rates.append(Rate(f"{name} of {width} x {width}", 2 * width**3 / parts / fastest / 1e6))
        if fastest > LONG_ENOUGH_US:
            break
    return tuple(rates)
