"""Calls over latents: the layouts of engines, top-k indices, traced code, and what is refused before any launch."""

from typing import Any

import pytest
import torch

from autotune.errors import InputMismatchError
from autotune.kernels.paged_cache.call import check_pages
from autotune.kernels.paged_cache.layout import is_prefix
from autotune.kernels.paged_decode.triton_latent import KERNEL
from autotune.shape import PagedShape
from tests.contract.implementations.paged_decode_triton_latent import config_of
from tests.contract.interpreting import interpret
from tests.kernels.paged_decode.latents import (
    absent_pages_failure,
    appended_failure,
    engine_failure,
    indices_failure,
    traced_failure,
)

ENGINES = ("vllm", "vllm by heads", "sglang", "longer rows")
each_absent = pytest.mark.parametrize("absent", [-1, 160, 2**31 - 1, -(2**31)])  # the cache has 160 pages


@pytest.mark.parametrize("engine", ENGINES)
def test_interpreted_cache_of_an_engine(engine: str) -> None:
    assert interpret(engine_failure, engine, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_gpu_cache_of_an_engine(engine: str) -> None:
    assert engine_failure(engine, "cuda") is None


@each_absent
def test_interpreted_indices_may_be_left_out(absent: int) -> None:
    assert interpret(indices_failure, absent, "cpu") is None


@pytest.mark.gpu
@each_absent
def test_gpu_indices_may_be_left_out(absent: int) -> None:
    assert indices_failure(absent, "cuda") is None


@pytest.mark.parametrize("absent", [-1, 10, 2**31 - 1, -(2**31)])  # the cache has 10 pages
def test_interpreted_pages_may_be_left_out(absent: int) -> None:
    assert interpret(absent_pages_failure, absent, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("absent", [-1, 10, 2**31 - 1, -(2**31)])
def test_gpu_pages_may_be_left_out(absent: int) -> None:
    assert absent_pages_failure(absent, "cuda") is None


def test_interpreted_latents_are_appended() -> None:
    assert interpret(appended_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_latents_are_appended() -> None:
    assert appended_failure("cuda") is None


def test_interpreted_traced_code_passes_the_view() -> None:
    assert interpret(traced_failure, "aot_eager") is None


SHAPE = PagedShape(batch=2, heads=4, max_context=64, head_dim=288, page_size=8, dtype="float16")
CALL: Any = KERNEL.bind(config_of(), SHAPE)
CACHE = torch.zeros(9, 8, 1, 288, dtype=torch.float16)


def tensors(**replaced: Any) -> dict[str, Any]:
    integers = {"page_table": torch.zeros(2, 5, dtype=torch.int32), "seq_lens": torch.ones(2, dtype=torch.int32)}
    caches = {"k_cache": CACHE, "v_cache": CACHE[..., :256]}
    return {"q": torch.zeros(2, 4, 288, dtype=torch.float16), **caches, **integers, **replaced}


NOT_THERE = r"v_cache is not the first 256 columns of k_cache, .* expected k_cache\[\.\.\., :256\], no copy of it"
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "copy": ({"v_cache": CACHE[..., :256].clone()}, NOT_THERE),
    "other columns": ({"v_cache": CACHE[..., 32:]}, NOT_THERE),
    "fewer pages": ({"v_cache": CACHE[:8, ..., :256]}, NOT_THERE),
    "other rows": ({"v_cache": CACHE.as_strided((9, 8, 1, 256), (288, 2304, 288, 1))}, NOT_THERE),
    "width": ({"v_cache": CACHE[..., :128]}, r"v_cache is \(9, 8, 1, 128\) float16; this kernel takes .*256"),
    "no tensor": ({"v_cache": None}, r"v_cache is None; this kernel takes"),
    "rank": ({"k_cache": CACHE[:, :, 0]}, r"k_cache is \(9, 8, 288\) float16; this kernel takes"),
    "scale of a cache": ({"k_scale": torch.ones(1)}, "k_scale is .*; expected None for a cache of float16"),
    "nothing else": ({}, "the tensors are on the CPU; expected a GPU"),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=[name.replace(" ", "-") for name in BAD])
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        CALL(**tensors(**changed))


def test_a_known_call_is_asked_again_where_its_values_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures hold no addresses: a copy that lies as the view does, in a buffer of its own, has the same."""
    called: list[Any] = []
    monkeypatch.setattr(CALL._calls, "call", lambda *call: called.append(call))
    CALL(**tensors())
    with pytest.raises(InputMismatchError, match="v_cache is not the first 256 columns"):
        CALL(**tensors(v_cache=torch.zeros_like(CACHE)[..., :256]))
    assert len(called) == 1


def test_strides_of_single_pages_and_slots_do_not_count() -> None:
    cache = torch.zeros(1, 1, 1, 288)
    assert is_prefix(cache, cache.as_strided((1, 1, 1, 256), (7, 5, 3, 1)))
    assert not is_prefix(cache, torch.zeros(1, 1, 1, 256))


def test_negative_pages_of_latents_pass_the_check_and_pages_past_the_cache_do_not() -> None:
    lengths = torch.tensor([40, 3], dtype=torch.int32)
    table = torch.tensor([[0, -1, 3, 8, -7], [-1, 9, 9, 9, 9]], dtype=torch.int32)
    check_pages(SHAPE, table, lengths, pages=9, queries=1)
    table[0, 1] = 9
    with pytest.raises(InputMismatchError, match=r"page_table\[0, 1\]=9 is not a page; expected 0 to 8"):
        check_pages(SHAPE, table, lengths, pages=9, queries=1)
