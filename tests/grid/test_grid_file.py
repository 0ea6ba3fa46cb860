"""Grid files: the product of their lists, each task once; and errors that name the table, the key and the value."""

from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.grid.grid_file import read_grid, read_grid_file

SMALL = """
devices = ["H200"]
budget = "90s"
[[grid]]
models = ["llama-3.1-8b", "qwen3-8b"]
operations = ["flash_attention", "paged_decode"]
lengths = "512,...,2048"
batches = [1, 8]
dtype = "bfloat16"
page_size = [16, 64]
priority = 1
[[grid]]
operation = "flash_attention"
shapes = ["batch=1,heads=4,seq_q=64,128,head_dim=64"]
priority = 2
implementations = "triton"
device = "an unknown GPU"
trials = 7
"""


def _write(folder: Path, text: str) -> Path:
    (path := folder / "grid.toml").write_text(text, encoding="utf-8")
    return path


def test_a_grid_is_the_product_of_its_lists_and_models_alike_are_one(tmp_path: Path) -> None:
    tasks = read_grid(_write(tmp_path, SMALL))
    assert [task.priority for task in tasks] == [2] * 2 + [1] * 18
    assert {task.device for task in tasks} == {"NVIDIA H200", "an unknown GPU"}
    own, first = tasks[0], tasks[2]
    assert (own.implementations, own.trials, own.budget, own.shape.as_dict()["seq_q"]) == (("triton",), 7, 90.0, 64)
    assert (first.operation, first.trials) == ("flash_attention", 120)
    pages = [task.shape.as_dict()["page_size"] for task in tasks if task.operation == "paged_decode"]
    assert (pages.count(16), pages.count(64)) == (6, 6)


def test_one_task_of_two_tables_has_the_higher_priority(tmp_path: Path) -> None:
    table = '[[grid]]\nmodel = "llama-3.1-8b"\noperation = "flash_attention"\n'
    (task,) = read_grid(_write(tmp_path, f"{table}{table}priority = 3\n"))
    assert task.priority == 3


def test_models_without_operations_are_tuned_for_all_phases_that_they_have(tmp_path: Path) -> None:
    found = read_grid_file(_write(tmp_path, '[[grid]]\nmodels = ["llama-3.1-8b", "bert-base"]\nlengths = 512\n'))
    assert sorted(task.operation for task in found.tasks) == ["flash_attention", "flash_attention", "paged_decode"]
    assert any("bert-base" in note and "left out" in note for note in found.notes)


def test_a_file_imports_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "of_a_grid.py").write_text("import pathlib\npathlib.Path('imported').touch()\n", encoding="utf-8")
    text = '[[grid]]\nimport = "of_a_grid"\noperation = "flash_attention"\nlengths = 64\n'
    assert len(read_grid(_write(tmp_path, text))) == 1
    assert (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("budget = 3\n", r"grid\.toml: has no \[\[grid\]\]; expected one or more"),
        ("[[grid", r"grid\.toml: is not TOML"),
        (
            "bugdet = 3\n[[grid]]\n",
            r"above the first \[\[grid\]\]: bugdet=3 is not a key; did you mean budget\?; allowed",
        ),
        (
            '[[grid]]\nmodels = ["lama-3.1-8b"]',
            r"\[\[grid\]\] 1: models='lama-3.1-8b' is unknown; did you mean llama-3",
        ),
        ("[[grid]]\noperation = 'flash_attention'\nlengths = '5..6'", r"1: lengths='5\.\.6' has '5\.\.6'; expected"),
        ("[[grid]]\noperation = 'flash_attention'\nlengths = -5", r"1: lengths=-5 is not allowed; expected"),
        ("[[grid]]\noperation = 'flash_attention'\ndtypes = 'bf9'", r"1: dtypes='bf9' is unknown; allowed: float16"),
        ("[[grid]]\ntrials = 0", r"1: trials=0 is not allowed; expected an integer from 1"),
        ("[[grid]]\nbudget = 'soon'", r"1: budget='soon' is not a time; expected"),
        ("[[grid]]\ntrials = 'none'", r"1: trials='none' is not allowed; expected an integer from 1"),
        ("[[grid]]\nseed = 'none'", r"1: seed='none' is not allowed; expected an integer from 0 to 4294967295"),
        ("[[grid]]\nseed = 4294967296", r"1: seed=4294967296 is not allowed; expected an integer from 0 to"),
        ("[[grid]]\npriority = 'none'", r"1: priority='none' is not allowed; expected an integer"),
        ("[[grid]]\nsampler = 'none'", r"1: sampler='none' is not allowed; expected .*'gp'"),
        ("[[grid]]\nsampler = 'x'", r"1: sampler='x' is not allowed; expected .*'gp'"),
        ("[[grid]]\npriority = true", r"1: priority=True is not allowed; expected an integer"),
        ("[[grid]]\nmodel = 'phi-4'\nmodels = 'phi-4'", r"model='phi-4' and models are one key; leave one out"),
        ("[[grid]]\noperation = 'flash_attention'\nheads = '3'", r"1: heads='3' is not allowed; expected an integer"),
        ("[[grid]]\noperation = 'flash_attention'\npage_size = 3", r"1: page_size=3 is not for flash_attention"),
        ("[[grid]]\noperation = 'flash_attention'\nimplementation = 'x'", r"1: implementations='x' of flash_attention"),
        ("[[grid]]\nseed = 1", r"1: it names no problem; expected models, operations or shapes"),
        ("[[grid]]\nshapes = 'seq=3'\nlengths = 4", r"1: lengths='4' and shapes, which name all sizes, exclude"),
        ("[[grid]]\nimport = 'no_such_module'", r"1: import='no_such_module' cannot be imported"),
    ],
)
def test_errors_name_the_table_the_key_and_what_is_allowed(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_grid(_write(tmp_path, text))
