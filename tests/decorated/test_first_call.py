"""``mode="first_call"`` without ``inputs=`` or ``grid=``: searches make arguments like those of the launch."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from autotune import platforms, tuning
from autotune.correctness import Verdict
from autotune.decorated import kernel
from autotune.decorated.key_shapes import KernelShape
from autotune.decorated.recorded_call import RecordedCall, record
from autotune.device import NVIDIA_H200
from autotune.executor.interpreter import check_interpreted
from autotune.executor.messages import Interpret, decode, encode, refer_to_problem
from autotune.trial import Candidate, Status
from tests.outside.decorated_kernels import gather, scale

SIZE: Final = 300
Search = Callable[[Any], object]


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Search], None]]:
    """Let launches find a GPU, and a function of the test's in place of ``autotune.tune``."""

    def replace(search: Search) -> None:
        monkeypatch.setattr(tuning, "tune", lambda shapes, **_: search(*shapes))

    monkeypatch.setattr(kernel, "_place_of", lambda values: NVIDIA_H200)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    for each in (gather, scale):
        monkeypatch.setattr(each, "fn", _silent(each.fn))
        monkeypatch.setattr(each, "mode", "first_call")
        each.maker.calls.clear()
    yield replace
    gather.maker.calls.clear()
    scale.maker.calls.clear()


def _silent(kernel: Any) -> Any:
    return SimpleNamespace(run=lambda *_, **__: None, values=kernel.values if hasattr(kernel, "values") else None)


def launch(grid: Any = lambda meta: (min(2, meta["PROGRAMS"]),), kind: Any = tl.float32) -> dict[str, torch.Tensor]:
    tensors = {
        "x": torch.arange(4 * SIZE, dtype=torch.float16)[::4],
        "index": torch.randperm(SIZE, generator=torch.Generator().manual_seed(3)).to(torch.int32),
        "out": torch.empty(SIZE, dtype=torch.float32),
    }
    gather[grid](tensors["x"], tensors["index"], tensors["out"], 4, SIZE, TYPE=kind)
    return tensors


def test_a_process_of_the_search_computes_the_launch(searching: Callable[[Search], None]) -> None:
    """In a child, by Triton's interpreter: another config agrees with the first, over the indices of the launch."""
    verdicts: list[Verdict] = []

    def search(shape: KernelShape) -> None:
        verdicts.append(check_interpreted(gather.implementation, gather._configs.listed[-1], shape)[0])

    searching(search)
    launch()
    assert [each.status for each in verdicts] == [Status.OK], verdicts


def test_arguments_are_like_the_launches(searching: Callable[[Search], None]) -> None:
    made: list[dict[str, Any]] = []

    def search(shape: KernelShape) -> None:
        any_of_them = Candidate("triton", gather._configs.listed[0])
        message = decode(encode(Interpret(refer_to_problem(gather.operation, shape), any_of_them)))
        gather.maker.calls.clear()  # as in a process that has only the message
        assert isinstance(message, Interpret)
        _, same = message.problem.resolve()
        assert same == shape
        made.extend(gather.maker.make(shape, device="cpu", seed=seed) for seed in (0, 0, 1))
        made.append(gather.maker.make(shape, device="meta"))

    searching(search)
    given = launch()
    first, again, other, meta = made
    assert torch.equal(first["index_ptr"], given["index"])
    assert torch.equal(other["index_ptr"], given["index"])
    assert first["x_ptr"].stride() == meta["x_ptr"].stride() == (4,)
    assert first["x_ptr"].shape == given["x"].shape
    assert torch.equal(first["x_ptr"], again["x_ptr"])
    assert not torch.equal(first["x_ptr"], other["x_ptr"])
    assert first["x_ptr"].std() > 0.5  # drawn, and not what the launch happened to have
    assert (first["stride"], first["size"], first["TYPE"]) == (4, SIZE, tl.float32)
    assert meta["index_ptr"].device.type == "meta"


def test_a_grid_is_evaluated_for_each_config(searching: Callable[[Search], None]) -> None:
    grids: list[Any] = []

    def search(shape: KernelShape) -> None:
        grids.extend(gather.launched._grid_of(config, shape) for config in gather._configs.listed)

    searching(search)
    launch(lambda meta: (meta["PROGRAMS"], meta["num_warps"]))
    assert grids == [(3, 2), (3, 4), (2, 2), (2, 4), (1, 2), (1, 4)]  # of 128, 256 and 512 elements


def test_a_config_whose_grid_raises_is_not_launched(searching: Callable[[Search], None]) -> None:
    def search(shape: KernelShape) -> None:
        small, large = gather._configs.listed[0], gather._configs.listed[-1]
        assert gather.launched._grid_of(small, shape) == (1,)
        gather.launched._grid_of(large, shape)

    searching(search)
    with pytest.warns(RuntimeWarning, match=r"the grid of the launch raised for BLOCK=512"):
        launch(lambda meta: (1 // (meta["BLOCK"] < 512),))


def test_a_declared_grid_and_declared_inputs_come_first(searching: Callable[[Search], None]) -> None:
    def search(shape: KernelShape) -> None:
        (made,) = [scale.maker.make(shape, device="cpu")]
        assert made["factor"] == 3.0
        assert callable(scale.launched._grid_of(scale._configs.listed[0], shape))

    searching(search)
    x = torch.zeros(8, dtype=torch.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scale[(7,)](x, x, 8, 1.0)


def test_nothing_of_a_launch_is_left_when_the_search_ends(searching: Callable[[Search], None]) -> None:
    files: list[Path] = []

    def search(shape: KernelShape) -> None:
        files.append(Path(gather.maker.calls[shape].held))
        assert files[0].is_file()

    searching(search)
    launch()
    assert not files[0].parent.exists()
    (call,) = gather.maker.calls.values()
    assert (call.held, call.grids) == ("", ())


def test_an_argument_that_no_process_can_have_is_named(searching: Callable[[Search], None]) -> None:
    searching(lambda shape: str(refer_to_problem(gather.operation, shape)))
    expected = r"could not tune .*TYPE=<object object at .*> is neither a tensor nor a plain value.*expected inputs="
    with pytest.warns(RuntimeWarning, match=expected):
        launch(kind=object())


def test_a_tensor_descriptor_and_every_plain_value_survive_the_way_to_another_process() -> None:
    base = torch.zeros(8, 32, dtype=torch.float16)[:, :16]
    off = torch.zeros(9, dtype=torch.float32)[1:]
    named = {
        "tile": TensorDescriptor.from_tensor(base, [4, 16]),
        "off": off,
        "empty": torch.empty(0, 3),
        "kind": torch.bfloat16,
        "wide": tl.float8e4nv,
        "sizes": (1, [2.5, None], "text", True),
    }
    made = RecordedCall.from_text(record(named).to_text()).make(
        device="cpu", draw=lambda name, count, dtype: torch.ones(count, dtype=dtype)
    )
    tile = made["tile"]
    assert isinstance(tile, TensorDescriptor)
    assert (list(tile.shape), list(tile.strides), list(tile.block_shape)) == ([8, 16], [32, 1], [4, 16])
    assert tile.base.stride() == base.stride()
    assert made["off"].data_ptr() % 16 == off.data_ptr() % 16 == 4  # Triton compiles another binary for it
    assert made["empty"].shape == (0, 3)
    assert {name: made[name] for name in ("kind", "wide", "sizes")} == {
        name: named[name] for name in ("kind", "wide", "sizes")
    }


def test_where_no_gpu_is_a_launch_says_that_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "fn", _silent(scale.fn))
    monkeypatch.setattr(scale, "mode", "first_call")
    x = torch.empty(SIZE)
    with pytest.warns(RuntimeWarning, match="scale: mode='first_call' searches on a GPU alone; here BLOCK=128"):
        scale[(1,)](x, x, SIZE, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scale[(1,)](x, x, SIZE, 1.0)  # of a key that was launched before
