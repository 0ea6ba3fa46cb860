"""Everything that a search launches is compiled ahead: the worker's launches find each binary."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
# A process that compiles a config as the pool does, or that launches its checks and its problem as the worker does.
COMPILED: Final = """
import json, sys
from importlib import import_module
from autotune.device import NVIDIA_H200
from autotune.executor.compiler import compile_candidate, use_target
from autotune.trial import Candidate
module, name, fields, every, ahead = json.loads(sys.argv[1])
use_target(NVIDIA_H200.architecture)
kernel = getattr(import_module(module), name)
shape = kernel.shape_class(**fields)
checked = kernel.definition.check_shapes(shape)
found = []
for config in kernel.prune(shape) if every else kernel.prune(shape)[:1]:
    if ahead:
        candidate = Candidate("triton", config)
        outcome = compile_candidate(kernel.launched, candidate, shape, NVIDIA_H200, also=() if every else checked)
        found.append([str(config), outcome.status, outcome.message, outcome.resources.spill_bytes])
    else:
        for each in (shape, *checked):
            kernel.launched.warmup(config, each)
print(json.dumps(found))
"""


def run(cache: Path, module: str, name: str, fields: dict[str, Any], *, every: bool, ahead: bool) -> list[Any]:
    import os

    given = json.dumps([module, name, fields, every, ahead])
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", COMPILED, given]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def files(cache: Path) -> set[Path]:
    return {path for path in cache.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "fields"),
    [
        ("examples.matmul", "matmul_kernel", {"m": 4096, "n": 4096, "k": 4096}),
        ("examples.rmsnorm", "rmsnorm_kernel", {"rows": 4095, "width": 4096, "dtype": "bfloat16"}),
        ("tests.outside.decorated_kernels", "total", {"size": 4096}),  # a heuristic below makes another binary
    ],
)
def test_the_worker_compiles_nothing(tmp_path: Path, module: str, name: str, fields: dict[str, Any]) -> None:
    ((_, status, message, _),) = run(tmp_path, module, name, fields, every=False, ahead=True)
    assert (status, message) == ("ok", "")
    before = files(tmp_path)
    assert len([path for path in before if path.suffix == ".cubin"]) >= 2  # the problem's, and that of odd sizes
    run(tmp_path, module, name, fields, every=False, ahead=False)
    assert files(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("rmsnorm", {"rows": 4096, "width": 4096, "dtype": "bfloat16"}),
        ("matmul", {"m": 4096, "n": 4096, "k": 4096}),
        ("swiglu", {"m": 4096, "n": 11008, "k": 4096}),
    ],
)
def test_each_config_of_the_examples_compiles_for_the_h200(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    found = run(tmp_path, f"examples.{name}", f"{name}_kernel", fields, every=True, ahead=True)
    assert found
    assert [each for each in found if each[1] != "ok"] == []
