"""Attention over split widths beside what the contract asks: strides, the caller's output, and its binaries."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention.triton_split_width import KERNEL
from autotune.shape import AttentionShape
from autotune.space import Config
from tests.contract.compiling import compile_sample
from tests.contract.interpreting import interpret
from tests.kernels.numerics import dense_attention

CONFIG: Final = Config(BLOCK_Q=16, BLOCK_K=16, num_warps=1, num_stages=1, loads="descriptor")
SHAPE: Final = AttentionShape(
    batch=2, heads=2, kv_heads=1, seq_q=20, seq_kv=30, head_dim=40, head_dim_v=72, dtype="float16", causal=True
)
TOLERANCE: Final = 4e-3


def draw(lay_out: str, device: str) -> list[torch.Tensor]:
    """Draw queries, keys and values: plain, by head in memory, alike for all sequences, or at steps TMA refuses."""
    generator = torch.Generator(device=device).manual_seed(3)
    found = []
    for length, heads, width in ((20, 2, 40), (30, 1, 40), (30, 1, 72)):
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
    out = torch.full((2, 20, 3, 72), float("nan"), dtype=q.dtype, device=device)[:, :, 1:]
    call = KERNEL.bind(Config({**CONFIG, "loads": loads}), SHAPE)
    found, lse = call(q, k, v, return_lse=True, out=out)
    features: dict[str, Any] = {"causal": True, "window": None, "softcap": None, "scale": SHAPE.head_dim**-0.5}
    expected = dense_attention(q, k, v, **features, dtype=torch.float64)
    out_error, lse_error = (
        float((one.double() - true.double()).abs().max()) for one, true in zip((found, lse), expected, strict=True)
    )
    return out_error, lse_error, found.data_ptr() == out.data_ptr()


def refusal_of(lay_out: str) -> str:
    with pytest.raises(UnsupportedCallError) as caught:
        KERNEL.bind(CONFIG, SHAPE)(*draw(lay_out, "cpu"))
    return str(caught.value)


LAY_OUTS: Final = pytest.mark.parametrize(
    ("lay_out", "loads"), [("by head", "descriptor"), ("by head", "pointer"), ("expanded", "descriptor")]
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


def test_loads_of_fewer_than_16_bytes_are_left_to_the_next_candidate() -> None:
    reason = "q: its strides are [3440, 172, 86] bytes, not multiples of 16 bytes, which a pipeline of loads needs"
    assert interpret(refusal_of, "odd") == reason
    assert "q: its address is " in interpret(refusal_of, "shifted")


@pytest.mark.slow
def test_the_defaults_spill_nothing_on_hopper_and_read_what_was_written(tmp_path: Path) -> None:
    found = compile_sample("tests.kernels.flash_attention.split_width_sample", "sm_90", tmp_path)
    assert found.pop("no pipeline")["unwritten"]  # the scan sees the fault that the space refuses
    assert {name: (taken["spill_bytes"], taken["unwritten"]) for name, taken in found.items()} == dict.fromkeys(
        found, (0, [])
    )
