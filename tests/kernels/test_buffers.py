"""Buffers that callers give for outputs: which ones kernels take, and what is said of the others."""

import random
from typing import Any, Final

import pytest
import torch

from autotune.errors import InputMismatchError, NotDifferentiableError, UnsupportedCallError
from autotune.kernels.flash_attention.flex.kernel import BoundFlexAttention
from autotune.kernels.flash_attention.triton import KERNEL
from autotune.kernels.tensors import check_apart, check_out
from autotune.shape import AttentionShape
from tests.contract.implementations.flash_attention_triton import TINY

HALF: Final = torch.float16
SIZES: Final = (2, 8, 4, 24)
SHAPE = AttentionShape(batch=2, heads=4, seq_q=8, head_dim=16, head_dim_v=24, dtype="float16")


def buffer(*sizes: int, dtype: torch.dtype = HALF, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(sizes or SIZES, dtype=dtype, device=device)


BAD: dict[str, tuple[object, str]] = {
    "list": ([1.0], r"out is a list; expected \(2, 8, 4, 24\) float16"),
    "sizes": (buffer(2, 8, 4, 16), r"out is \(2, 8, 4, 16\) float16; expected \(2, 8, 4, 24\) float16"),
    "rank": (buffer(2, 8, 96), r"out is \(2, 8, 96\) float16; expected"),
    "dtype": (buffer(dtype=torch.float32), r"out is \(2, 8, 4, 24\) float32; expected \(2, 8, 4, 24\) float16"),
    "device": (buffer(device="meta"), "q is on cpu, out on meta; expected one device"),
    "last stride": (buffer(2, 8, 24, 4).mT, r"out has the strides \(768, 96, 1, 4\); expected 1 in the last dimension"),
    "expanded": (
        buffer(2, 8, 1, 24).expand(SIZES),
        r"out has the strides \(192, 24, 0, 1\); expected memory of its own for each element",
    ),
}


@pytest.mark.parametrize(("out", "message"), BAD.values(), ids=BAD)
def test_what_no_output_fits_into_is_refused(out: Any, message: str) -> None:
    q, k, v = buffer(2, 8, 4, 16), buffer(2, 8, 4, 16), buffer()
    with pytest.raises(InputMismatchError, match=message):
        KERNEL.bind(TINY, SHAPE)(q, k, v, out=out)


def test_gradients_are_refused() -> None:
    q = buffer(2, 8, 4, 16)
    with pytest.raises(NotDifferentiableError, match="out requires gradients, and there is no backward kernel"):
        KERNEL.bind(TINY, SHAPE)(q, q, buffer(), out=buffer().requires_grad_())


def test_rows_one_after_another_where_the_kernel_writes_them_so() -> None:
    apart = buffer(2, 8, 8, 24)[:, :, ::2]
    check_out(apart, SIZES, {"q": buffer()})
    with pytest.raises(InputMismatchError, match=r"out has the strides .*; expected a contiguous tensor"):
        check_out(apart, SIZES, {"q": buffer()}, contiguous=True)


ROOM: Final = torch.zeros(2, 8, 4, 6, 24, dtype=HALF)  # six tensors, a row of each after another
FLAT: Final = torch.zeros(4096, dtype=HALF)
LONGER: Final = torch.zeros(2, 9, 4, 24, dtype=HALF)  # a token more than a tensor has
NUMBERED: Final = torch.arange(100)


@pytest.mark.parametrize(
    ("out", "other"),
    [
        (ROOM[..., 0, :], ROOM[..., 0, :]),
        (ROOM[..., 1, :8], ROOM[..., 1, :]),
        (FLAT[:1536], FLAT[1535:2000]),
        (FLAT[1535:2000], FLAT[:1536]),
        (FLAT[:1536].view(SIZES), FLAT[100:200]),
        (FLAT[100:200], FLAT[:1536].view(SIZES).transpose(1, 2)),
        (LONGER[:, 1:], LONGER[:, :-1]),
        (LONGER[:, :-1], LONGER[:, 1:]),
    ],
    ids=["itself", "its first part", "its last element", "its first element", "inside", "around", "moved on", "back"],
)
def test_memory_of_an_input_is_refused(out: torch.Tensor, other: torch.Tensor) -> None:
    with pytest.raises(InputMismatchError, match="out shares memory with k; expected a buffer of its own"):
        check_apart(out, {"q": ROOM.clone(), "k": other})


@pytest.mark.parametrize(
    ("out", "other"),
    [
        (ROOM[..., 3, :], ROOM[..., 0, :]),
        (ROOM[..., 0, :], ROOM[..., 3, :]),
        (FLAT[:100], FLAT[100:200]),
        (FLAT[100:200], FLAT[:100]),
        (FLAT[50:50], FLAT[:100]),
        (FLAT[:100], FLAT[50:50]),
    ],
    ids=["a row after", "a row before", "before", "after", "empty", "nothing"],
)
def test_memory_beside_and_between_an_inputs_rows_is_taken(out: torch.Tensor, other: torch.Tensor) -> None:
    check_apart(out, {"q": other})


def test_memory_that_views_of_one_buffer_share_is_refused() -> None:
    draw = random.Random(0)
    taken = 0
    for _ in range(500):
        sizes, others = ([draw.choice([1, 2, 3]) for _ in range(3)] for _ in range(2))
        strides = [*draw.choices([1, 2, 3, 4, 6, 8, 12], k=2), 1]
        one = torch.as_strided(NUMBERED, sizes, strides, 20)
        other = torch.as_strided(NUMBERED, others, strides, draw.randint(0, 40))
        try:
            check_apart(one, {"q": other})
        except InputMismatchError:
            continue
        taken += 1
        assert not set(one.flatten().tolist()) & set(other.flatten().tolist())
    assert taken > 100


def test_flex_attention_leaves_a_buffer_to_the_next_candidate() -> None:
    q = buffer(2, 8, 4, 16)
    with pytest.raises(UnsupportedCallError, match="FlexAttention allocates its output; it cannot write into out"):
        BoundFlexAttention(SHAPE, {})(q, q, buffer(), out=buffer())
