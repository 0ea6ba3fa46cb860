"""Compare a profiler's counts with the model's predictions, for naive and for flash attention."""

import sys
from dataclasses import dataclass, replace
from typing import Final

from autotune.errors import AutotuneError
from autotune.lab.machine.cuda_tools import find_tool
from autotune.lab.machine.processor import Processor
from autotune.lab.roofline.dram import Dram, batch_past_l2, fused_dram, naive_dram, sum_dram
from autotune.lab.roofline.ncu import Counted, count_kernels
from autotune.shape import AttentionShape

FUSED: Final = "flash_attention_forward"
TOLERANCE: Final = 0.15  # of the count, within which the model is said to hold


@dataclass(frozen=True, slots=True)
class CountedBeside:
    """Memory traffic by the model and by the counters, of one kernel or of all three ``naive`` ones together."""

    kernel: str
    shape: AttentionShape
    predicted: Dram
    counted: Counted

    @property
    def deviation(self) -> float:
        """The prediction's excess over the count, as a part of the count; negative where it is lower."""
        return self.predicted.total / self.counted.total - 1.0

    @property
    def agrees(self) -> bool:
        return abs(self.deviation) <= TOLERANCE


def compare_with_ncu(
    shape: AttentionShape, processor: Processor, *, keeps_batch: bool = False, ncu: str | None = None
) -> list[CountedBeside]:
    """Count the naive kernels and the served one under Nsight Compute, beside the model.

    Unless ``keeps_batch``, the batch is raised until what is moved is eight times the L2.

    Raises:
        MissingDependencyError: there is no Nsight Compute, or it may not count here.
        AutotuneError: it saw other kernels than these.
    """
    from autotune.dispatch import get_kernel

    path = ncu or find_tool("ncu")
    if not keeps_batch:
        shape = replace(shape, batch=max(shape.batch, batch_past_l2(shape, processor.cache_bytes)))
    _give_back_memory()
    config = get_kernel(shape, device=processor.name).config
    tile = config.integer("BLOCK_Q"), config.integer("BLOCK_K")
    predicted = (*naive_dram(shape, processor.cache_bytes), fused_dram(shape, *tile, processor.cache_bytes))
    return compare(shape, predicted, count_kernels(shape, ncu=path))


def compare(shape: AttentionShape, predicted: tuple[Dram, ...], counted: list[Counted]) -> list[CountedBeside]:
    """Pair them by kernel, the last launch of each; the naive kernels' sum stands before the fused one.

    Raises:
        AutotuneError: a kernel that was predicted was not counted.
    """
    last = {found.kernel: found for found in counted}
    missing = [dram.kernel for dram in predicted if dram.kernel not in last]
    if missing:
        raise AutotuneError(f"Nsight Compute did not count {missing[0]}; it saw {', '.join(last) or 'no kernel'}")
    pairs = [CountedBeside(dram.kernel, shape, dram, last[dram.kernel]) for dram in predicted]
    naive, fused = [p for p in pairs if p.kernel != FUSED], [p for p in pairs if p.kernel == FUSED]
    return [*naive, _together(shape, naive), *fused]


def _give_back_memory() -> None:
    """Free the GPU memory that torch's allocator caches: the child process needs it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.cuda.empty_cache()


def _together(shape: AttentionShape, pairs: list[CountedBeside]) -> CountedBeside:
    """Add up the bytes; weight the percents with them, since times are not counted."""
    counts = [pair.counted for pair in pairs]
    moved = sum(count.total for count in counts) or 1

    def mean(name: str) -> float:
        return float(sum(getattr(count, name) * count.total for count in counts) / moved)

    return CountedBeside(
        "naive",
        shape,
        sum_dram("naive", (pair.predicted for pair in pairs)),
        Counted(
            "naive",
            sum(count.read for count in counts),
            sum(count.write for count in counts),
            mean("memory_percent"),
            mean("compute_percent"),
        ),
    )
