"""The Gluon kernel of e4m3, simulated over NumPy and judged by its bound in fp64, and compiled for sm_90."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from autotune import get_kernel
from autotune.device import NVIDIA_H200
from autotune.errors import AutotuneError, InputMismatchError, UnsupportedCallError
from autotune.functional import attention
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.kernels.flash_attention.gluon_hopper_fp8 import launch as launch_module
from autotune.kernels.flash_attention.gluon_hopper_fp8.launch import launch_bytes
from autotune.kernels.flash_attention.scales import Scale, check_tensor_scale, dequantize, quantize
from autotune.registry import implementations_of, load_baselines
from autotune.search_spaces.flash_attention.gluon_hopper_fp8 import IMPLEMENTATION, shared_bytes
from autotune.search_spaces.flash_attention.makespan import estimate, schedule_of
from autotune.search_spaces.flash_attention.tile_order import ORDERS
from autotune.shape import AttentionShape, PagedShape
from autotune.space import Config
from tests.contract.compiling import compile_sample
from tests.contract.simulating import simulated_launches
from tests.kernels.flash_attention.bytes_sample import check_sample

SPACE: Final = IMPLEMENTATION.space
FP8: Final = torch.float8_e4m3fn
HEADS, KV_HEADS, WIDTH = 2, 1, 32
OPTIONS: Final[dict[str, Any]] = {
    "consumers": 2,
    "BLOCK_K": 64,
    "slots": 2,
    "query_slots": 1,
    "ping_pong": "off",
    "values": "late",
    "sums": "block",
    "workers": "sm",
    "section": 1,
    "row_order": "natural",
}
PER: Final = ("tensor", "head", "sequence")


def bound_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, window: int | None, softcap: float | None,
    scale: float, block: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The output and the log-sum-exp in fp64, and how far each element of the output may be off (docs/fp8-forward.md).

    One head: q ``[S_q, D]``, k ``[S_kv, D]``, v ``[S_kv, D_v]``.
    """
    score_error = scale * -(-q.shape[1] // 32) * 33 * 2.0**-13 * q.norm(dim=1).max() * k.norm(dim=1).max()
    scores = q @ k.T * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    ahead = torch.arange(k.shape[0])[None, :] - (torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0])
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if causal:
        hidden |= ahead > 0
    if window is not None:
        hidden |= ahead.abs() >= window
    scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.softmax(scores, 1).nan_to_num(0.0)
    seen = (~hidden).double()
    largest = weights.amax(1, keepdim=True)
    # Of a weight: half a unit of e4m3 of it, or half the least step, whichever is more; and what its score is off.
    rounding = torch.maximum(weights * 2.0**-4, seen * largest * 2.0**-18)
    scattered = math.expm1(2 * score_error)
    of_weights = (1 + scattered) * (rounding @ v.abs()) + scattered * (weights @ v.abs())
    out = weights @ v
    # Of sums: 33 addends a step, each cut off below 2 ** -13 of what is no larger than all weighted values of the sum.
    steps = block // 32
    of_sums = steps * 33 * 2.0**-13 * (1 + 2.0**-4) * (weights @ v.abs())
    return out, torch.logsumexp(scores, 1), of_weights + of_sums + out.abs() * 2.0**-8 + 1e-6


def check(
    seq_q: int,
    seq_kv: int,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    widths: tuple[int, int] = (WIDTH, WIDTH),
    per: tuple[str, str, str] = PER,
    dtype: torch.dtype = torch.bfloat16,
    large: bool = False,
    transposed: bool = False,
    **options: Any,
) -> float:
    """Simulate a problem of two heads, hold each element to its bound; return the largest share of a bound in use."""
    width, width_v = widths
    generator = torch.Generator().manual_seed(seq_q + seq_kv)
    sizes = ((seq_q, HEADS, width), (seq_kv, KV_HEADS, width), (seq_kv, KV_HEADS, width_v))
    wide = [torch.randn(2, *size, generator=generator) for size in sizes]
    if large:
        wide[0] *= 6.0
    (q, q_scale), (k, k_scale), (v, v_scale) = (quantize(each, FP8, how) for each, how in zip(wide, per, strict=True))
    if transposed:  # [B, H, S, D] in memory
        q, k, v = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v))
    out = torch.full((2, seq_q, HEADS, width_v), math.nan, dtype=dtype)
    lse = torch.full((2, HEADS, seq_q), math.nan)
    features: dict[str, Any] = {"causal": causal, "window": window, "softcap": softcap, "scale": width**-0.5}
    with pytest.MonkeyPatch.context() as patch:
        simulated_launches(launch_module, patch)
        scales: dict[str, Any] = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        launch_bytes(q, k, v, out, lse, **features, **scales, options=OPTIONS | options)
    pairs = ((q, q_scale), (k, k_scale), (v, v_scale))
    q, k, v = (dequantize(*pair, torch.float64) for pair in pairs)
    used = 0.0
    for batch in range(2):
        for head in range(HEADS):
            block = options.get("BLOCK_K", 64) if options.get("sums", "block") == "block" else seq_kv + 255
            one = (q[batch, :, head], k[batch, :, 0], v[batch, :, 0])
            expected, expected_lse, bound = bound_of(*one, **features, block=block)
            error = (out[batch, :, head].double() - expected).abs()
            assert bool((error <= bound).all()), f"{(error / bound).max()} of its bound"
            used = max(used, float((error / bound).max()))
            slack = features["scale"] * (-(-width // 32)) * 33 * 2.0**-13
            slack = float(slack * one[0].norm(dim=1).max() * one[1].norm(dim=1).max())
            torch.testing.assert_close(lse[batch, head].double(), expected_lse, atol=slack + 1e-4, rtol=0)
    return used


def test_a_causal_problem_of_odd_lengths_uses_much_of_its_bound() -> None:
    assert check(100, 133, causal=True) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seq_q", "seq_kv"), [(1, 1), (1, 300), (64, 64), (200, 333), (333, 200)])
def test_lengths(seq_q: int, seq_kv: int, causal: bool) -> None:
    check(seq_q, seq_kv, causal=causal)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 60, 1000])
def test_windows(window: int, causal: bool) -> None:
    check(200, 257, causal=causal, window=window)
    check(257, 200, causal=causal, window=window)


@pytest.mark.slow
def test_softcap_scores_far_apart_and_other_layouts() -> None:
    check(200, 333, causal=True, softcap=5.0)
    check(200, 333, large=True)
    check(200, 333, transposed=True, dtype=torch.float16)


@pytest.mark.slow
@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("values", ["early", "late"])
@pytest.mark.parametrize("sums", ["block", "running"])
def test_schedules(consumers: int, values: str, sums: str) -> None:
    check(300, 300, causal=True, consumers=consumers, values=values, sums=sums)
    if consumers > 1:
        check(300, 300, causal=True, consumers=consumers, values=values, sums=sums, ping_pong="issue")


@pytest.mark.slow
@pytest.mark.parametrize("block_k", [64, 128, 256])
@pytest.mark.parametrize("widths", [(96, 40), (64, 64), (32, 16), (16, 8), (32, 128), (32, 256)])
def test_blocks_and_widths(block_k: int, widths: tuple[int, int]) -> None:
    check(90, 300, BLOCK_K=block_k, widths=widths, slots=2)
    check(90, 300, BLOCK_K=block_k, widths=widths, slots=2, values="early")


@pytest.mark.parametrize("per", [("head", "sequence", "tensor"), ("sequence", "tensor", "head")])
def test_scales_of_every_kind(per: tuple[str, str, str]) -> None:
    check(65, 70, per=per)


def test_quantizing_keeps_the_largest_and_is_undone_within_half_a_step() -> None:
    wide = torch.randn(2, 50, 3, 16, generator=torch.Generator().manual_seed(0))
    for per, sizes in (("tensor", None), ("head", (3,)), ("sequence", (2, 3))):
        found, scale = quantize(wide, FP8, per)
        assert (tuple(scale.shape) if isinstance(scale, torch.Tensor) else None) == sizes
        assert found.float().abs().max() == 448.0
        error = (dequantize(found, scale, torch.float64) - wide).abs()
        assert bool((error <= wide.abs() * 2.0**-4 + wide.abs().max() * 2.0**-18).all())


def tensors(**changed: torch.Tensor) -> dict[str, Any]:
    own = {name: torch.zeros(1, 64, 4, 128, dtype=FP8) for name in ("q", "k", "v")}
    return own | {"out": torch.zeros(1, 64, 4, 128, dtype=torch.bfloat16), "lse": None} | changed


FEATURES: Final[dict[str, Any]] = {"causal": False, "window": None, "softcap": None, "scale": 1.0}


def test_what_tma_cannot_copy_is_refused_by_name_and_values_are_not_copied_so() -> None:
    odd = torch.zeros(64 * 512 + 3, dtype=FP8)[3:].view(1, 64, 4, 128)
    with pytest.raises(UnsupportedCallError, match=r"^k: its address is 3 bytes past a multiple of 16"):
        launch_bytes(**tensors(k=odd), **FEATURES, options=OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        simulated_launches(launch_module, patch)
        launch_bytes(**tensors(v=odd), **FEATURES, options=OPTIONS)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.ones(3), r"\(3,\) float32 on cpu; expected a number, or float32 of \(1,\), \(4,\) or \(1, 4\) on cpu"),
        (torch.ones(4).half(), "float16"),
        (-1.0, "-1.0 is not allowed; expected a positive number"),
        (True, "True is not allowed"),
        (torch.ones(4, requires_grad=True), "gradients"),
    ],
)
def test_what_is_no_scale_is_refused(scale: Scale, message: str) -> None:
    with pytest.raises(AutotuneError, match=rf"k_scale.*{message}"):
        check_tensor_scale("k_scale", scale, torch.zeros(1, 64, 4, 128))


def test_scales_belong_to_e4m3_alone() -> None:
    q = torch.zeros(1, 8, 2, 64, dtype=torch.float16)
    with pytest.raises(InputMismatchError, match=r"v_scale is 2\.0; expected None for float16, not float8_e4m3fn"):
        attention(q, q, q, v_scale=2.0)


def test_no_keys_give_zeros_of_16_bits() -> None:
    q, k = torch.zeros(1, 8, 2, 64, dtype=FP8), torch.zeros(1, 0, 2, 64, dtype=FP8)
    out, lse = attention(q, k, k, return_lse=True, q_scale=2.0)
    assert out.dtype == torch.bfloat16
    assert bool((out == 0).all())
    assert bool((lse == -math.inf).all())


SHAPE: Final = AttentionShape(batch=2, heads=16, seq_q=512, head_dim=64, dtype="fp8")


def test_it_alone_computes_e4m3_and_nothing_else() -> None:
    takers = [each.name for each in implementations_of("flash_attention") if each.supports(SHAPE, NVIDIA_H200) is None]
    assert takers == ["gluon_hopper_fp8"]
    for each in implementations_of("flash_attention"):
        if each.name not in takers:
            assert "float8_e4m3fn" in str(each.supports(SHAPE, NVIDIA_H200)), each.name
    assert "bfloat16" in str(IMPLEMENTATION.supports(replace(SHAPE, dtype="bfloat16"), NVIDIA_H200))
    assert "sm_100" in str(IMPLEMENTATION.supports(SHAPE, replace(NVIDIA_H200, arch="sm_100")))
    assert "head_dim=72" in str(IMPLEMENTATION.supports(replace(SHAPE, head_dim=72), NVIDIA_H200))


def test_no_baseline_takes_e4m3() -> None:
    for each in load_baselines("flash_attention"):
        assert "float8_e4m3fn" in str(each.unsupported(SHAPE)), each.name


def test_it_is_what_get_kernel_serves_for_a_shape_of_e4m3() -> None:
    assert "gluon_hopper_fp8" in str(get_kernel(SHAPE, device="NVIDIA H200").provenance)


def test_no_other_dtype_of_one_byte_is_one_of_dense_tensors_nor_this_one_of_paged_queries() -> None:
    with pytest.raises(AutotuneError, match="float8_e5m2"):
        replace(SHAPE, dtype="float8_e5m2")
    with pytest.raises(AutotuneError, match="float8_e4m3fn"):
        PagedShape(batch=1, heads=8, max_context=512, head_dim=64, dtype="float8_e4m3fn")


def test_random_inputs_are_quantized_and_their_outputs_are_of_16_bits() -> None:
    inputs = DEFINITION.make_inputs(replace(SHAPE, heads=2, kv_heads=2, seq_q=9, seq_kv=9), seed=0, device="cpu")
    assert (inputs.q.dtype, inputs.k.dtype, inputs.v.dtype) == (FP8, FP8, FP8)
    assert [each.dtype for each in DEFINITION.empty_outputs(inputs)] == [torch.bfloat16, torch.float32]
    assert DEFINITION.statistic_slack(inputs) > 0.0


@pytest.mark.parametrize("head_dims", [(16, 16), (64, 64), (96, 96), (128, 128), (256, 256), (192, 128)])
@pytest.mark.parametrize("softcap", [False, True])
def test_the_default_is_valid_and_the_space_has_others(head_dims: tuple[int, int], softcap: bool) -> None:
    head_dim, head_dim_v = head_dims
    for seq_q, seq_kv, causal in ((4096, 4096, False), (1, 4096, False), (100, 30, True)):
        sizes: dict[str, Any] = {"seq_q": seq_q, "seq_kv": seq_kv, "head_dim": head_dim, "head_dim_v": head_dim_v}
        shape = AttentionShape(batch=2, heads=16, **sizes, causal=causal, softcap=softcap, dtype="fp8")
        default = SPACE.default(shape, NVIDIA_H200)
        assert SPACE.why_invalid(default, shape, NVIDIA_H200) is None
        assert 10 <= len(list(SPACE.configs(shape, NVIDIA_H200))) <= 3000
        assert shared_bytes(default, shape) <= NVIDIA_H200.shared_memory_bytes


@pytest.mark.parametrize(
    ("fields", "tile", "order"),
    [
        ({}, (3, 128, 2), ("sm", 1, "natural")),
        ({"causal": True}, (2, 128, 2), ("sm", 1, "natural")),
        ({"head_dim": 128, "seq_q": 1024}, (2, 128, 2), ("sm", 1, "natural")),
        ({"head_dim": 128}, (2, 128, 1), ("sm", 1, "natural")),
        ({"head_dim": 128, "softcap": True}, (2, 64, 1), ("sm", 1, "natural")),
        ({"head_dim": 256, "causal": True}, (2, 64, 1), ("sm", 1, "natural")),
        ({"head_dim": 64, "seq_q": 200}, (2, 128, 2), ("sm", 1, "natural")),
    ],
    ids=str,
)
def test_what_the_default_is(fields: dict[str, Any], tile: tuple[int, int, int], order: tuple[str, int, str]) -> None:
    shape = AttentionShape(**{"batch": 4, "heads": 8, "seq_q": 4096, "head_dim": 64, "dtype": "fp8", **fields})
    found = SPACE.default(shape, NVIDIA_H200)
    assert (found["consumers"], found["BLOCK_K"], found["query_slots"]) == tile
    assert (found["workers"], found["section"], found["row_order"]) == order
    assert (found["ping_pong"], found["values"], found["sums"]) == ("off", "early", "block")


def test_its_tiles_come_in_the_order_that_ends_the_soonest_by_estimates() -> None:
    """Of a long prompt of 8/2 heads, one program an SM in alternating order would take 2.2 times as long."""
    shape = AttentionShape(batch=1, heads=8, kv_heads=2, seq_q=8535, head_dim=64, causal=True, dtype="fp8")
    found = SPACE.default(shape, NVIDIA_H200)
    ends = {}
    for workers, section, row_order in ORDERS:
        config = Config({**found, "workers": workers, "section": section, "row_order": row_order})
        ends[config] = estimate(shape, schedule_of(config, NVIDIA_H200), 132)
    assert ends[found] == min(ends.values())
    alternating = Config({**found, "workers": "sm", "section": 1, "row_order": "alternating"})
    assert ends[alternating] > 2 * ends[found]


@pytest.mark.slow
def test_configs_compile_for_hopper_without_a_spill_or_an_exchange_in_the_steady_loop(tmp_path: Path) -> None:
    check_sample(compile_sample("tests.kernels.flash_attention.bytes_sample", "sm_90", tmp_path))
