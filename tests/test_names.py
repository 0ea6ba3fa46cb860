"""One name has one meaning: classes and modules whose names occur twice are listed here, each for its one role."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("autotune", "kernels", "search_spaces", "benchmarks")

# Classes that every operation or kernel has one of.
CLASSES: Final = {"CheckShape", "Features", "Inputs", "Tile"}
# Modules that stand for the same in every folder that has one.
MODULES: Final = {
    *("definition", "forward", "inputs", "kernel", "launch", "operation", "reference", "repeat"),  # of operations
    *("command", "words"),  # of analyses
    *("__init__", "__main__"),
}
# The others that occur twice: the same word for the same thing, seen from two floors.
SHARED: Final = {
    "call": {"kernels/baselines/naive", "kernels/paged_cache"},
    "export": {"autotune/cli", "autotune/table"},
    "flex": {"kernels/baselines", "search_spaces/flash_attention"},
    "gluon_hopper": {
        f"search_spaces/{each}" for each in ("flash_attention", "flash_attention_varlen", "paged_prefill")
    },
    "kv_cache": {"autotune/lab/suites/axes", "kernels/baselines"},
    "machine": {"benchmarks/live", "benchmarks/search_efficiency"},
    "masks": {"kernels/flash_attention/flex", "kernels/tiles"},
    "merge": {"autotune/table", "benchmarks"},
    "paged": {"autotune", "autotune/torch_ops", "benchmarks", "kernels/baselines/gaudi"},
    "plan": {"autotune/cli/grid", "autotune/search"},
    "portfolios": {"autotune/table", "benchmarks"},
    "problem": {"benchmarks/live", "kernels/baselines/cudnn"},
    "progress": {"autotune/cli", "autotune/grid"},
    "quantization": {"autotune/lab/suites/axes", "kernels/paged_cache"},
    "report": {"benchmarks/live", "benchmarks/search_efficiency"},
    "rows": {"autotune/table", "kernels/tiles"},
    "store": {"autotune/table", "kernels/paged_cache"},
    "triton": {
        f"search_spaces/{each}"
        for each in ("flash_attention", "flash_attention_varlen", "paged_decode", "paged_prefill")
    },
    "varlen": {"autotune", "autotune/torch_ops"},
    "winners": {"autotune/console", "autotune/table"},
}


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def test_a_class_name_occurs_once_but_for_roles() -> None:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].add(str(path.relative_to(ROOT)))
    assert {name: places for name, places in found.items() if len(places) > 1 and name not in CLASSES} == {}
    assert {name for name in CLASSES if len(found[name]) < 2} == set()


def test_a_module_name_occurs_once_but_for_roles() -> None:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in modules():
        found[path.stem].add(str(path.parent.relative_to(ROOT)))
    repeated = {name: places for name, places in found.items() if len(places) > 1 and name not in MODULES}
    assert repeated == SHARED
    assert {name for name in MODULES if len(found[name]) < 2} == set()
