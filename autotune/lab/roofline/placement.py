"""Measure kernels and place them under the roofline: their intensity, their rate, what limits them and by how much."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.lab.formulas import naive_movements, product_flops, total_bytes, works
from autotune.lab.machine.ceilings import Ceilings
from autotune.lab.machine.processor import Processor, usable_bytes
from autotune.lab.machine.sampling import sample_times
from autotune.lab.machine.subjects import Family, first_line, subjects, why_not
from autotune.lab.memory.peaks import input_bytes, peak_bytes
from autotune.lab.roofline.derivation import MOVEMENTS
from autotune.shape import AttentionShape
from autotune.timing import summarize
from autotune.trial import Timing
from autotune.units import bytes_text, time_text

if TYPE_CHECKING:
    from autotune.kernels.flash_attention.definition import Inputs

Bound = Literal["memory", "compute"]

ROTATION: Final = 2.0  # times the last cache that the inputs of all calls are together
MAX_SETS: Final = 256  # of inputs; where they are too small for so many to exceed the cache, the text says it
KERNELS: Final = ("attention_scores", "softmax_rows", "weighted_sum")
PRODUCTS: Final = ("attention_scores", "weighted_sum", "matmul")
SERIAL: Final = ("naive", "eager")  # whose operations run one after another
FAR: Final = 0.5  # of what is attainable: below that, neither ceiling is what limits
EXPLAINED: Final = 0.9  # of a time: what takes so much of it explains it


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One kernel under the roof: ``flops`` of the products (of a softmax kernel its own), ``bytes`` by formula.

    ``timing`` is None where it was not measured, for the given ``reason``.
    """

    name: str
    shape: AttentionShape
    flops: int
    bytes: int
    timing: Timing | None
    reason: str = ""

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes

    @property
    def tflops(self) -> float | None:
        return None if self.timing is None else self.flops / self.timing.median_us / 1e6

    @property
    def gbps(self) -> float | None:
        return None if self.timing is None else self.bytes / self.timing.median_us / 1e3


@dataclass(frozen=True, slots=True)
class Placement:
    """The ceiling above a point, the rate that is attainable there, and the part of it that was reached."""

    bound: Bound
    attainable: float
    reached: float | None
    why: str


def place(point: RooflinePoint, ceilings: Ceilings) -> Placement:
    """Find the ceiling above a point, and how much of it was reached (1: the ceiling itself)."""
    bound: Bound = "memory" if point.intensity < ceilings.ridge else "compute"
    attainable = ceilings.attainable(point.intensity)
    reached = None if point.tflops is None else point.tflops / attainable
    return Placement(bound, attainable, reached, _why(point, ceilings, bound, reached))


def rate_unit(ceilings: Ceilings) -> tuple[float, str]:
    """Return the unit of rates on this machine, and what TFLOP/s are multiplied with; small ones have GFLOP/s."""
    return (1.0, "TFLOP/s") if ceilings.tflops >= 1.0 else (1000.0, "GFLOP/s")


def measure_points(
    shape: AttentionShape, processor: Processor, *, on_step: Callable[[str], object] = lambda step: None
) -> Iterator[RooflinePoint]:
    """Time everything that computes the shape on this device; what does not run is a point with a reason."""
    # Its inputs are drawn where they lie; loading it loads torch.
    from autotune.kernels.flash_attention.definition import DEFINITION

    count = count_sets(shape, processor)
    inputs = [DEFINITION.make_inputs(shape, seed=seed, device=processor.kind) for seed in range(count)]
    for family, baseline in subjects():
        reason = why_not(baseline, shape, processor.kind) or _too_large(family, shape, processor)
        if reason is not None:
            yield _point(baseline.name, family, shape, None, reason)
            continue
        on_step(f"timing {baseline.name} at {shape.seq_q}")
        try:
            with warnings.catch_warnings(action="ignore"):  # a backend that refuses says so there, and raises
                samples = sample_times([baseline.prepare(shape, drawn) for drawn in inputs], processor)
        except (RuntimeError, MissingDependencyError, BaselineUnavailableError) as error:
            yield _point(baseline.name, family, shape, None, first_line(error))
            continue
        yield _point(baseline.name, family, shape, summarize(samples))
        if family == "naive":
            on_step(f"timing each kernel of naive at {shape.seq_q}")
            yield from _naive_kernels(shape, inputs[0], processor)


def count_sets(shape: AttentionShape, processor: Processor) -> int:
    """Count the inputs to rotate over: together twice the last cache, so that no call finds its own there."""
    return min(MAX_SETS, math.ceil(ROTATION * processor.cache_bytes / input_bytes(shape)))


def model_bytes(family: Family, shape: AttentionShape) -> int:
    return total_bytes(MOVEMENTS[family](shape))


def kernel_model(kernel: str, shape: AttentionShape) -> tuple[int, int]:
    """Return FLOPs and bytes of one of the naive kernels, its scaling or softmax counted."""
    flops = sum(work.flops for work in works(shape) if work.kernel == kernel)
    return flops, total_bytes(movement for movement in naive_movements(shape) if movement.kernel == kernel)


def serial_us(name: str, shape: AttentionShape, ceilings: Ceilings) -> float:
    """Return the microseconds that one of ``SERIAL`` takes at least, each operation at the ceiling above it.

    That is more than the whole at its ceiling, since operations do not overlap. The products compute masked pairs, too.
    """
    total = 0.0
    widths = iter((shape.head_dim, shape.head_dim_v))
    pairs = shape.batch * shape.heads * shape.seq_q * shape.seq_kv
    for kernel, moved in itertools.groupby(MOVEMENTS[name](shape), key=lambda movement: movement.kernel):
        flops = 2 * pairs * next(widths) if kernel in PRODUCTS else 0
        total += max(total_bytes(moved) / ceilings.gbps / 1e3, flops / ceilings.tflops / 1e6)
    return total


def _point(name: str, family: Family, shape: AttentionShape, timing: Timing | None, reason: str = "") -> RooflinePoint:
    return RooflinePoint(name, shape, product_flops(shape), model_bytes(family, shape), timing, reason)


def _naive_kernels(shape: AttentionShape, inputs: "Inputs", processor: Processor) -> Iterator[RooflinePoint]:
    """Time the three kernels by themselves, each over the same scores; those are larger than a cache, or warm."""
    from autotune.kernels.baselines.naive.launch import plan_launches

    q, k, v = inputs.q, inputs.k, inputs.v
    scores = q.new_empty((shape.batch, shape.heads, shape.seq_q, shape.seq_kv))
    out = q.new_empty((shape.batch, shape.seq_q, shape.heads, shape.head_dim_v))
    launches = plan_launches(q, k, v, scores, out, causal=inputs.causal, scale=inputs.scale)
    for launch in launches:
        name = launch.kernel.__name__
        run: Callable[[], Any] = launch.run
        yield RooflinePoint(name, shape, *kernel_model(name, shape), summarize(sample_times([run], processor)))


def _too_large(family: Family, shape: AttentionShape, processor: Processor) -> str | None:
    needed, free = peak_bytes(family, shape), usable_bytes(processor)
    if needed <= free:
        return None
    return f"needs {bytes_text(needed)} beside its inputs, {bytes_text(free)} may be asked for"


def _why(point: RooflinePoint, ceilings: Ceilings, bound: Bound, reached: float | None) -> str:
    moving, computing = point.bytes / ceilings.gbps / 1e3, point.flops / ceilings.tflops / 1e6
    side = "left" if bound == "memory" else "right"
    text = (
        f"{bound}-bound: {point.intensity:.1f} FLOP/B is {side} of the ridge at {ceilings.ridge:.1f}; moving takes "
        f"{time_text(moving)} at least, computing {time_text(computing)}"
    )
    if point.timing is None or reached is None:
        return text
    held = count_sets(point.shape, ceilings.processor) * input_bytes(point.shape)
    if point.name not in KERNELS and held <= ceilings.processor.cache_bytes:
        text += f". Its inputs stay in the cache: {MAX_SETS} of them together fit it"
    if reached > 1.0 and bound == "memory":
        return f"{text}. Faster than the memory: a part of its traffic stays in the caches"
    if reached > 1.0:
        return f"{text}. Faster than the product that set the ceiling, which was measured at another moment"
    if reached < FAR:
        return f"{text}. Far from both: {_lost(point, point.timing.median_us, max(moving, computing), ceilings)}"
    return text


def _lost(point: RooflinePoint, took: float, explained: float, ceilings: Ceilings) -> str:
    """Describe the part of a time that no formula explains; a ceiling explains ``explained`` microseconds of it."""
    text = "they leave"
    if point.name in SERIAL:
        explained = serial_us(point.name, point.shape, ceilings)
        text = f"its operations, one after another, take {time_text(explained)} at their ceilings"
        if explained >= EXPLAINED * took:
            return f"{text}, which explains it"
        text += ", which leaves"
    left = f"{time_text(took - explained)} of {time_text(took)}"
    return f"{text} {left} unexplained: it may be {_may_take_time(point, ceilings.processor)}"


def _may_take_time(point: RooflinePoint, processor: Processor) -> str:
    """List possible costs that no formula here counts and that were not measured."""
    if point.name == "eager" and processor.kind == "cpu":
        return "page faults of memory that is allocated anew, the softmax's exponentials, or a busy machine"
    if point.name in SERIAL:
        return "launches, products too small or of too few tiles for the device, or a busy machine"
    if point.name in KERNELS:
        return "its launch, tiles too few or too small for the device, or a busy machine"
    width = 2 * (point.shape.head_dim + point.shape.head_dim_v)
    return f"the softmax between the products, an exponential for {width} FLOPs, too few tiles, or a busy machine"


def points_data(points: Sequence[RooflinePoint], ceilings: Ceilings) -> list[dict[str, Any]]:
    rates = ("intensity", "tflops", "gbps")
    return [
        asdict(point) | {name: getattr(point, name) for name in rates} | asdict(place(point, ceilings))
        for point in points
    ]
