"""Problems for naive attention, how they are run and judged, and what its kernels touch; for a GPU or the interpreter.

Run as a module it is the process in which Triton interprets, with these tasks beside those of all kernels.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from autotune.correctness import error_limit
from autotune.kernels.baselines.naive import Naive
from autotune.kernels.baselines.naive.launch import plan_launches
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.shape import AttentionShape
from tests.kernels.numerics import compare, dense_attention, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One problem: sizes, features and how the tensors lie in memory."""

    dtype: str = "float16"
    causal: bool = False
    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    seq_q: int = 129
    seq_kv: int = 129
    head_dim: int = 64
    head_dim_v: int | None = None  # None: head_dim
    scale: float | None = None
    layout: str = "contiguous"

    def __str__(self) -> str:
        widths = f"d{self.head_dim}" if self.head_dim_v is None else f"d{self.head_dim}v{self.head_dim_v}"
        extras = [*(["scale"] if self.scale else []), *([self.layout] if self.layout != "contiguous" else [])]
        mask = "causal" if self.causal else "full"
        heads = f"b{self.batch}h{self.heads}g{self.heads // self.kv_heads}"
        return "-".join([self.dtype, f"{self.seq_q}x{self.seq_kv}", widths, heads, mask, *extras])

    def features(self) -> dict[str, Any]:
        return {"causal": self.causal, "scale": self.head_dim**-0.5 if self.scale is None else self.scale}


LENGTHS: Final = ((1, 1), (17, 17), (129, 129), (1, 129), (17, 129), (129, 17))
HEADS: Final = ((2, 2), (4, 2), (2, 1))  # as many KV heads, fewer, one
WIDTHS: Final = ((64, None), (72, None), (128, None), (80, 24))


def make_cases() -> list[Case]:
    """Lengths with and without a mask, heads and widths, in fp16 and fp32; then what each of these meets but once."""
    grid = [
        Case(
            dtype=dtype,
            causal=causal,
            seq_q=seq_q,
            seq_kv=seq_kv,
            heads=HEADS[(index + causal) % 3][0],
            kv_heads=HEADS[(index + causal) % 3][1],
            head_dim=WIDTHS[(index + 2 * causal) % 4][0],
            head_dim_v=WIDTHS[(index + 2 * causal) % 4][1],
        )
        for dtype in ("float16", "float32")
        for causal in (False, True)
        for index, (seq_q, seq_kv) in enumerate(LENGTHS)
    ]
    products = [
        Case(seq_q=33, seq_kv=70, causal=True, heads=heads, kv_heads=kv_heads, head_dim=width, head_dim_v=width_v)
        for heads, kv_heads in HEADS
        for width, width_v in WIDTHS
    ]
    layouts = [
        Case(batch=2, heads=2, kv_heads=1, seq_q=40, seq_kv=70, layout=layout)
        for layout in ("transposed", "packed", "unaligned", "expanded")
    ]
    singles = [
        Case(head_dim=256, seq_q=17, seq_kv=33),
        Case(head_dim=8, seq_q=17, seq_kv=33),
        Case(head_dim=7, seq_q=17, seq_kv=33),  # no shape has it; the kernels do
        Case(seq_q=64, seq_kv=128, scale=0.3),
        Case(seq_q=2, seq_kv=4096, heads=1, kv_heads=1),  # one block of the softmax exactly
        Case(seq_q=2, seq_kv=4097, heads=1, kv_heads=1, causal=True),
        Case(seq_q=2, seq_kv=5000, heads=1, kv_heads=1, dtype="float32"),
        Case(seq_q=300, seq_kv=17, batch=2, causal=True),  # tiles of queries that see no key
    ]
    return [*grid, *products, *layouts, *singles]


def gpu_cases() -> list[Case]:
    """All cases, those in fp16 again in bf16, and two that fill a GPU."""
    cases = make_cases()
    large = [Case(batch=2, heads=16, kv_heads=4, seq_q=1000, seq_kv=2000, head_dim=128, causal=True)]
    large.append(replace(large[0], dtype="float32"))
    half = [replace(case, dtype="bfloat16") for case in [*cases, large[0]] if case.dtype == "float16"]
    return [*cases, *large, *half]


def case_failure(case: Case, device: str) -> str | None:
    """Run a case in buffers of NaN; what is wrong with its result or with the memory beside it, or None."""
    generator = torch.Generator(device=device).manual_seed(1)
    dtype = getattr(torch, case.dtype)

    def draw(length: int, heads: int, width: int) -> torch.Tensor:
        values = torch.randn(case.batch, length, heads, width, generator=generator, device=device).to(dtype)
        if case.layout == "expanded":
            tensor, _ = place((1, *values.shape[1:]), dtype, "contiguous", device)
            return tensor.copy_(values[:1]).expand(values.shape)
        tensor, _ = place(values.shape, dtype, case.layout, device)
        return tensor.copy_(values)

    head_dim_v = case.head_dim_v or case.head_dim
    q = draw(case.seq_q, case.heads, case.head_dim)
    k = draw(case.seq_kv, case.kv_heads, case.head_dim)
    v = draw(case.seq_kv, case.kv_heads, head_dim_v)
    out_layout = "contiguous" if case.layout == "expanded" else case.layout
    out, out_buffer = place((*q.shape[:3], head_dim_v), dtype, out_layout, device)
    scores, scores_buffer = place((case.batch, case.heads, case.seq_q, case.seq_kv), dtype, "contiguous", device)
    for launch in plan_launches(q, k, v, scores, out, **case.features()):
        launch.run()
    expected, _ = dense_attention(q, k, v, **case.features())
    eager, _ = dense_attention(q, k, v, **case.features(), dtype=dtype)
    found = compare(out, expected, error_limit(expected, eager, dtype))
    for tensor, buffer in ((out, out_buffer), (scores, scores_buffer)) if found is None else ():
        tensor.zero_()
        if buffer.isnan().sum().item() != buffer.numel() - tensor.numel():
            found = "memory beside the output or the scores was written"
    return found


def distant_failure(axis: int, stride: int, device: str) -> str | None:
    """Run attention over ``[B, S, H, D]`` tensors whose neighbours along an axis lie ``stride`` elements apart.

    All lie in one allocation, of which a CPU gives out only the pages that are touched.
    """
    shape = [1, 17, 1, 64]
    shape[axis] = 300 if axis == 1 else 3
    strides = [shape[1] * shape[2] * 64, shape[2] * 64, 64, 1]
    strides[axis] = stride
    buffer = torch.empty(shape[axis] * stride, dtype=torch.float16, device=device)
    q, k, v, out = (buffer.as_strided(shape, strides, index * 2**17) for index in range(4))
    generator = torch.Generator(device=device).manual_seed(2)
    for tensor in (q, k, v):
        tensor.copy_(torch.randn(shape, generator=generator, device=device))
    out.fill_(math.nan)
    scores = torch.empty(shape[0], shape[2], shape[1], shape[1], dtype=torch.float16, device=device)
    for launch in plan_launches(q, k, v, scores, out, causal=True, scale=0.125):
        launch.run()
    expected, _ = dense_attention(q, k, v, causal=True, scale=0.125)
    eager, _ = dense_attention(q, k, v, causal=True, scale=0.125, dtype=torch.float16)
    return compare(out, expected, error_limit(expected, eager, torch.float16))


def prepared_failure(fields: dict[str, Any], device: str) -> str | None:
    """Prepare a shape and call it twice, with new numbers in the inputs between; what is wrong, or None."""
    shape = AttentionShape(**fields)
    inputs, others = (DEFINITION.make_inputs(shape, seed=seed, device=device) for seed in (0, 1))
    call = Naive().prepare(shape, inputs)
    for _ in range(2):
        expected = dense_attention(inputs.q, inputs.k, inputs.v, causal=shape.causal, scale=inputs.scale)[0]
        eager, _ = dense_attention(
            inputs.q, inputs.k, inputs.v, causal=shape.causal, scale=inputs.scale, dtype=inputs.q.dtype
        )
        out = call()
        found = compare(out, expected, error_limit(expected, eager, inputs.q.dtype))
        if found is not None:
            return found
        for name in ("q", "k", "v"):
            getattr(inputs, name).copy_(getattr(others, name))
    return None


def touched_bytes(fields: dict[str, Any]) -> dict[str, int]:
    """Bytes that each kernel reads and writes under the interpreter, each address counted once a kernel and direction.

    The interpreter's loads and stores are watched: nothing of the formula or of the launches' arguments enters.
    """
    from triton.runtime.interpreter import InterpreterBuilder

    shape = AttentionShape(**fields)
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cpu")
    seen: dict[str, set[int]] = {}
    item_bytes = inputs.q.element_size()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def watch_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        seen.setdefault("read", set()).update(ptrs.data[mask.data].tolist())
        return load(self, ptrs, mask, *rest)

    def watch_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        seen.setdefault("written", set()).update(ptrs.data[mask.data].tolist())
        return store(self, ptrs, value, mask, *rest)

    q = inputs.q
    scores = q.new_empty((shape.batch, shape.heads, shape.seq_q, shape.seq_kv))
    out = q.new_empty((*q.shape[:3], shape.head_dim_v))
    counts = {}
    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = watch_load, watch_store
    try:
        for launch in plan_launches(q, inputs.k, inputs.v, scores, out, causal=shape.causal, scale=inputs.scale):
            seen.clear()
            launch.run()
            counts[launch.kernel.__name__] = item_bytes * sum(map(len, seen.values()))
    finally:
        InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = load, store
    return counts
