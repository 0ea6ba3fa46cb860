"""Attention over split keys beside what the contract asks: strides, the caller's output, shares, launches."""

from typing import Any, Final

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from autotune.device import architecture
from autotune.executor.compiler import target_driver
from autotune.kernels.flash_attention.triton_split_keys import KERNEL
from autotune.kernels.flash_attention.triton_split_keys.forward import share_tiles
from autotune.kernels.flash_attention.triton_split_keys.launch import launch
from autotune.kernels.tiles.masks import Bounds
from autotune.shape import AttentionShape
from autotune.space import Config
from tests.contract.interpreting import interpret
from tests.kernels.numerics import dense_attention

CONFIG: Final = Config(
    BLOCK_Q=16, BLOCK_K=16, NUM_SPLITS=3, PARTIALS="float32", num_warps=4, num_stages=2, loads="pointer"
)
SHAPE: Final = AttentionShape(
    batch=2, heads=2, kv_heads=1, seq_q=2, seq_kv=50, head_dim=16, dtype="float16", causal=True
)
TOLERANCE: Final = 4e-3


def draw(shape: AttentionShape, *, lay_out: str) -> list[torch.Tensor]:
    """Draw queries, keys and values; by head in memory, or padded to odd strides at addresses that TMA refuses."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for length, heads in ((shape.seq_q, shape.heads), (shape.seq_kv, shape.kv_heads), (shape.seq_kv, shape.kv_heads)):
        drawn = torch.randn(shape.batch, length, heads, shape.head_dim, generator=generator).half()
        if lay_out == "by head":
            drawn = drawn.transpose(1, 2).contiguous().transpose(1, 2)
        elif lay_out == "odd":
            room = torch.full((*drawn.shape[:3], shape.head_dim + 3), float("nan"), dtype=drawn.dtype)
            room[..., 1:-2] = drawn
            drawn = room[..., 1:-2]
        found.append(drawn)
    return found


def errors_of(lay_out: str, config: Config) -> tuple[float, float, bool]:
    """Return the largest errors of the output and of the log-sum-exp, and if ``out``, of other strides, was filled."""
    q, k, v = draw(SHAPE, lay_out=lay_out)
    out = torch.full((*q.shape[:2], SHAPE.heads + 1, SHAPE.head_dim), float("nan"), dtype=q.dtype)[:, :, 1:]
    found, lse = KERNEL.bind(config, SHAPE)(q, k, v, return_lse=True, out=out)
    features: dict[str, Any] = {"causal": True, "window": None, "softcap": None, "scale": SHAPE.head_dim**-0.5}
    expected = dense_attention(q, k, v, **features, dtype=torch.float64)
    pairs = zip((found, lse), expected, strict=True)
    out_error, lse_error = (float((one.double() - other.double()).abs().max()) for one, other in pairs)
    return out_error, lse_error, found.data_ptr() == out.data_ptr()


@pytest.mark.parametrize("lay_out", ["by head", "odd"])
def test_any_strides_are_taken_and_a_given_output_is_filled(lay_out: str) -> None:
    out_error, lse_error, is_filled = interpret(errors_of, lay_out, Config({**CONFIG, "loads": "descriptor"}))
    assert out_error < TOLERANCE
    assert lse_error < TOLERANCE
    assert is_filled


@triton.jit
def note_shares(found, low, full_low, full_high, high, splits):  # type: ignore[no-untyped-def]
    split = tl.program_id(0)
    share = share_tiles(Bounds(low, full_low, full_high, high), split, splits, 16)
    tl.store(found + 4 * split, share.low)
    tl.store(found + 4 * split + 1, share.full_low)
    tl.store(found + 4 * split + 2, share.full_high)
    tl.store(found + 4 * split + 3, share.high)


def shares_of(low: int, high: int, full: tuple[int, int], splits: int) -> list[tuple[int, int, int, int]]:
    """Return the bounds of all shares as the kernel computes them."""
    found = torch.zeros(splits, 4, dtype=torch.int32)
    note_shares[(splits,)](found, low, *full, high, splits)
    return [tuple(row) for row in found.tolist()]


@pytest.mark.parametrize(
    ("low", "high", "full", "splits"),
    [
        (0, 160, (0, 160), 3),  # ten blocks of 16: shares of 4, 3 and 3
        (0, 150, (0, 147), 4),
        (37, 150, (45, 147), 4),
        (37, 60, (70, 40), 2),  # no key that every row sees
        (0, 20, (0, 20), 5),  # more shares than blocks
        (90, 0, (95, -3), 2),  # no key at all
    ],
)
def test_shares_are_all_keys_once_and_about_equal(low: int, high: int, full: tuple[int, int], splits: int) -> None:
    shares = interpret(shares_of, low, high, full, splits)
    keys = [key for begin, _, _, end in shares for key in range(begin, end)]
    assert keys == list(range(low // 16 * 16, high))
    counts = [-(-max(0, end - begin) // 16) for begin, _, _, end in shares]
    assert max(counts) - min(counts) <= 1
    for begin, full_low, full_high, end in shares:
        assert begin % 16 == 0
        assert full_low <= full_high
        assert full_low == full_high or (full_high - full_low) % 16 == 0
        assert all(full[0] <= key < full[1] for key in range(full_low, full_high))
        if begin < end:
            assert begin <= full_low <= full_high <= end
            assert (
                full_high - full_low > max(0, min(end, full[1]) - max(begin, full[0])) - 2 * 16
            )  # whole blocks of them


def test_one_share_needs_one_kernel_and_several_two(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[str, Any, dict[str, Any]]] = []

    def note(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        noted.append((function.fn.__name__, grid, options))

    monkeypatch.setattr(driver, "_active", target_driver(architecture("sm_90")))
    monkeypatch.setattr(JITFunction, "run", note)
    for splits, expected in (
        (1, [("attend_shares", (2,))]),
        (3, [("attend_shares", (6,)), ("combine_shares", (8,))]),
    ):
        noted.clear()
        KERNEL.warmup(Config({**CONFIG, "NUM_SPLITS": splits}), SHAPE)
        assert [(name, grid) for name, grid, _ in noted] == expected
        assert all(options["launch_pdl"] for _, _, options in noted)
    noted.clear()
    monkeypatch.setattr(driver, "_active", target_driver(architecture("sm_80")))
    KERNEL.warmup(CONFIG, SHAPE)
    assert [options.get("launch_pdl") for _, _, options in noted] == [None, None]


def test_no_queries_and_no_keys_launch_nothing() -> None:
    q, k, v = draw(SHAPE, lay_out="plain")
    options: dict[str, Any] = {"causal": False, "window": None, "softcap": None, "scale": 1.0, "options": dict(CONFIG)}
    out, lse = torch.ones_like(q), torch.ones(2, 2, 2)
    assert launch(q, k[:, :0], v[:, :0], out, lse, **options) == ()
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    assert launch(q[:, :0], k, v, out[:, :0], None, **options) == ()
