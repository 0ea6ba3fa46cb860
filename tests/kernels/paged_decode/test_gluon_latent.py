"""Decode over latents in Gluon: simulated over NumPy against fp64, compiled for sm_90, and the same on a GPU."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from autotune.device import NVIDIA_H200
from autotune.errors import UnsupportedCallError
from autotune.kernels.paged_cache import paged_kernel
from autotune.kernels.paged_decode.gluon_hopper_latent import kernel, launch
from autotune.kernels.paged_decode.gluon_hopper_latent.launch import launch_latent
from tests.contract.compiling import compile_sample
from tests.contract.simulating import simulated_launches
from tests.kernels.paged_decode.gluon_latent_sample import SHAPES
from tests.kernels.paged_decode.gluon_latents import call_failure, config_of, gate_failure

EDGES: Final = (0, 1, 15, 64, 65, 127, 128, 129, 300)
CASES: Final[dict[str, tuple[tuple[int, ...], dict[str, Any], dict[str, int]]]] = {
    "576": ((300, 0, 129), {}, {}),
    "576, indices": ((300, 0, 129), {"page_size": 1}, {"splits": 2}),
    "576, pages of 16, splits": ((300, 0, 129), {"page_size": 16}, {"splits": 2}),
    "320": (EDGES, {"head_dim": 320}, {"slots": 4}),
    "288": (EDGES, {"head_dim": 288, "page_size": 32}, {"slots": 4, "splits": 3}),
    "queries and sinks": (EDGES, {"head_dim": 320, "seq_q": 3, "sinks": True, "page_size": 16}, {}),
    "more than a block of heads": ((200, 65), {"head_dim": 320, "heads": 70}, {"splits": 2}),
    "long pages by heads": ((600, 250), {"head_dim": 288, "page_size": 256, "layout": "HND"}, {}),
    "320, indices": (EDGES, {"head_dim": 320, "page_size": 1}, {"slots": 4}),
    "288, indices, queries and sinks": (
        EDGES,
        {"head_dim": 288, "page_size": 1, "seq_q": 3, "sinks": True, "heads": 40},
        {"splits": 3},
    ),
    "indices by heads": ((200, 65), {"head_dim": 320, "page_size": 1, "heads": 70, "layout": "HND"}, {"splits": 2}),
    "pages of no power of two": ((300, 77), {"head_dim": 288, "page_size": 48}, {"slots": 4}),
}
each_case = pytest.mark.parametrize(
    ("lengths", "fields", "options"),
    [
        pytest.param(*case, id=name.replace(" ", "-"), marks=[] if number < 3 else [pytest.mark.slow])
        for number, (name, case) in enumerate(CASES.items())
    ],
)
ENGINES: Final = ("pages", "by heads", "longer rows", "slots", "longer slots")
PAST_THE_CACHE: Final = [
    (engine, splits, absent)
    for engine, pages, splits in (("pages", 12, 2), ("slots", 192, 1))
    for absent in (pages, 2**31 - 1, -(2**31))
]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate launches on the CPU, which counts as a device that Triton has."""
    simulated_launches(launch, monkeypatch)
    monkeypatch.setattr(paged_kernel, "check_device", lambda *_: None)
    monkeypatch.setattr(kernel, "require_context", lambda *_: None)


@each_case
@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_results_are_true(lengths: tuple[int, ...], fields: dict[str, Any], options: dict[str, int]) -> None:
    assert gate_failure(lengths, fields, config_of(**options), "cpu") is None


@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("engine", "splits"), [("pages", 1), ("by heads", 2), ("longer rows", 1), ("longer slots", 2)])
def test_simulated_calls_take_strides(engine: str, splits: int) -> None:
    assert call_failure(engine, splits, "cpu") is None


@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("engine", "splits", "absent"), PAST_THE_CACHE)
def test_simulated_pages_past_the_cache_are_left_out(engine: str, splits: int, absent: int) -> None:
    assert call_failure(engine, splits, "cpu", absent) is None


def launch_over(cache: torch.Tensor) -> Any:
    """Launch over a cache of latents of 320."""
    q, out = torch.zeros(1, 1, 4, 320).half(), torch.zeros(1, 1, 4, 256).half()
    table, lengths = torch.zeros(1, 3, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    features: dict[str, Any] = {"layout": "NHD", "scale": 1.0, "sinks": None}
    return launch_latent(q, cache, cache[..., :256], table, lengths, out, None, **features, options=dict(config_of()))


@pytest.mark.parametrize(
    ("cache", "reason"),
    [
        (torch.zeros(4, 16, 1, 324).half()[..., :320], r"k_cache: its pages and slots are \[10368, 648\] bytes apart"),
        (torch.zeros(1, 16, 1, 320).half().expand(4, 16, 1, 320), r"its pages and slots are \[0, 640\] bytes apart"),
        (torch.zeros(4 * 16 * 320 + 1).half()[1:].view(4, 16, 1, 320), "its address is 2 bytes past a multiple of 16"),
        (torch.zeros(0, 16, 1, 320).half(), "k_cache has no pages"),
        (torch.zeros(64, 1, 1, 324).half()[..., :320], "its rows are 648 bytes apart, no multiple of 16"),
        (torch.zeros(64 * 320 + 1).half()[1:].view(64, 1, 1, 320), "its address is 2 bytes past a multiple of 16"),
    ],
    ids=["stride", "expanded", "address", "none", "rows", "address of rows"],
)
def test_what_cannot_be_copied_is_refused_by_name(cache: torch.Tensor, reason: str) -> None:
    with pytest.raises(UnsupportedCallError, match=reason):
        launch_over(cache)


@pytest.mark.slow
def test_defaults_compile_for_hopper_without_a_spill(tmp_path: Path) -> None:
    found = compile_sample("tests.kernels.paged_decode.gluon_latent_sample", "sm_90", tmp_path)
    assert list(found) == list(SHAPES)
    for name, binary in found.items():
        assert binary["shared"] <= binary["expected"] <= NVIDIA_H200.shared_memory_bytes, name
        assert binary["spills"] == 0, name
        assert binary["overlapped"], f"{name}: exponentials wait for the values of the other group's tile"
        # Of a half each thread copies half a row's pieces of 128 bytes four times, 16 bytes at once.
        shape = SHAPES[name]
        pieces = 4 * (shape.head_dim_v // 64 + 1) * 2 if shape.page_size == 1 else 0
        assert binary["gathered"] == pieces, name


WIDTHS: Final = (576, 320, 288)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("lengths", "fields", "options"), list(CASES.values()), ids=[name.replace(" ", "-") for name in CASES]
)
def test_gpu_results_are_true(
    lengths: tuple[int, ...], fields: dict[str, Any], options: dict[str, int], dtype: str
) -> None:
    require_hopper()
    assert gate_failure(lengths, {**fields, "dtype": dtype}, config_of(**options), "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize("page_size", [1, 16, 64, 256])
@pytest.mark.parametrize("heads", [16, 64, 128])
@pytest.mark.parametrize("head_dim", WIDTHS)
def test_gpu_sizes_are_true(head_dim: int, heads: int, page_size: int, splits: int) -> None:
    require_hopper()
    fields = {"head_dim": head_dim, "heads": heads, "page_size": page_size}
    assert gate_failure((1000, 0, 1, 257, 640), fields, config_of(splits=splits), "cuda") is None
    if head_dim != 576:
        assert gate_failure((1000, 0, 1, 257, 640), fields, config_of(splits=splits, slots=4), "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("head_dim", WIDTHS)
def test_gpu_long_sequences_are_true(head_dim: int, page_size: int) -> None:
    """More programs than SMs, of many turns, which end at different times."""
    require_hopper()
    lengths = tuple((8192 - 611 * number) % 8193 for number in range(13)) * 6
    fields = {"head_dim": head_dim, "heads": 128, "dtype": "bfloat16", "page_size": page_size}
    assert gate_failure(lengths, fields, config_of(), "cuda") is None
    assert gate_failure(lengths, fields, config_of(splits=4), "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_gpu_calls_take_strides_and_repeat(engine: str, splits: int) -> None:
    require_hopper()
    assert call_failure(engine, splits, "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize(("engine", "splits", "absent"), PAST_THE_CACHE)
def test_gpu_pages_past_the_cache_are_left_out(engine: str, splits: int, absent: int) -> None:
    assert call_failure(engine, splits, "cuda", absent) is None


def require_hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernel is for Hopper")
