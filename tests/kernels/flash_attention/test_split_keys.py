"""Attention over split keys beside what the contract asks: strides, the caller's output, shares, launches."""

from dataclasses import replace
from pathlib import Path
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
from autotune.kernels.flash_attention.triton_split_keys import launch as launching
from autotune.kernels.flash_attention.triton_split_keys.forward import share_tiles
from autotune.kernels.flash_attention.triton_split_keys.launch import launch
from autotune.kernels.tiles.masks import Bounds
from autotune.shape import AttentionShape
from autotune.space import Config
from tests.contract.compiling import compile_sample
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
        elif lay_out == "sliced":  # from a batch of odd strides: with one sequence no step is taken along it
            room = torch.full((shape.batch, drawn[0].numel() + 1), float("nan"), dtype=drawn.dtype)
            room[:, :-1] = drawn.flatten(1)
            drawn = room.as_strided(drawn.shape, (room.stride(0), *drawn.stride()[1:]))
        elif lay_out == "odd":
            room = torch.full((*drawn.shape[:3], shape.head_dim + 3), float("nan"), dtype=drawn.dtype)
            room[..., 1:-2] = drawn
            drawn = room[..., 1:-2]
        found.append(drawn)
    return found


def errors_of(lay_out: str, config: Config, shape: AttentionShape = SHAPE) -> tuple[float, float, bool]:
    """Return the largest errors of the output and of the log-sum-exp, and if ``out``, of other strides, was filled."""
    q, k, v = draw(shape, lay_out=lay_out)
    out = torch.full((*q.shape[:2], shape.heads + 1, shape.head_dim), float("nan"), dtype=q.dtype)[:, :, 1:]
    found, lse = KERNEL.bind(config, shape)(q, k, v, return_lse=True, out=out)
    features: dict[str, Any] = {"causal": True, "window": None, "softcap": None, "scale": shape.head_dim**-0.5}
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


@pytest.mark.parametrize("lay_out", ["sliced", "plain"])
def test_strides_without_a_step_change_no_number(lay_out: str) -> None:
    out_error, lse_error, is_filled = interpret(
        errors_of, lay_out, Config({**CONFIG, "loads": "descriptor"}), replace(SHAPE, batch=1)
    )
    assert out_error < TOLERANCE
    assert lse_error < TOLERANCE
    assert is_filled


def launched_with(monkeypatch: pytest.MonkeyPatch, *tensors: torch.Tensor) -> list[Any]:
    """Return what decides a binary: the arguments of both kernels without the tensors, which may lie anywhere."""
    noted: list[Any] = []

    def note(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        named = [getattr(each, "block_shape", each) for each in arguments if not isinstance(each, torch.Tensor)]
        strides = [each.strides for each in arguments if hasattr(each, "block_shape")]
        noted.append((grid, strides, [each for each in named if not hasattr(each, "accumulators")], options))

    monkeypatch.setattr(JITFunction, "run", note)
    q, k, v = tensors
    options = {key: value for key, value in CONFIG.items() if value is not None} | {"loads": "descriptor"}
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype)
    launch(q, k, v, out, None, causal=True, window=None, softcap=None, scale=1.0, options=options)
    return noted


@pytest.mark.parametrize("stride", [0, 1, 7, 2**41])
def test_strides_along_a_batch_of_one_and_a_single_kv_head_decide_nothing(
    stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = draw(replace(SHAPE, batch=1), lay_out="plain")
    plain = launched_with(monkeypatch, q, k, v)
    assert plain[0][1], "descriptors are taken"
    other = [each.as_strided(each.shape, (stride, each.stride(1), stride, 1)) for each in (k, v)]
    assert launched_with(monkeypatch, q, *other) == plain
    wide = torch.cat((k, k), 2).as_strided(k.shape, (k.stride(0), 17, 17, 1))  # these are steps that TMA refuses
    assert launched_with(monkeypatch, q, wide, v)[0][1] == []


def test_dependent_launches_are_of_the_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the current one, which Triton would name."""
    capabilities = {torch.device("cuda", 0): (8, 0), torch.device("cuda", 1): (9, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(driver, "_active", target_driver(architecture("sm_90")))
    launching._capability.cache_clear()
    try:
        assert [launching._has_dependent_launch(device) for device in capabilities] == [False, True]
        monkeypatch.setattr(torch.version, "hip", "7.0")
        assert not launching._has_dependent_launch(torch.device("cuda", 1))
    finally:
        launching._capability.cache_clear()
    assert launching._has_dependent_launch(torch.device("meta"))
    assert not launching._has_dependent_launch(torch.device("cpu"))


@pytest.mark.slow
def test_the_default_of_a_hopper_spills_nothing_in_float32_and_descriptors_spare_registers(tmp_path: Path) -> None:
    found = compile_sample("tests.kernels.flash_attention.split_sample", "sm_90", tmp_path)
    assert {each["spill_bytes"] for each in found.values()} == {0}
    assert found["descriptor"]["registers"] <= found["pointer"]["registers"] - 64
    assert {name: each["rows"] for name, each in found.items() if name.startswith("float32")} == {
        "float32 64": 32,
        "float32 96": 16,
        "float32 128": 16,
    }


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
