"""Packed sequences in Gluon: simulated over NumPy against dense attention of each, and compiled for sm_90."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from autotune.device import NVIDIA_H200
from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention_varlen.gluon_hopper import KERNEL, launch
from autotune.kernels.flash_attention_varlen.gluon_hopper.launch import launch_packed
from autotune.kernels.flash_attention_varlen.gluon_hopper.tile_table import COLUMNS, write_tiles
from autotune.kernels.flash_attention_varlen.triton import kernel
from autotune.kernels.flash_attention_varlen.triton.sequence_order import Tile
from autotune.space import Config
from tests.contract.compiling import compile_sample
from tests.contract.simulating import SimulatedLaunch, simulated_launches
from tests.kernels.flash_attention_varlen.numerics import (
    HOSTILE,
    Runner,
    graph_failure,
    hostile_failure,
    lengths_failure,
    many_failure,
    neighbours_failure,
    strides_failure,
)
from tests.kernels.flash_attention_varlen.padded import LONG, USED_CASES, UsedCase, used_failure

Lengths = list[tuple[int, int]]
PLAIN: Final = Config(
    consumers=2,
    BLOCK_K=64,
    slots=2,
    query_slots=1,
    ping_pong="off",
    values="late",
    results="own",
    workers="sm",
    sequences="packed",
    order="head",
)
TURNS: Final = Config(
    {**PLAIN, "ping_pong": "issue", "values": "early", "query_slots": 2, "sequences": "longest", "order": "tile"}
)
ALONE: Final = Config({**PLAIN, "consumers": 1, "sequences": "longest"})
THREE: Final = Config({**PLAIN, "consumers": 3, "slots": 3, "BLOCK_K": 128, "order": "tile"})
PACKED: Final = Runner(KERNEL, (PLAIN, TURNS, ALONE))
OTHERS: Final = Runner(KERNEL, (THREE, Config({**THREE, "results": "queries"})))

AROUND_TILES: Final = [(0, 0), (1, 1), (63, 65), (64, 64), (65, 63), (127, 129), (128, 128), (129, 127), (300, 300)]
CASES: Final[dict[str, tuple[Lengths, dict[str, Any]]]] = {
    "none of either": ([(5, 0), (0, 9), (33, 40), (0, 0)], {}),
    "about a tile": (AROUND_TILES, {}),
    "about a tile, full": (AROUND_TILES, {"causal": False}),
    "more keys than queries": ([(1, 290), (3, 70), (130, 200)], {}),
    "more queries than keys": ([(290, 7), (70, 65), (9, 1)], {}),
    "window": ([(200, 333), (130, 70), (5, 0)], {"window": 70}),
    "window of one key": ([(70, 90), (5, 9)], {"window": 1}),
    "two-sided window": ([(200, 260), (140, 33)], {"causal": False, "window": 65}),
    "softcap and sinks": ([(40, 170), (4, 0), (130, 130)], {"softcap": True, "sinks": True}),
    "odd heads": ([(21, 21), (70, 150)], {"heads": 5, "kv_heads": 1, "head_dim": 40, "head_dim_v": 24}),
    "one row of one head": ([(1, 1)], {"heads": 1, "kv_heads": 1}),
    "one row of one head without a key": ([(0, 0), (1, 0), (0, 1)], {"heads": 1, "kv_heads": 1}),
    "parts of columns": ([(70, 150), (3, 66)], {"head_dim": 96, "head_dim_v": 64, "causal": False}),
}
QUICK: Final = ("none of either", "one row of one head", "one row of one head without a key")
by_case = pytest.mark.parametrize(
    ("lengths", "fields"),
    [
        pytest.param(*case, id=name.replace(" ", "-"), marks=[] if name in QUICK else [pytest.mark.slow])
        for name, case in CASES.items()
    ],
)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate launches on the CPU, which counts as a device that Triton has."""
    simulated_launches(launch, monkeypatch)
    monkeypatch.setattr(kernel, "check_device", lambda *_: None)
    monkeypatch.setattr(kernel, "require_context", lambda *_: None)


@by_case
@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_lengths_are_right_in_every_order(lengths: Lengths, fields: dict[str, Any]) -> None:
    assert lengths_failure(lengths, fields, "cpu", PACKED) is None


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_tiles_of_three_consumers() -> None:
    assert lengths_failure([(0, 5), (129, 65), (300, 290), (191, 193)], {}, "cpu", OTHERS) is None


@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_sequences_do_not_touch_each_other() -> None:
    assert neighbours_failure("cpu", Runner(KERNEL, (PLAIN,))) is None


@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("config", [PLAIN, pytest.param(TURNS, marks=pytest.mark.slow)], ids=["plain", "turns"])
def test_simulated_sequences_end_where_their_rows_do(config: Config) -> None:
    assert used_failure(UsedCase(), "cpu", KERNEL, (config,)) is None


@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_tiles_without_a_row_that_counts_see_no_key() -> None:
    assert used_failure(UsedCase({"window": 40}, LONG), "cpu", KERNEL, (PLAIN,)) is None


@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if case.pairs == LONG else []) for name, case in USED_CASES.items()],
)
def test_simulated_rows_that_count_go_with_every_feature(name: str) -> None:
    assert used_failure(USED_CASES[name], "cpu", KERNEL, (ALONE, TURNS)) is None


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_simulated_launch_stays_within_its_tensors(name: str) -> None:
    assert hostile_failure(name, "cpu", Runner(KERNEL, (PLAIN, TURNS))) is None


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_sequences_are_found_among_many() -> None:
    assert many_failure(258, PLAIN, "cpu", KERNEL) is None
    assert many_failure(258, TURNS, "cpu", KERNEL) is None


@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_strides_may_be_any() -> None:
    assert strides_failure("cpu", PLAIN, KERNEL) is None


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        (False, [(0, 0), (128, 5), (0, 5), (0, 135)]),
        (True, [(0, 135), (0, 0), (128, 5), (0, 5)]),  # of 2, 1 and 1 blocks of keys
    ],
)
def test_the_table_has_each_tile_once_and_in_order(longest: bool, expected: list[tuple[int, int]]) -> None:
    """Of a sequence the last tile comes first."""
    offsets = [torch.tensor(each, dtype=torch.int32) for each in ([0, 5, 135, 135, 144], [0, 3, 63, 66, 144])]
    table = torch.full((7, COLUMNS.value), -1, dtype=torch.int32)
    write = SimulatedLaunch(write_tiles)[(6,)]
    write(table, *offsets, None, None, None, 144, 144, 4, Tile(1, 128, 64), longest, COLUMNS.value)
    assert int(table[0, 0]) == 4
    assert [(row, begin) for row, begin, *_ in table[1:5].tolist()] == expected
    rests = {begin: tuple(rest) for _, begin, *rest in table[1:5].tolist()}
    assert rests[5] == (130, 130, 3, 60, -1, -1)  # queries, those that count, the first key, keys
    assert bool((table[5:] == -1).all())


def tensors(**replaced: torch.Tensor) -> dict[str, Any]:
    """Return operands of a launch, on the meta device."""
    sizes = {"q": (40, 4, 64), "k": (50, 2, 64), "v": (50, 2, 64), "out": (40, 4, 64)}
    given: dict[str, Any] = {
        name: torch.empty(size, dtype=torch.float16, device="meta") for name, size in sizes.items()
    }
    offsets = {name: torch.empty(3, dtype=torch.int32, device="meta") for name in ("cu_seqlens_q", "cu_seqlens_k")}
    return given | offsets | {"lse": None, "sinks": None} | replaced


def rows_apart(stride: int) -> torch.Tensor:
    """Return keys, or queries of fewer heads, whose rows lie so many elements apart, on the meta device."""
    return torch.empty_strided((50, 2, 64), (stride, 64, 1), dtype=torch.float16, device="meta")


FEATURES: Final[dict[str, Any]] = {"causal": False, "window": None, "softcap": None, "scale": 1.0}


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        ({"k": torch.empty_strided((50, 2, 64), (131, 64, 1), dtype=torch.float16)}, "k: its strides are .* 16 bytes"),
        ({"v": torch.empty(50, 1, 64).half().expand(50, 2, 64)}, "v: its strides are .* positive multiples"),
        ({"out": torch.empty(40 * 256 + 1).half()[1:].view(40, 4, 64)}, "out: its address is 2 bytes past"),
        ({"q": torch.empty(2**30 + 1, 4, 64, dtype=torch.float16, device="meta")}, "q: its 1073741825 rows are more"),
        ({"k": rows_apart(2**34)}, "k: its rows are 17179869184 elements apart, not fewer than 17179869184"),
        ({"q": rows_apart(2**35), "k": rows_apart(2**34 - 8)}, "q: its rows are 34359738368 elements apart"),
        ({name: torch.empty(0, 2, 64).half() for name in ("k", "v")}, "k has no rows, which no tensor map describes"),
    ],
    ids=["stride", "expanded", "address", "rows", "apart", "further", "no-keys"],
)
def test_what_tma_cannot_copy_is_refused_by_name(replaced: dict[str, torch.Tensor], reason: str) -> None:
    with pytest.raises(UnsupportedCallError, match=f"^{reason}"):
        launch_packed(**tensors(**replaced), **FEATURES, options=PLAIN)


@pytest.mark.slow
def test_configs_compile_for_hopper_without_a_spill(tmp_path: Path) -> None:
    found = compile_sample("tests.kernels.flash_attention_varlen.packed_sample", "sm_90", tmp_path)
    assert len(found) == 7
    for name, binary in found.items():
        assert binary["shared"] <= binary["expected"] <= NVIDIA_H200.shared_memory_bytes, name
        assert binary["spills"] <= 48, name  # of a stack: addresses that loops begin with
        assert binary["steady_spills"] == binary["table_spills"] == 0, name


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("lengths", "fields"), list(CASES.values()), ids=[name.replace(" ", "-") for name in CASES])
def test_gpu_lengths_are_right_in_every_order(lengths: Lengths, fields: dict[str, Any], dtype: str) -> None:
    require_hopper()
    assert lengths_failure(lengths, {"dtype": dtype} | fields, "cuda", PACKED) is None


@pytest.mark.gpu
def test_gpu_tiles_of_three_consumers() -> None:
    require_hopper()
    assert lengths_failure([(0, 5), (129, 65), (300, 290), (191, 193)], {}, "cuda", OTHERS) is None


@pytest.mark.gpu
def test_gpu_sequences_do_not_touch_each_other() -> None:
    require_hopper()
    assert neighbours_failure("cuda", PACKED) is None


@pytest.mark.gpu
def test_gpu_sequences_end_where_their_rows_do() -> None:
    require_hopper()
    assert used_failure(UsedCase(), "cuda", KERNEL, PACKED.configs) is None
    assert used_failure(UsedCase({"window": 40}, LONG), "cuda", KERNEL, PACKED.configs) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", USED_CASES)
def test_gpu_rows_that_count_go_with_every_feature(name: str) -> None:
    require_hopper()
    assert used_failure(USED_CASES[name], "cuda", KERNEL, PACKED.configs) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", HOSTILE)
def test_gpu_launch_stays_within_its_tensors(name: str) -> None:
    require_hopper()
    assert hostile_failure(name, "cuda", PACKED) is None


@pytest.mark.gpu
@pytest.mark.parametrize("count", [256, 257, 600])
def test_gpu_sequences_are_found_among_many(count: int) -> None:
    require_hopper()
    assert [many_failure(count, config, "cuda", KERNEL) for config in PACKED.configs] == [None] * 3


@pytest.mark.gpu
def test_gpu_strides_may_be_any() -> None:
    require_hopper()
    assert strides_failure("cuda", PLAIN, KERNEL) is None


@pytest.mark.gpu
def test_gpu_graph_follows_another_division() -> None:
    require_hopper()
    assert graph_failure(PACKED) is None


def require_hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernel is for Hopper")
