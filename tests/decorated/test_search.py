"""From the decorator to a stored winner to the config of a launch: the path of every operation."""

import importlib
import json
import logging
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch

from autotune import dispatch, platforms, references, tuning
from autotune.cli.app import main
from autotune.decorated import DecoratedKernel, kernel
from autotune.errors import MissingDependencyError, UsageError
from autotune.executor import Race
from autotune.implementation import Implementation
from autotune.table import Store, home
from autotune.trial import Candidate, Outcome, Stage, Status
from autotune.tuning import tune, tuner
from autotune.workload import operation_for
from tests import outside, sample
from tests.benchmarks.model_grid.fake_gpu import H100, Gpu
from tests.outside import row_scale
from tests.outside.decorated_kernels import scale, total

NOTE: Final = "compared with the first config's numbers, as no reference= is given"


class ByBlock(Gpu):
    """A GPU on which the last config is the fastest, and whose verdicts carry a note."""

    def microseconds(self, candidate: Candidate) -> float:
        return 200.0 - 20.0 * float(sum(scale.implementation.space.order(candidate.config)))

    def outcome(self, candidate: Candidate) -> Outcome:
        return Outcome(
            candidate=candidate, status=Status.OK, message=NOTE, timing=sample.timing(self.microseconds(candidate))
        )

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Any = "none") -> Race:
        return Race(tuple(map(self.outcome, candidates)))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ByBlock:
    """The GPU that searches find, and that launches happen on."""
    found = ByBlock()
    monkeypatch.setattr(tuner, "open_executor", lambda *_: found)
    monkeypatch.setattr(tuner, "open_gpu", lambda *_: found)
    monkeypatch.setattr(kernel, "_place_of", lambda values: H100)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    return found


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options that launches pass to Triton."""
    calls: list[dict[str, Any]] = []
    run: Callable[..., None] = lambda *args, **named: calls.append(named)  # noqa: E731
    for each in (scale, total):
        monkeypatch.setattr(each, "fn", SimpleNamespace(run=run))
    return calls


def launch(chosen: DecoratedKernel = scale, size: int = 4096, dtype: torch.dtype = torch.float16) -> None:
    x = torch.empty(size, dtype=dtype)
    chosen[lambda meta: (1,)](x, x, size, 1.0)


def test_a_winner_is_stored_and_launched(gpu: ByBlock, launched: list[dict[str, Any]]) -> None:
    launch()
    assert (launched[0]["BLOCK"], launched[0]["num_warps"]) == (128, 2)  # the first of the list, without a row
    shape = scale.shape_class(size=4096)
    (result,) = tune(shape, budget=None).results
    assert result.winner is not None
    assert dict(result.winner.config) == {"BLOCK": 512, "num_warps": 4, "num_stages": 3}
    rows = Store(home()).trials("scale", H100)
    assert len({row.config for row in rows if row.stage is Stage.SCREEN}) == 6
    assert {row.outcome.message for row in rows} == {NOTE}
    launch()  # the tables were read again
    assert (launched[1]["BLOCK"], launched[1]["num_warps"]) == (512, 4)
    assert scale.best_config.kwargs == {"BLOCK": 512}
    assert dispatch.get_kernel(shape, device=H100.name).provenance.rung == "exact"


def test_neighbours_and_other_dtypes(gpu: ByBlock, launched: list[dict[str, Any]]) -> None:
    tune(scale.shape_class(size=4096), budget=None)
    launch(size=8192)  # a factor of two away
    launch(size=16384)
    launch(dtype=torch.float32)  # another row, as for Triton's key
    assert [each["BLOCK"] for each in launched] == [512, 128, 128]


def test_the_first_call_tunes_where_that_is_asked_for(
    gpu: ByBlock, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "mode", "first_call")
    launch()
    launch()
    assert [each["BLOCK"] for each in launched] == [512, 512]
    assert len(gpu.asked) == 6  # once


def test_a_first_call_that_cannot_tune_says_so_and_launches(
    gpu: ByBlock, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MissingDependencyError("no compiler")

    monkeypatch.setattr(scale, "mode", "first_call")
    monkeypatch.setattr(tuner, "open_gpu", fail)
    with pytest.warns(RuntimeWarning, match=r"scale: mode='first_call' could not tune size=4096, float16: no compiler"):
        launch()
    assert launched[0]["BLOCK"] == 128


def test_a_search_that_failed_is_not_tried_again_after_a_reload_but_for_another_source(
    gpu: ByBlock, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(*_: object) -> None:
        tried.append(1)
        raise MissingDependencyError("no compiler")

    monkeypatch.setattr(scale, "mode", "first_call")
    monkeypatch.setattr(tuner, "open_gpu", fail)
    with pytest.warns(RuntimeWarning, match="could not tune"):
        launch()
    dispatch.reload()
    launch()
    assert len(tried) == 1
    monkeypatch.setattr(Implementation, "source_hash", "other")
    dispatch.reload()
    with pytest.warns(RuntimeWarning, match="could not tune"):
        launch()
    assert len(tried) == 2


def test_a_launch_that_waited_for_a_search_searches_no_more(
    gpu: ByBlock, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, pick, searched = scale.shape_class(size=4096), partial(dispatch.pick_for_device, place=H100), []
    picks = [pick(shape, operation="scale")]
    tune(shape, budget=None)  # in another thread, as it seems, between the pick and the lock
    monkeypatch.setattr(tuning, "tune", lambda *given, **options: searched.append(given))
    monkeypatch.setattr(scale, "mode", "first_call")
    monkeypatch.setattr(
        kernel, "pick_for_device", lambda *given: picks.pop() if picks else dispatch.pick_for_device(*given)
    )
    launch()
    assert not searched
    assert launched[0]["BLOCK"] == 512


def test_pruned_configs_are_no_members_and_the_default_is_the_first_that_is_left(gpu: ByBlock) -> None:
    shape = total.shape_class(size=130)
    assert [config["BLOCK"] for config in total.implementation.space.configs(shape, H100)] == [128, 128]
    (result,) = tune(shape, budget=None).results
    assert result.winner is not None
    assert dict(result.winner.config) == {"BLOCK": 128, "num_warps": 4, "num_stages": 3}


def test_what_this_toolchain_refuses_gives_way(gpu: ByBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    tune(scale.shape_class(size=4096), budget=None)
    seen = []

    def run(*args: Any, **named: Any) -> None:
        seen.append(named["BLOCK"])
        if named["BLOCK"] == 512:
            raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(scale, "fn", SimpleNamespace(run=run))
    with pytest.warns(RuntimeWarning, match="this toolchain refuses triton BLOCK=512"):
        launch()
    launch()
    assert seen == [512, 128, 128]


def test_a_refusal_that_another_thread_met_first_costs_nobody_else_a_place(gpu: ByBlock) -> None:
    from triton.runtime.errors import OutOfResources

    shape = scale.shape_class(size=4096)
    tune(shape, budget=None)
    tuned, error = dispatch.pick_for_device(shape, H100, "scale"), OutOfResources(300_000, 232_448, "shared memory")
    refused = tuned.candidate
    with pytest.warns(RuntimeWarning, match="this toolchain refuses triton BLOCK=512"):
        assert tuned.give_way(error, refused)
    following = tuned.candidate
    assert following != refused
    assert tuned.give_way(error, refused)
    assert tuned.candidate == following
    assert not tuned.give_way(ValueError("of the caller"), following)


def test_a_pick_that_a_reload_overtakes_is_not_kept(
    gpu: ByBlock, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = scale.pick

    def overtaken(*given: Any) -> Any:
        found = pick(*given)
        tune(scale.shape_class(size=4096), budget=None)  # which reloads
        return found

    monkeypatch.setattr(scale, "pick", overtaken)
    launch()
    monkeypatch.setattr(scale, "pick", pick)
    launch()
    assert [options["BLOCK"] for options in launched] == [128, 512]


def test_shapes_find_their_operation() -> None:
    assert operation_for(scale.shape_class(size=1)) is scale.operation
    assert operation_for(total.shape_class(size=1)) is total.operation


def test_without_a_gpu_a_search_says_that_nothing_is_recorded() -> None:
    with pytest.raises(MissingDependencyError, match="no sweep of an NVIDIA H200 is recorded to replay"):
        tune(scale.shape_class(size=4096))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command; return its exit and what it printed."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["autotune", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return command


def test_the_command_line_takes_a_kernel(run: Callable[..., tuple[int, str, str]]) -> None:
    named = ["--kernel", "tests.outside.decorated_kernels:scale", "--shape", "size=4096,dtype=fp32"]
    (served,) = json.loads(run("lookup", *named, "--device", "NVIDIA H200", "--json")[1])
    assert (served["rung"], served["config"]["BLOCK"]) == ("default", 128)
    assert "6 configs on NVIDIA H200" in run("search", *named, "--device", "NVIDIA H200", "--dry-run")[1]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("scale", "--kernel='scale' is no reference; expected a kernel under @autotune.tuned"),
        ("tests.outside.decorated_kernels:scal", "(did you mean 'scale'?)"),
        ("tests.outside.decorated_kernels:nothing_like", "; kernels there: "),
        ("tests.outside.decorated_kernels:by_block", "is no kernel under tuned; kernels there: "),
        ("tests.outside.decorated_kernels:torch", "is no kernel under tuned; kernels there: "),
        ("tests/outside/decorated_kernels.py:scale", "expected its module, --kernel tests.outside.decorated_kernels:"),
        ("tests.outside.decorated_kernels.py:scale", "names a file; expected its module, --kernel tests.outside.dec"),
        ("tests.outside.absent:scale", "cannot be imported: No module named 'tests.outside.absent'"),
    ],
)
def test_what_is_no_kernel_is_refused_by_name(
    run: Callable[..., tuple[int, str, str]], reference: str, message: str
) -> None:
    code, _, error = run("lookup", "--kernel", reference, "--shape", "size=1")
    assert code == 2
    assert message in error


def test_a_mistake_of_a_decorator_is_told_as_it_is(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mistaken.py").write_text("from autotune import tuned\ntuned(configs=[], key=[])\n")
    for options in (["--kernel", "mistaken:kernel"], ["--import", "mistaken"]):
        _, _, error = run("lookup", *options, "--shape", "size=1")
        assert error.endswith("configs=[] is empty; expected at least one triton.Config\n")


KERNEL: Final = "tests.outside.decorated_kernels:scale"


def commands_of(text: str) -> list[list[str]]:
    """The commands between backticks, typed as they stand, but for sizes."""
    found = re.findall(r"`autotune ([^`]*)`", text.replace("INTEGER", "64"))
    return [shlex.split(each) for each in found]


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "--kernel", KERNEL),
        ("export", "--kernel", KERNEL),
        ("report", "--kernel", KERNEL),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_hint_is_a_command_that_another_process_understands(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    _, printed, error = run(*arguments)
    commands = commands_of(printed + error)
    assert commands, printed + error
    for command in commands:
        forget_kernels(monkeypatch)
        words = [*command, "--dry-run"] if command[0] == "search" and "--dry-run" not in command else command
        code, printed, error = run(*words, "--device", "NVIDIA H200")
        assert (code, error) == (0, ""), words


def forget_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know what is ours alone, as a process that has imported no kernel, and import kernels anew."""
    row_scale.isolate(monkeypatch)
    monkeypatch.setattr(references, "_loaded", {})
    monkeypatch.delitem(sys.modules, KERNEL.partition(":")[0])
    monkeypatch.delattr(outside, "decorated_kernels")  # so that the package has the same module again afterwards


def test_a_missed_shape_is_told_with_a_command_that_another_process_understands(
    gpu: ByBlock,
    launched: list[dict[str, Any]],
    run: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kernel, "_place_of", lambda values: 0)
    monkeypatch.setattr(platforms, "current_device", lambda index=0: H100)
    with caplog.at_level(logging.INFO, logger="autotune"):
        launch(size=96)
    (command,) = commands_of(caplog.text)
    assert command == ["search", "--kernel", KERNEL, "--shape", "size=96,dtypes=float16"]
    forget_kernels(monkeypatch)
    sample.hide_gpu(monkeypatch)
    code, printed, _ = run(*command, "--dry-run", "--device", "NVIDIA H200")
    assert (code, "size=96, float16" in printed) == (0, True)


def test_tables_do_not_advise_what_was_asked_for(run: Callable[..., tuple[int, str, str]]) -> None:
    *_, error = run("report", "shipped", "--kernel", KERNEL)
    assert "report shipped`" not in error
    assert f"`autotune search --kernel {KERNEL} --shape size=INTEGER` makes some" in error


H200: Final = ("--device", "NVIDIA H200")
BARE: Final = """
import triton
import triton.language as tl
import autotune

@triton.jit
def _fill(x_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, offsets, mask=offsets < size)

configs, key = [triton.Config({"BLOCK": 64})], ["size"]
grid, inputs = (lambda meta: (1,)), {"x_ptr": ("size",)}
bare = autotune.tuned(configs, key, grid=grid, name="bare")(_fill)
gridless = autotune.tuned(configs, key, inputs=inputs, name="gridless")(_fill)
whole = autotune.tuned(configs, key, grid=grid, inputs=inputs, name="whole")(_fill)
given = {"key": key, "inputs": inputs}
gone = autotune.tuned(configs, grid=lambda meta: (meta["BLOK"],), name="gone", **given)(_fill)
halves = autotune.tuned(configs, grid=lambda meta: (meta["size"] / meta["BLOCK"],), name="halves", **given)(_fill)
none = autotune.tuned(configs, grid=lambda meta: (meta["size"] // meta["BLOCK"],), name="none", **given)(_fill)
many = autotune.tuned(configs, grid=(1, 2, 3, 4), name="many", **given)(_fill)
paired = autotune.tuned(configs, key, grid=grid, inputs=lambda shape: (1, 2), name="paired")(_fill)
checked = autotune.tuned(configs, grid=grid, check_shapes=lambda shape: [3], name="checked", **given)(_fill)
failing = autotune.tuned(configs, grid=grid, check_shapes=lambda shape: {}["x"], name="failing", **given)(_fill)
empty = autotune.tuned(configs, key, grid=grid, inputs={"x_ptr": (0,)}, name="empty")(_fill)
reset = autotune.tuned(configs, grid=grid, reset_to_zero=["size"], name="reset", **given)(_fill)
raising = autotune.tuned(configs, key, grid=grid, inputs=lambda shape: {"x_ptr": shape.width}, name="raising")(_fill)
"""


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("bare", 64, "inputs= is not given, so no arguments can be made for size=64, float16; give it, such as"),
        ("bare", 64, "inputs={'x_ptr': ('size',), ...}"),
        ("gridless", 64, "grid= is not given, so a search cannot launch it; give the one of its launches, such as"),
        ("raising", 64, "inputs(size=64, float16) raised AttributeError: "),
        ("whole", 0, "whole: size=0 is not allowed in a search; expected 1 or more, as it is a size of x_ptr"),
        ("gone", 64, "gone: grid= reads 'BLOK' (did you mean 'BLOCK'?); expected some of x_ptr, size, BLOCK"),
        ("halves", 64, "halves: grid= gives (1.0,) for BLOCK=64"),
        ("none", 63, "none: grid= gives (0,) for BLOCK=64"),
        ("many", 64, "expected one to three integers"),
        ("failing", 64, "failing: check_shapes(size=64, float16) raised KeyError: 'x'"),
        ("empty", 64, "empty: x_ptr would be empty; expected some elements to write"),
        ("paired", 64, "paired: inputs(size=64, float16) returned tuple; expected a dict of x_ptr, size"),
        ("checked", 64, "checked: check_shapes(size=64, float16) returned 3; expected shapes, such as ["),
        ("reset", 64, "reset: reset_to_zero and restore_value are of tensors, which size is not"),
    ],
)
def test_what_a_search_could_not_measure_is_refused_before_it_is_planned(
    request: pytest.FixtureRequest,
    run: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    size: int,
    message: str,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "unsearchable", raising=False)
    monkeypatch.setattr(references, "_loaded", {})
    (tmp_path / "unsearchable.py").write_text(BARE)
    asked = ["--kernel", f"unsearchable:{name}", "--shape", f"size={size}", *H200]
    code, printed, error = run("search", *asked, "--dry-run")
    assert (code, "/triton: " in printed) == (2, False)
    assert message in error
    gpu = request.getfixturevalue("gpu")
    with pytest.raises(UsageError, match=re.escape(message)):
        tune(getattr(sys.modules["unsearchable"], name).shape_class(size=size), operation=name)
    assert not gpu.asked


MEASURABLE: Final = """
import numpy as np
import torch

@triton.jit
def _part(x_ptr, bias_ptr, size, BLOCK: tl.constexpr, SPLIT: tl.constexpr = 2):
    tl.store(x_ptr + tl.arange(0, BLOCK), 1.0, mask=tl.arange(0, BLOCK) < size)

several = [triton.Config({"BLOCK": block}) for block in (128, 64)]
sizes = {"x_ptr": ("size",), "bias_ptr": (0,)}

def make(grid, configs=several, inputs=sizes, **named):
    return autotune.tuned(configs, key, grid=grid, inputs=inputs, **named)(_part)

reads = make(lambda meta: (meta["x_ptr"].max().int().item(),), name="reads")
default = make(lambda meta: (meta["SPLIT"],), name="default")
device = make(lambda meta: (torch.cuda.get_device_properties(meta["x_ptr"].device).multi_processor_count,), name="d")
pruned = make(lambda meta: (meta["size"] // meta["BLOCK"],), name="pruned", prune_configs_by={
    "early_config_prune": lambda configs, named, **_: [c for c in configs if c.kwargs["BLOCK"] <= named["size"]]})
winning = make(lambda meta: (meta["size"] // meta["BLOCK"],), name="winning", reference=lambda x_ptr: x_ptr)
whole_numbers = make(lambda meta: (np.int64(2), np.int32(1)), name="whole_numbers")
optional = make(grid, name="optional", reset_to_zero=["bias_ptr"], inputs=lambda shape: {
    "x_ptr": torch.zeros(shape.size), "bias_ptr": None, "size": shape.size})
warps = make(grid, [triton.Config({"BLOCK": 64}, num_warps=np.int64(4))], name="warps")
"""


@pytest.mark.parametrize(
    "name", ["reads", "default", "device", "pruned", "winning", "whole_numbers", "optional", "warps"]
)
def test_what_a_search_can_measure_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "measurable", raising=False)
    (tmp_path / "measurable.py").write_text(BARE + MEASURABLE)
    kernel = getattr(importlib.import_module("measurable"), name)
    assert kernel.operation.unsearchable(kernel.shape_class(size=64)) is None


def test_a_plan_says_what_numbers_are_compared_with(run: Callable[..., tuple[int, str, str]]) -> None:
    for name, is_said in (("step", True), ("scale", False)):
        kernel = f"tests.outside.decorated_kernels:{name}"
        _, printed, _ = run("search", "--kernel", kernel, "--shape", "size=64", *H200, "--dry-run")
        assert (f"numbers   {NOTE}" in printed) == is_said
