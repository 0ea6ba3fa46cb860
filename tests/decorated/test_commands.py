"""Commands over a kernel of the user's: what is planned, what is refused, and hints that other processes understand."""

import importlib
import json
import logging
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from autotune import platforms, references
from autotune.cli.app import main
from autotune.decorated import kernel
from autotune.errors import UsageError
from autotune.tuning import tune
from tests import outside, sample
from tests.benchmarks.model_grid.fake_gpu import H100
from tests.decorated.by_block import NOTE, launch, use_gpu, watch_launches
from tests.outside import row_scale


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
    run: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use_gpu(monkeypatch)
    watch_launches(monkeypatch)
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
    gpu = use_gpu(monkeypatch)
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
