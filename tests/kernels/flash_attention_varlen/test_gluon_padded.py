"""Padded batches in Gluon: simulated over NumPy against the formula, all scores at once, and run on a GPU."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention_varlen.gluon_hopper import KERNEL, launch
from autotune.kernels.flash_attention_varlen.gluon_hopper.launch import launch_packed
from autotune.kernels.flash_attention_varlen.gluon_hopper.padded_rows import HEADER, LISTS, number_rows
from autotune.kernels.flash_attention_varlen.triton import kernel
from autotune.space import Config
from tests.contract.planting import Mutant, load_copy, package_of
from tests.contract.simulating import SimulatedLaunch, simulated_launches
from tests.kernels.flash_attention_varlen.numerics import Runner
from tests.kernels.flash_attention_varlen.padded import (
    BOTH,
    CASES,
    PaddedCase,
    graph_failure,
    hostile_failure,
    padded_failure,
)
from tests.kernels.flash_attention_varlen.test_gluon_packed import ALONE, PLAIN, THREE, TURNS, require_hopper

PADDED: Final = Runner(KERNEL, (PLAIN, TURNS, ALONE))
HALVES: Final = {name: case for name, case in CASES.items() if case.fields.get("dtype") != "float32"}
LONG: Final = {
    "long, right": PaddedCase((300, 300), ((300, 129, 5, 64), (300, 129, 5, 64), None)),
    "long, left": PaddedCase((300, 300), (None, None, (0, 171, 295, 300))),
    "long, both": PaddedCase((200, 333), ((200, 64, 0, 131), (333, 200, 129, 1), (0, 130, 64, 0)), {"window": 70}),
    "long, full": PaddedCase((130, 200), (None, (200, 0, 65, 64), None), {"causal": False, "sinks": True}),
    # Queries behind the last key, whose windows end inside of blocks.
    "long, window": PaddedCase((300, 300), (None, (150, 300, 90, 0), None), {"window": 100}),
    "long, two-sided window": PaddedCase((300, 300), (None, (150, 300, 90, 0), None), {"window": 100, "causal": False}),
    "parts of columns": PaddedCase((70, 150), BOTH, {"head_dim": 96, "head_dim_v": 64, "causal": False}),
}
QUICK: Final = ("both", "sinks", "chunk", "long, window")
by_name = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in HALVES | LONG],
)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate launches on the CPU, which counts as a device that Triton has."""
    simulate_in(launch, monkeypatch)


def simulate_in(module: Any, patch: pytest.MonkeyPatch) -> None:
    simulated_launches(module, patch)
    patch.setattr(kernel, "check_device", lambda *_: None)
    patch.setattr(kernel, "require_context", lambda *_: None)


@by_name
@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_padding_is_hidden(name: str) -> None:
    assert padded_failure((HALVES | LONG)[name], "cpu", PADDED.configs, KERNEL) is None


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_tiles_of_three_consumers() -> None:
    assert padded_failure(LONG["long, right"], "cpu", (THREE,), KERNEL) is None


@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_numbers_out_of_range_reach_nothing() -> None:
    assert hostile_failure("cpu", Runner(KERNEL, (PLAIN,))) is None


def test_numbers_say_where_the_rows_that_count_are() -> None:
    """Of a batch padded on the left, with keys 100 rows apart and values 50."""
    numbers = torch.full((HEADER.value + LISTS.value * 4,), -1, dtype=torch.int32)
    starts = torch.tensor([0, 7, 40], dtype=torch.int32)
    SimulatedLaunch(number_rows)[(1,)](numbers, None, None, starts, 40, 40, 40, 100, 50, 3, 9, True)
    assert numbers[:3].tolist() == [3, 40, 9]
    assert numbers[HEADER.value :].view(LISTS.value, 4).tolist() == [
        [0, 40, 73, 73],
        [0, 40, 73, 73],
        [0, 47, 120, -1],  # 33 queries from the eighth on; the third sequence has none that sees a key
        [0, 47, 120, -1],
        [0, 107, 240, -1],
        [0, 57, 140, -1],
        [40, 33, 0, -1],
    ]


MUTANTS: Final = (
    Mutant("rows of padding are left as they are", "padded_rows.py", "mask=start + lanes < words,",
           "mask=start + lanes < 0,", "both"),
    Mutant("padding in front is left as it is", "padded_rows.py", "heads, first, counting - first)",
           "heads, first, 0)", "left"),
    Mutant("logarithms of padding are left as they are", "padded_rows.py", "values, mask=places < numbers)",
           "values, mask=places < 0)", "both"),
    Mutant("padding of queries is computed", "padded_rows.py", "count = end - first\n",
           "count = rows * 0 + q_rows - first\n", "queries"),
    Mutant("output of the queries", "padded_rows.py", "sequences * q_rows + first", "sequences * q_apart + first",
           "both"),
    Mutant("values of the keys", "forward.py", "SequenceRows(tile.first_value, tile.length)",
           "SequenceRows(tile.out_begin, tile.length)", "both"),
    Mutant("diagonal of the queries that count", "padded_rows.py", "length - first - ahead + first_key", "count",
           "right"),
)  # fmt: skip


def mutant_failure(mutant: Mutant, folder: Path) -> str | None:
    """Return the failure of the mutant's case; the simulator stops a store outside of a tensor."""
    copied = load_copy("flash_attention_varlen", "gluon_hopper", mutant, folder)
    module = sys.modules[f"{package_of('flash_attention_varlen', 'gluon_hopper', mutant)}.launch"]
    with pytest.MonkeyPatch.context() as patch:
        simulate_in(module, patch)
        try:
            return padded_failure(CASES[mutant.gate], "cpu", (PLAIN,), copied)
        except (AssertionError, IndexError) as error:
            return str(error) or type(error).__name__


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_mutant_is_caught_on_the_cpu(mutant: Mutant, tmp_path: Path) -> None:
    assert mutant_failure(mutant, tmp_path) is not None


def tensors(**replaced: torch.Tensor) -> dict[str, Any]:
    """Return operands of a launch over a padded batch, on the meta device."""
    sizes = {"q": (3, 40, 4, 64), "k": (3, 50, 2, 64), "v": (3, 50, 2, 64), "out": (3, 40, 4, 64)}
    given: dict[str, Any] = {
        name: torch.empty(size, dtype=torch.float16, device="meta") for name, size in sizes.items()
    }
    return given | {"cu_seqlens_q": None, "cu_seqlens_k": None, "lse": None, "sinks": None} | replaced


def batch_apart(stride: int) -> torch.Tensor:
    return torch.empty_strided((3, 50, 2, 64), (stride, 128, 64, 1), dtype=torch.float16, device="meta")


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        ({"k": batch_apart(50 * 128 + 64)}, "k: its sequences are 6464 elements apart, no multiple of the 128 of its"),
        ({"v": batch_apart(2**37)}, "v: its 2147483698 rows are more than the 1073741824 of a ragged tensor map"),
        ({"q": torch.empty(3, 40, 1, 64).half().expand(3, 40, 4, 64)}, "q: its strides are .* positive multiples"),
    ],
    ids=["apart", "rows", "expanded"],
)
def test_what_tma_cannot_copy_is_refused_by_name(replaced: dict[str, torch.Tensor], reason: str) -> None:
    options: dict[str, Any] = {"causal": False, "window": None, "softcap": None, "scale": 1.0, "options": PLAIN}
    with pytest.raises(UnsupportedCallError, match=f"^{reason}"):
        launch_packed(**tensors(**replaced), **options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", HALVES | LONG)
def test_gpu_padding_is_hidden(name: str, dtype: str) -> None:
    require_hopper()
    case = (HALVES | LONG)[name]
    configs: tuple[Config, ...] = (*PADDED.configs, THREE)
    assert padded_failure(replace(case, fields={"dtype": dtype} | case.fields), "cuda", configs[:3], KERNEL) is None
    assert padded_failure(replace(case, fields={"dtype": dtype} | case.fields), "cuda", configs[3:], KERNEL) is None


@pytest.mark.gpu
def test_gpu_numbers_out_of_range_reach_nothing() -> None:
    require_hopper()
    assert hostile_failure("cuda", PADDED) is None


@pytest.mark.gpu
def test_gpu_graph_follows_other_numbers() -> None:
    require_hopper()
    assert graph_failure(PADDED) is None
