"""A kernel is found by the name that a module has bound it to, whatever the name of its function."""

import gc
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest
import torch

from autotune import dispatch, registry
from autotune.console.kernel_option import named_operation
from autotune.decorated import DecoratedKernel, kernel
from autotune.decorated.contract import Contract, make_contract
from autotune.device import NVIDIA_H200
from autotune.errors import UnknownNameError, UsageError
from autotune.executor.messages import refer_to_problem

ROOT: Final = Path(__file__).parents[2]
LIBRARY: Final = """
import triton
import triton.language as tl

@triton.jit
def _fill(x_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, offsets, mask=offsets < size)
"""
HEADER: Final = """
import triton
import autotune
from a_library import _fill

def tuned(block, **named):
    return autotune.tuned([triton.Config({"BLOCK": block})], key=["size"], inputs={"x_ptr": ("size",)},
                          grid=lambda meta: (triton.cdiv(meta["size"], meta["BLOCK"]),), **named)(_fill)
"""
DECORATE: Final = HEADER.partition("def tuned")[0] + (
    'decorate = autotune.tuned([triton.Config({"BLOCK": 64})], key=["size"], name="filled")\n'
)


def launch(launched: DecoratedKernel, size: int = 4) -> object:
    """Launch without a GPU, and return the block of the config that was taken."""
    launched.fn = SimpleNamespace(run=lambda *_, **__: None)
    launched[(1,)](torch.empty(size), size)
    return launched.best_config.kwargs["BLOCK"]


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of that source beside the library whose kernel it tunes."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "a_library.py").write_text(LIBRARY)
    for name in ("a_library", "a_user"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def make(source: str) -> ModuleType:
        (tmp_path / "a_user.py").write_text(source)
        importlib.invalidate_caches()
        return importlib.import_module("a_user")

    return make


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        ("other_name = decorate(_fill)", "a_user:other_name"),
        ("_fill = decorate(_fill)", "a_user:_fill"),
        ("even = triton.heuristics({})(decorate(_fill))", "a_user:even"),
    ],
    ids=["another-name", "its-functions-name", "under-heuristics"],
)
def test_a_kernel_of_a_library_is_found_where_it_was_tuned(
    make_module: Callable[[str], ModuleType],
    line: str,
    reference: str,
) -> None:
    made = make_module(f"{DECORATE}\n{line}\n")
    assert registry.operation_reference("filled") == f"{reference}.operation"
    found = getattr(made, reference.partition(":")[2])
    operation = registry.get_operation("filled")
    assert operation is (found.fn if line.startswith("even") else found).operation
    shape = operation.shape_class(size=64)
    assert dispatch.get_kernel(shape, device=NVIDIA_H200.name).config["BLOCK"] == 64
    assert named_operation(None, reference) == "filled"


def test_another_process_finds_it_by_the_message_of_a_search(
    make_module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    shape = make_module(f"{DECORATE}\nother_name = decorate(_fill)\n").other_name.shape_class(size=64)
    message = json.dumps(asdict(refer_to_problem(registry.get_operation("filled"), shape)))
    program = (
        "import json, sys; from autotune.executor.messages import ProblemReference; from autotune import registry; "
        "operation, shape = ProblemReference(**json.loads(sys.argv[1])).resolve(); import a_user; "
        "assert operation is a_user.other_name.operation is registry.get_operation('filled'); "
        "assert registry.load_kernel('filled', 'triton') is a_user.other_name.launched; print(shape)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program, message], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "size=64, float16\n"), done.stderr


def test_two_kernels_of_one_function_need_names(make_module: Callable[[str], ModuleType]) -> None:
    made = make_module(f"{HEADER}\nfirst = tuned(64, name='shared')\nsecond = tuned(128, name='shared')\n")
    assert registry.operation_reference("shared") == "a_user:second.operation"
    with pytest.raises(UsageError, match="a_user:first: shared is the operation of a_user:second now; give one"):
        launch(made.first)
    with pytest.raises(UsageError, match="--kernel='a_user:first': shared is the operation of a_user:second now; give"):
        named_operation(None, "a_user:first")


def test_one_that_only_a_container_holds_is_served_here_and_found_by_no_other_process(
    make_module: Callable[[str], ModuleType],
) -> None:
    held = make_module(f"{HEADER}\nKERNELS = {{64: tuned(64, name='held')}}\n").KERNELS[64]
    assert held.reference == ""
    shape = held.shape_class(size=64)
    assert dispatch.get_kernel(shape, device=NVIDIA_H200.name).config["BLOCK"] == 64
    with pytest.raises(UsageError, match="operation='held': no module has a name for its kernel, by which other proc"):
        refer_to_problem(held.operation, shape)


def test_a_name_that_is_bound_again_is_another_kernels(make_module: Callable[[str], ModuleType]) -> None:
    loop = "for b in (64, 128):\n    kernel = tuned(b, name=f'fill_{b}')\n    globals()[f'fill_{b}'] = kernel\n"
    made = make_module(f"{HEADER}\n{loop}del kernel\n_ = fill_128\n")
    for block in (64, 128):
        found = getattr(made, f"fill_{block}")
        assert launch(found) == block
        assert registry.get_operation(f"fill_{block}") is found.operation
        assert registry.operation_reference(f"fill_{block}") == f"a_user:fill_{block}.operation"


def test_a_cell_that_runs_again_with_another_name_is_another_operation(
    make_module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    made = make_module(f"{HEADER}\nfast = tuned(64, name='one')\n")
    assert launch(made.fast) == 64
    (tmp_path / "a_user.py").write_text(f"{HEADER}\nfast = tuned(128, name='two')\n")
    importlib.reload(made)
    assert launch(made.fast) == 128
    assert named_operation(None, "a_user:fast") == "two"


def test_a_kernel_that_was_defined_again_says_that_its_tables_are_the_new_ones(
    make_module: Callable[[str], ModuleType],
) -> None:
    made = make_module(f"{HEADER}\nfast = tuned(64, name='one')\n")
    before = made.fast
    importlib.reload(made)
    with pytest.warns(RuntimeWarning, match="one: it was defined again since, and the new kernel has its tables; its"):
        assert launch(before) == 64


def test_an_alias_and_a_wrapper_of_ones_own_change_nothing(make_module: Callable[[str], ModuleType]) -> None:
    wrapper = "class Counted:\n    def __init__(self, fn): self.fn = fn\ncounted = Counted(tuned(64, name='counted'))\n"
    odd = "class Odd:\n    __module__ = property(lambda self: 1)\n    __dict__ = 3\nodd = Odd()\n"
    made = make_module(f"{HEADER}\nactive = None\nfast = tuned(64, name='fast')\n{odd}{wrapper}active = fast\n")
    for size in (4, 8):
        assert launch(made.fast, size) == 64
    assert registry.operation_reference("counted") == "a_user:counted.operation"
    assert named_operation(None, "a_user:counted") == "counted"


@pytest.mark.parametrize("command", [["-m", "a_package.kernels"], ["a_script.py"]], ids=["module", "script"])
def test_a_program_that_is_imported_too_registers_its_kernels_once(tmp_path: Path, command: list[str]) -> None:
    package = tmp_path / "a_package"
    package.mkdir()
    body = f"{LIBRARY}\nimport autotune\n" + (
        'fill = autotune.tuned([triton.Config({"BLOCK": 64})], key=["size"], name="fill")(_fill)\n'
    )
    ending = "from autotune import registry\nif __name__ == '__main__': print(registry.operation_reference('fill'))\n"
    (package / "__init__.py").write_text("from a_package import kernels\n")
    (package / "kernels.py").write_text(body + ending)
    (tmp_path / "a_script.py").write_text(f"{body}\nimport a_helper\n{ending}")
    (tmp_path / "a_helper.py").write_text("import a_script\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(":")[-1]) == (0, "fill.operation\n"), done.stderr


def test_a_kernel_outlives_one_that_replaced_it(make_module: Callable[[str], ModuleType]) -> None:
    made = make_module(f"{HEADER}\nfirst = tuned(64, name='kept')\nsecond = tuned(128, name='kept')\n")
    assert launch(made.second) == 128
    del made.second
    gc.collect()
    assert launch(made.first) == 64
    assert registry.get_operation("kept") is made.first.operation


def test_names_are_listed_while_kernels_come_and_go(make_module: Callable[[str], ModuleType]) -> None:
    made = make_module(f"{HEADER}\n")
    ended = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not ended.is_set():
                registry.operation_names()
                registry.stray_implementations()
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        made.tuned(64, name=f"short_{number}")
    ended.set()
    reader.join()
    gc.collect()  # no earlier: the reader may hold one
    assert not failures
    assert not [name for name in registry.operation_names() if name.startswith("short_")]


def test_one_whose_contract_cannot_be_made_is_left_out_and_told(
    make_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_module(f"{HEADER}\nbroken = tuned(64, name='broken')\n")
    monkeypatch.setattr(kernel, "make_contract", _refuse_broken)
    assert made.broken.name == "broken"
    with pytest.warns(RuntimeWarning, match="operation='broken' cannot be loaded: no such contract"):
        assert "flash_attention" in [each.name for each in registry.loadable_operations()]
    assert any("operation='broken' cannot be loaded" in line for line in registry.broken_registrations())


def _refuse_broken(name: str, *given: Any) -> Contract:
    if name == "broken":
        raise UsageError("no such contract")
    return make_contract(name, *given)


def test_the_names_of_a_prompt_are_no_kernels(make_module: Callable[[str], ModuleType]) -> None:
    made = make_module(f"{HEADER}\n_ = _12 = fast = tuned(64, name='fast')\n")
    assert made.fast.reference == "a_user:fast"
    del made.fast
    assert made._.reference == ""


def test_an_operation_that_is_no_kernels_is_not_replaced(make_module: Callable[[str], ModuleType]) -> None:
    registry.register("plain", "a_user:OPERATION")
    registry.register_implementation("halved", "triton", "a_user:IMPLEMENTATION")
    for name, taken in (
        ("plain", "plain' is registered already as a_user:OPERATION"),
        ("halved", "halved/triton' is re"),
    ):
        with pytest.raises(UnknownNameError, match=f"operation='{taken}"):
            make_module(f"{HEADER}\nmine = tuned(64, name='{name}')\n")
    made = make_module(f"{HEADER}\nmine = tuned(64, name='mine')\n")
    for reference in ("elsewhere:OPERATION", "elsewhere:thing.operation"):
        with pytest.raises(UnknownNameError, match="operation='mine' is registered already as a_user:mine; choose"):
            registry.register("mine", reference)
    registry.register("later", "elsewhere:later.operation")
    with pytest.raises(UnknownNameError, match=r"'later' is registered already as elsewhere:later\.operation; choose"):
        made.tuned(64, name="later")
    with pytest.raises(UsageError, match="implementation='sweeps' of mine is not allowed; folders of tables are bench"):
        registry.register_implementation("mine", "sweeps", "elsewhere:IMPLEMENTATION")


def test_the_name_of_an_operation_of_another_module_is_taken(make_module: Callable[[str], ModuleType]) -> None:
    with pytest.raises(
        UnknownNameError, match=r"'scale' is registered already as tests\.outside\.decorated_kernels:scale"
    ):
        make_module(f"{HEADER}\nmine = tuned(64, name='scale')\n")
