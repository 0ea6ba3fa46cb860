"""The Gluon kernel, simulated over NumPy against the reference in fp64, and compiled for sm_90; neither needs a GPU."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock

import pytest
import torch

from autotune.device import NVIDIA_H200
from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention.gluon_hopper import launch as launch_module
from autotune.kernels.flash_attention.gluon_hopper.forward import ROWS, flash_attention_forward
from autotune.kernels.flash_attention.gluon_hopper.launch import FLIPS, launch
from autotune.kernels.flash_attention.gluon_hopper.schedule import Features, WarpSchedule
from autotune.kernels.flash_attention.reference import attention_reference
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION
from autotune.search_spaces.flash_attention.warp_groups import part_widths
from autotune.shape import AttentionShape
from tests.contract.compiling import compile_sample
from tests.kernels.gluon_simulator import simulate
from tests.kernels.simulated_memory import Descriptor, Pointer

SPACE: Final = IMPLEMENTATION.space
HEADS, KV_HEADS, WIDTH = 2, 1, 32
SMALL: Final = WarpSchedule(
    consumers=2,
    block_k=64,  # blocks enough in short problems
    slots=2,
    query_slots=1,
    registers=240,
    ping_pong=False,
    values_early=False,
    out_in_queries=False,
)


def check(
    schedule: WarpSchedule,
    seq_q: int,
    seq_kv: int,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    workers: int = 2,
    section: int = 1,
    row_order: str = "natural",
    large: bool = False,
    key_parts: int = 1,
    width_v: int = WIDTH,
) -> None:
    """Simulate a problem of two heads and compare with the reference."""
    width = WIDTH * key_parts
    generator = torch.Generator().manual_seed(seq_q + seq_kv)
    sizes = ((seq_q, HEADS, width), (seq_kv, KV_HEADS, width), (seq_kv, KV_HEADS, width_v))
    q, k, v = (torch.randn(2, *size, generator=generator).half() for size in sizes)
    if large:
        q = 6.0 * q
    out = torch.full((2, seq_q, HEADS, width_v), math.nan, dtype=torch.half)
    lse = torch.full((2, HEADS, seq_q), math.nan)
    scale = width**-0.5
    tiles = -(-seq_q // (ROWS.value * schedule.consumers)) * 2 * HEADS
    simulate(
        flash_attention_forward,
        min(workers, tiles) or tiles,
        *(Descriptor(q.numpy(), ROWS.value, WIDTH), Descriptor(k.numpy(), schedule.block_k, WIDTH)),
        *(Descriptor(v.numpy(), schedule.block_k), Descriptor(out.numpy(), ROWS.value), Pointer(lse.numpy())),
        *(HEADS, HEADS // KV_HEADS, seq_q, seq_kv, window or 0),
        *(scale / softcap if softcap else scale * math.log2(math.e), softcap or 0.0, tiles, section, FLIPS[row_order]),
        *(Features(causal, window is not None, softcap is not None, key_parts), schedule),
    )
    expected = attention_reference(q, k, v, causal=causal, window=window, softcap=softcap, scale=scale)
    torch.testing.assert_close(out.double(), expected[0], atol=2e-3, rtol=0)
    torch.testing.assert_close(lse.double(), expected[1], atol=1e-4, rtol=0)


def test_a_causal_problem_of_odd_lengths() -> None:
    check(SMALL, 200, 333, causal=True)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seq_q", "seq_kv"), [(1, 1), (1, 700), (64, 64), (200, 333), (333, 200), (500, 513)])
def test_lengths(seq_q: int, seq_kv: int, causal: bool) -> None:
    check(SMALL, seq_q, seq_kv, causal=causal)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 60, 128, 1000])
def test_windows(window: int, causal: bool) -> None:
    check(SMALL, 333, 457, causal=causal, window=window)
    check(SMALL, 457, 333, causal=causal, window=window)


def test_softcap_and_scores_far_apart() -> None:
    check(SMALL, 200, 333, causal=True, softcap=5.0)
    check(SMALL, 200, 333, large=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("consumers", "ping_pong"), [(1, False), *((consumers, turns) for consumers in (2, 3) for turns in (False, True))]
)
@pytest.mark.parametrize("values_early", [False, True])
def test_turns_of_consumers(consumers: int, ping_pong: bool, values_early: bool) -> None:
    schedule = SMALL._replace(consumers=consumers, ping_pong=ping_pong, values_early=values_early)
    check(schedule, 400, 400, causal=True)


@pytest.mark.parametrize(("out_in_queries", "width_v"), [(False, 32), (True, 64)])
def test_scores_in_parts(out_in_queries: bool, width_v: int) -> None:
    schedule = SMALL._replace(ping_pong=True, values_early=True, out_in_queries=out_in_queries)
    check(schedule, 300, 333, causal=True, key_parts=3, width_v=width_v)


@pytest.mark.parametrize(
    ("head_dims", "expected"),
    [
        *(((width, width), (1, width, width)) for width in (16, 32, 64, 128, 256)),
        *(
            ((40, 40), (1, 64, 64)),
            ((96, 96), (3, 32, 128)),
            ((192, 128), (3, 64, 128)),
            ((160, 256), (3, 64, 256)),
            ((200, 200), (1, 256, 256)),
        ),
    ],
)
def test_parts_pad_keys_to_few_columns(head_dims: tuple[int, int], expected: tuple[int, int, int]) -> None:
    assert part_widths(*head_dims) == expected


@pytest.mark.slow
@pytest.mark.parametrize("section", [1, 3, 16])
@pytest.mark.parametrize("row_order", ["natural", "reversed", "alternating"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_orders_of_tiles(section: int, row_order: str, workers: int) -> None:
    check(SMALL, 400, 300, causal=True, section=section, row_order=row_order, workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("query_slots", [1, 2])
@pytest.mark.parametrize("out_in_queries", [False, True])
def test_memory_is_used_again(slots: int, query_slots: int, out_in_queries: bool) -> None:
    check(
        SMALL._replace(ping_pong=True, slots=slots, query_slots=query_slots, out_in_queries=out_in_queries),
        600,
        600,
        causal=True,
        workers=1,
        row_order="reversed",
    )


def tensors(**strides: tuple[int, ...]) -> dict[str, Any]:
    own = {name: strides.get(name, (64 * 4 * 128, 4 * 128, 128, 1)) for name in ("q", "k", "v", "out")}
    return {
        name: torch.empty_strided((1, 64, 4, 128), each, dtype=torch.bfloat16, device="meta")
        for name, each in own.items()
    }


FEATURES: Final[dict[str, Any]] = {"lse": None, "causal": False, "window": None, "softcap": None, "scale": 1.0}
OPTIONS: Final = SPACE.default(AttentionShape(batch=1, heads=4, seq_q=64, head_dim=128), NVIDIA_H200)


def test_what_tma_cannot_copy_is_refused_by_name() -> None:
    for name, strides in {"k": (64 * 512, 515, 128, 1), "v": (64 * 512, 512, 0, 1)}.items():
        with pytest.raises(UnsupportedCallError, match=f"^{name}: its strides are .* positive multiples of 16 bytes"):
            launch(**tensors(**{name: strides}), options=OPTIONS, **FEATURES)
    odd = torch.empty(64 * 512 + 3, dtype=torch.bfloat16)[3:].view(1, 64, 4, 128)
    with pytest.raises(UnsupportedCallError, match=r"^out: its address is 6 bytes past a multiple of 16"):
        launch(**tensors() | {"out": odd}, options=OPTIONS, **FEATURES)


def test_no_stride_of_a_single_batch_or_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = MagicMock()
    monkeypatch.setattr(launch_module, "flash_attention_forward", kernel)
    strides = {"k": (7, 512, 128, 1), "v": (0, 512, 128, 1)}
    launch(**tensors(**strides), options=OPTIONS, **FEATURES)
    (_, k, v, *_), _ = kernel[1].call_args
    assert k.strides == v.strides == [8, 512, 128, 1]


@pytest.mark.slow
def test_configs_compile_for_hopper_without_a_spill(tmp_path: Path) -> None:
    found = compile_sample("tests.kernels.flash_attention.gluon_sample", "sm_90", tmp_path)
    assert len(found) == 10
    for name, binary in found.items():
        assert binary["shared"] <= binary["expected"] <= NVIDIA_H200.shared_memory_bytes, name
        assert binary["spills"] <= 40, name  # of a stack: addresses that loops begin with
        assert binary["steady_spills"] == 0, name
        # ptxas 12.8 moves the wait for early values before the exponentials.
        assert binary["overlapped"] >= 8 or binary["values"] == "early", f"{name}: {binary}"


@pytest.mark.parametrize(
    "head_dims", [(64, 64), (96, 96), (128, 128), (256, 256), (192, 128), (192, 256), (224, 224), (256, 160)]
)
def test_the_default_is_valid_and_the_space_has_others(head_dims: tuple[int, int]) -> None:
    head_dim, head_dim_v = head_dims
    for seq_q, seq_kv, causal in ((4096, 4096, False), (1, 4096, False), (100, 30, True)):
        shape = AttentionShape(
            batch=2, heads=16, seq_q=seq_q, seq_kv=seq_kv, head_dim=head_dim, head_dim_v=head_dim_v, causal=causal
        )
        assert SPACE.why_invalid(SPACE.default(shape, NVIDIA_H200), shape, NVIDIA_H200) is None
        assert 20 <= len(list(SPACE.configs(shape, NVIDIA_H200))) <= 1500


def test_what_the_kernel_does_not_compute_is_said() -> None:
    shape = AttentionShape(batch=2, heads=16, seq_q=512, head_dim=64)
    assert IMPLEMENTATION.supports(shape, NVIDIA_H200) is None
    assert "sm_100" in str(IMPLEMENTATION.supports(shape, replace(NVIDIA_H200, arch="sm_100")))
    assert "float32" in str(IMPLEMENTATION.supports(replace(shape, dtype="float32"), NVIDIA_H200))
