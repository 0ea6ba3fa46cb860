"""Time attention of e4m3 beside ours of bf16 and cuDNN's of e4m3 on the GPU here: ``python -m benchmarks.fp8_forward``.

Batch x seq = 16,384 and heads x head_dim = 2048, as FlashAttention's benchmark has them; lengths, head dims and masks
may be chosen. What is served is timed, pre-pass included, or with ``--tune 60`` what a search of so many seconds finds.
Samples of all calls are interleaved; each is the replay of a graph. Errors are the largest, and the root mean square by
that of the output, of the first rows of the first head against fp64 over what the bytes and their scales stand for;
those of bf16 are of the tensors before they were quantized, as are those of e4m3 in the last column.

Wanted at 16,384 tokens, full: 850 TFLOP/s of heads of 128, 800 of 256; exits with 1 below. The output is Markdown.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from autotune.registry import get_operation, load_definition, load_kernel
from autotune.shape import AttentionShape
from benchmarks.console import open_gpu, print_head, print_row, require_gpu
from benchmarks.shipped_problems import OPERATION, benchmark_shape

if TYPE_CHECKING:
    import torch

SAMPLES: Final = 25
ROWS: Final = 256  # whose error is measured, the last ones, which see all keys of any mask
WANTED: Final = {128: 850.0, 256: 800.0}  # TFLOP/s by head dim
LONG: Final = 16384
FP8: Final = "float8_e4m3fn"
FACTORS: Final = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")  # of cuDNN


class FloatErrors(NamedTuple):
    """The largest error of an output, and its root mean square by that of the reference."""

    largest: float
    relative: float


class Fp8Row(NamedTuple):
    """The times of one problem, in microseconds by name of the call, and its errors."""

    shape: AttentionShape
    config: str
    times_us: dict[str, float]
    errors: dict[str, FloatErrors]

    def rate(self, name: str) -> float | None:
        """Return TFLOP/s by the operation's cost, None of what was not timed."""
        if name not in self.times_us:
            return None
        return get_operation(OPERATION).cost(self.shape).flops / self.times_us[name] / 1e6


def errors_of(found: "torch.Tensor", expected: "torch.Tensor") -> FloatErrors:
    difference = found.double() - expected
    relative = (difference.square().mean() / expected.square().mean()).sqrt()
    return FloatErrors(difference.abs().max().item(), relative.item())


def last_rows(shape: AttentionShape, inputs: Any) -> Any:
    """Return the inputs of the first head of the first sequence, and of its last queries."""
    import torch

    from autotune.kernels.flash_attention.scales import NAMES, dequantize

    tensors = {name: getattr(inputs, name) for name in ("q", "k", "v")}
    scales = dict(zip(tensors, (getattr(inputs, name) for name in NAMES), strict=True))
    wide = {name: dequantize(tensor, scales[name], torch.float64)[:1, :, :1] for name, tensor in tensors.items()}
    wide["q"] = wide["q"][:, -ROWS:]
    return replace(inputs, **wide, **dict.fromkeys(NAMES))


def cudnn_graph(inputs: Any, out: "torch.Tensor", *, causal: bool, handle: Any = None) -> tuple[Any, list[Any]]:
    """Return a validated graph of cuDNN's attention of e4m3 into ``out``, and its tensors.

    Those are queries, keys and values, six factors of fp32, the output, and the largest weight and output.
    """
    import cudnn

    types = {"io": cudnn.data_type.FP8_E4M3, "intermediate": cudnn.data_type.FLOAT, "compute": cudnn.data_type.FLOAT}
    graph = cudnn.pygraph(**{f"{name}_data_type": each for name, each in types.items()}, handle=handle)

    def ordered(sizes: Sequence[int]) -> list[int]:  # as batch, head, position and column
        return [sizes[0], sizes[2], sizes[1], sizes[3]]

    operands = [
        graph.tensor(dim=ordered(each.shape), stride=ordered(each.stride()), data_type=cudnn.data_type.FP8_E4M3)
        for each in (inputs.q, inputs.k, inputs.v)
    ]
    factors = [graph.tensor(dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=cudnn.data_type.FLOAT) for _ in FACTORS]
    named = dict(zip(("q", "k", "v", *FACTORS), (*operands, *factors), strict=True))
    options = {"generate_stats": False, "attn_scale": inputs.scale, "use_causal_mask": causal}
    result, _, *largest = graph.sdpa_fp8(**named, **options)
    result.set_output(True).set_data_type(cudnn.data_type.BFLOAT16)
    result.set_dim(ordered(out.shape)).set_stride(ordered(out.stride()))
    for each in largest:
        each.set_output(True).set_data_type(cudnn.data_type.FLOAT).set_dim([1] * 4).set_stride([1] * 4)
    graph.validate()
    return graph, [*operands, *factors, result, *largest]


def cudnn_call(shape: AttentionShape, inputs: Any) -> Callable[[], object]:
    """Return a call of cuDNN's attention of e4m3 into bf16.

    It takes one scale a tensor, all of which are 1 here: its time does not depend on them, and its error is not shown.

    Raises:
        Exception: cuDNN or its frontend is absent, or cuDNN cannot do it here; of whatever type the frontend raises.
    """
    import cudnn
    import torch

    handle = cudnn.create_handle()
    out = torch.empty(*inputs.q.shape[:3], shape.head_dim_v, dtype=torch.bfloat16, device="cuda")
    graph, declared = cudnn_graph(inputs, out, causal=shape.causal, handle=handle)
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")
    numbers = [torch.ones(1, 1, 1, 1, device="cuda") for _ in range(len(FACTORS) + 2)]
    tensors = (inputs.q, inputs.k, inputs.v, *numbers[:-2], out, *numbers[-2:])
    memory = dict(zip(declared, tensors, strict=True))

    def run() -> None:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(memory, workspace, handle=handle)

    run()
    torch.cuda.synchronize()
    return run


def bound_call(shape: AttentionShape, inputs: Any, seconds: float) -> "tuple[Callable[[], torch.Tensor], str]":
    """Return a call of ours over these inputs, and the config that it runs: served, or found in so many seconds."""
    from autotune.dispatch import get_kernel
    from autotune.kernels.flash_attention.scales import NAMES
    from benchmarks.short_queries import search

    if seconds:
        candidate = search(shape, seconds)
        kernel: Any = load_kernel(OPERATION, candidate.implementation).bind(candidate.config, shape)
        name = str(candidate)
    else:
        kernel = get_kernel(shape)
        name = str(kernel.provenance)
    scales = {each: getattr(inputs, each) for each in NAMES if getattr(inputs, each) is not None}
    return lambda: kernel(inputs.q, inputs.k, inputs.v, scale=inputs.scale, **scales), name


def interleaved_us(calls: "dict[str, Callable[[], object]]") -> dict[str, float]:
    """Return the median time of each call, sampled in turns."""
    from autotune.timing import Stopwatch
    from autotune.trial import Policy

    found: dict[str, list[float]] = {name: [] for name in calls}
    watches = {name: Stopwatch([call], Policy()) for name, call in calls.items()}
    for watch in watches.values():
        watch.__enter__()
        watch.warm_up()
    for _ in range(SAMPLES):
        for name, watch in watches.items():
            found[name].append(watch.sample())
    for watch in watches.values():
        watch.__exit__(None, None, None)
    return {name: statistics.median(samples) for name, samples in found.items()}


def measure(shape: AttentionShape, seconds: float) -> Fp8Row:
    """Time one problem, and compare outputs with fp64."""
    from autotune.errors import one_line

    definition = load_definition(OPERATION)
    plain = replace(shape, dtype="bfloat16")
    inputs = {each.dtype: definition.make_inputs(each, seed=0, device="cuda") for each in (shape, plain)}
    ours, config = bound_call(shape, inputs[FP8], seconds)
    half, _ = bound_call(plain, inputs[plain.dtype], seconds)
    calls: dict[str, Callable[[], object]] = {"e4m3": ours, "bf16": half}
    try:
        calls["cudnn"] = cudnn_call(shape, inputs[FP8])
    except Exception as error:  # of the frontend's many kinds; one row without it is better than no table
        print(f"cudnn, {shape}: {one_line(error)}", file=sys.stderr)
    expected = {name: definition.reference(last_rows(shape, each))[0] for name, each in inputs.items()}

    def compared(call: Any, name: str) -> FloatErrors:
        return errors_of(call()[:1, -ROWS:, :1], expected[name])

    errors = {"e4m3": compared(ours, FP8), "bf16": compared(half, plain.dtype)}
    errors["e4m3 of bf16"] = compared(ours, plain.dtype)
    return Fp8Row(shape, config, interleaved_us(calls), errors)


def cells_of(row: Fp8Row) -> tuple[object, ...]:
    """Return the cells of a problem's row."""
    shape = row.shape
    rates = [row.rate(name) for name in ("e4m3", "bf16", "cudnn")]
    return (
        shape.head_dim,
        "causal" if shape.causal else "full",
        shape.seq_q,
        f"{row.times_us['e4m3']:.1f}",
        *("" if rate is None else f"{rate:.0f}" for rate in rates),
        *(f"{error.largest:.2g}, {error.relative:.2%}" for error in row.errors.values()),
        row.config,
    )


def is_wanted(rows: Sequence[Fp8Row]) -> bool:
    """Return False where a long problem without a mask was timed, and is slower than wanted."""
    long = [row for row in rows if row.shape.seq_q == LONG and not row.shape.causal]
    return all((row.rate("e4m3") or 0.0) >= WANTED.get(row.shape.head_dim, 0.0) for row in long)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp8_forward", description=__doc__)
    parser.add_argument("--tune", type=float, default=0.0, metavar="SECONDS", help="search each shape so long first")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--seq", type=int, nargs="+", default=[1024, 4096, LONG])
    parser.add_argument("--mask", choices=("full", "causal"), nargs="+", default=["full", "causal"])
    chosen = parser.parse_args(arguments)
    require_gpu("fp8_forward")
    rows = []
    with open_gpu("fp8_forward"):
        print()
        rates = ("us", "TFLOP/s", "of bf16", "of cuDNN, e4m3")
        print_head("head dim", "mask", "seq", *rates, "error", "error of bf16", "error by bf16 inputs", "config")
        for head_dim, mask, seq in itertools.product(chosen.head_dim, chosen.mask, chosen.seq):
            shape = replace(benchmark_shape(head_dim, mask == "causal", seq), dtype=FP8)
            rows.append(measure(shape, chosen.tune))
            print_row(*cells_of(rows[-1]))
    return 0 if is_wanted(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
