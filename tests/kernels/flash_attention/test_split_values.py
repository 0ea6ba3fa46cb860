"""Attention over split values beside what the contract asks: heads of 512 by their defaults, strides, its binaries."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch

import autotune
from autotune.correctness import Verdict, check_config, make_cases
from autotune.device import NVIDIA_H200
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.kernels.flash_attention.triton_split_values import KERNEL
from autotune.search_spaces.flash_attention.triton_split_values import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Status
from tests.contract.compiling import compile_sample
from tests.contract.interpreting import interpret
from tests.kernels.flash_attention.split_values_sample import OTHERS
from tests.kernels.numerics import dense_attention

CONFIG: Final = Config(BLOCK_Q=16, BLOCK_K=16, BLOCK_V=128, num_warps=1, num_stages=1, loads="descriptor")
SHAPE: Final = AttentionShape(
    batch=2, heads=2, kv_heads=1, seq_q=20, seq_kv=30, head_dim=272, head_dim_v=328, dtype="float16", causal=True
)
TOLERANCE: Final = 4e-3
FEATURES: Final[dict[str, dict[str, Any]]] = {
    "causal": {"causal": True},
    "full": {},
    "window": {"causal": True, "window": 100},
    "softcap": {"causal": True, "softcap": True},
    "sinks": {"causal": True, "window": 100, "sinks": True},
    "padding": {"attn_mask": "boolean", "causal": True},
    "bias": {"attn_mask": "additive", "sinks": True},
    "images": {"causal": True, "kv_ends": True},
}
SIZES: Final[dict[str, dict[str, Any]]] = {
    "square": {"seq_q": 300},
    "few queries": {"seq_q": 70, "seq_kv": 411},
    "one": {"seq_q": 1, "seq_kv": 333},
}


def draw(lay_out: str, device: str) -> list[torch.Tensor]:
    """Draw queries, keys and values: by head in memory, alike for all sequences, or where TMA copies nothing."""
    generator = torch.Generator(device=device).manual_seed(3)
    found = []
    for length, heads, width in ((20, 2, 272), (30, 1, 272), (30, 1, 328)):
        drawn = torch.randn(2, length, heads, width, generator=generator, device=device).half()
        if lay_out == "by head":
            drawn = drawn.transpose(1, 2).contiguous().transpose(1, 2)
        elif lay_out == "expanded":
            drawn = drawn[:1].expand(2, -1, -1, -1)
        elif lay_out == "odd":
            drawn = torch.nn.functional.pad(drawn, (0, 3))[..., :width]
        elif lay_out == "shifted":
            room = torch.zeros(drawn.numel() + 1, dtype=drawn.dtype, device=device)[1:].view(drawn.shape)
            drawn = room.copy_(drawn)
        found.append(drawn)
    return found


def errors_of(lay_out: str, loads: str, device: str) -> tuple[float, float, bool]:
    """Return the largest errors of the output and of the log-sum-exp, and if ``out``, of other strides, was filled."""
    q, k, v = draw(lay_out, device)
    room = torch.full((2, 20, 3, 336), float("nan"), dtype=q.dtype, device=device)
    out = room[:, :, 1:, :328]
    found, lse = KERNEL.bind(Config({**CONFIG, "loads": loads}), SHAPE)(q, k, v, return_lse=True, out=out)
    assert room[:, :, 1:, 328:].isnan().all()
    assert room[:, :, :1].isnan().all()
    features: dict[str, Any] = {"causal": True, "window": None, "softcap": None, "scale": SHAPE.head_dim**-0.5}
    expected = dense_attention(q, k, v, **features, dtype=torch.float64)
    out_error, lse_error = (
        float((one.double() - true.double()).abs().max()) for one, true in zip((found, lse), expected, strict=True)
    )
    return out_error, lse_error, found.data_ptr() == out.data_ptr()


LAY_OUTS: Final = pytest.mark.parametrize(
    ("lay_out", "loads"),
    [
        ("by head", "descriptor"),
        ("by head", "pointer"),
        *((each, "descriptor") for each in ("expanded", "odd", "shifted")),
    ],
)


@LAY_OUTS
def test_interpreted_strides_are_taken_and_a_given_output_is_filled(lay_out: str, loads: str) -> None:
    out_error, lse_error, is_filled = interpret(errors_of, lay_out, loads, "cpu")
    assert max(out_error, lse_error) < TOLERANCE
    assert is_filled


@pytest.mark.gpu
@LAY_OUTS
def test_gpu_strides_are_taken_and_a_given_output_is_filled(lay_out: str, loads: str) -> None:
    out_error, lse_error, is_filled = errors_of(lay_out, loads, "cuda")
    assert max(out_error, lse_error) < TOLERANCE
    assert is_filled


def wide(name: str, dtype: str, sizes: str, width: int = 512) -> AttentionShape:
    fields: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": width, "dtype": dtype}
    return AttentionShape(**fields, **SIZES[sizes], **FEATURES[name])


def verdict_of(shape: AttentionShape, config: Config, device: str) -> Verdict:
    """Judge all outputs against fp64, on three sets of inputs."""
    return check_config(KERNEL, config, make_cases(DEFINITION, (shape,), device=device), every_output=True)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FEATURES)
def test_gpu_heads_of_512_are_true_by_the_default(name: str, dtype: str, sizes: str) -> None:
    shape = wide(name, dtype, sizes)
    found = verdict_of(shape, IMPLEMENTATION.space.default(shape, NVIDIA_H200), "cuda")
    assert found.status is Status.OK, found.message


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", ["square", "few queries"])
@pytest.mark.parametrize("width", [512, 384, 320])
@pytest.mark.parametrize("name", ["causal", "full", "images"])
@pytest.mark.parametrize("title", OTHERS)
def test_gpu_parts_of_values_are_true(title: str, name: str, width: int, sizes: str) -> None:
    found = verdict_of(wide(name, "bfloat16", sizes, width), OTHERS[title], "cuda")
    assert found.status is Status.OK, found.message


@pytest.mark.gpu
@pytest.mark.parametrize("seq_q", [1, 64, 333])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gpu_attention_computes_heads_of_512(dtype: str, seq_q: int) -> None:
    generator = torch.Generator(device="cuda").manual_seed(5)
    sizes = ((2, seq_q, 4, 512), (2, 400, 2, 512), (2, 400, 2, 512))
    q, k, v = (torch.randn(size, generator=generator, device="cuda").to(getattr(torch, dtype)) for size in sizes)
    for _ in range(2):  # the second is launched again by what the first one left
        out, lse = autotune.attention(q, k, v, causal=True, return_lse=True)
    expected = dense_attention(q, k, v, causal=True, scale=512**-0.5)
    limit = {"bfloat16": 2e-2, "float16": TOLERANCE, "float32": 1e-5}[dtype]
    for found, true in zip((out, lse), expected, strict=True):
        assert float((found.double() - true).abs().max()) < limit


@pytest.mark.slow
def test_the_defaults_spill_next_to_nothing_on_hopper_and_read_what_was_written(tmp_path: Path) -> None:
    found = compile_sample("tests.kernels.flash_attention.split_values_sample", "sm_90", tmp_path)
    assert {name: taken["unwritten"] for name, taken in found.items()} == dict.fromkeys(found, 0)
    assert {name: taken["spill_bytes"] for name, taken in found.items() if taken["spill_bytes"] > 16} == {}
    assert max(taken["shared_bytes"] for taken in found.values()) <= NVIDIA_H200.shared_memory_bytes
