"""The examples run as their first lines say, and what they check holds."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent


def run_example(name: str, home: Path, *, module: bool = False) -> str:
    """The output of an example on a machine without a GPU, with empty tables of the user's; it must succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON", "AUTOTUNE"))}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "AUTOTUNE_HOME": str(home)}
    environment["PYTHONPATH"] = str(ROOT)
    place = ["-m", f"examples.{name}"] if module else [str(ROOT / "examples" / f"{name}.py")]
    result = subprocess.run([sys.executable, *place], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.slow
def test_generation_over_a_paged_cache_chooses_the_tokens_of_torch(tmp_path: Path) -> None:
    lines = run_example("generate", tmp_path).splitlines()
    assert lines[0].startswith("no GPU here")
    assert any(line.startswith("picked") for line in lines)
    assert lines[-1].startswith("agreement 18 of 18 tokens")


@pytest.mark.slow
def test_a_llama_of_transformers_chooses_the_tokens_of_eager_attention(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    *answers, kernels, agreement = run_example("serve_llama", tmp_path).splitlines()
    assert len(answers) == 3
    assert "picks={'default': 2}" in kernels  # one dense, one packed
    assert agreement.endswith("12 of 12 tokens")


def lines_beside_the_kernel(path: Path) -> int:
    """Lines of code but for imports, the kernel with its ``@triton.jit``, and what only runs as a program."""
    lines = path.read_text().splitlines()
    left = {number for number, line in enumerate(lines, 1) if line.strip() and not line.strip().startswith("#")}
    for node in ast.parse("\n".join(lines)).body:
        is_kernel = isinstance(node, ast.FunctionDef) and "triton.jit" in map(ast.unparse, node.decorator_list)
        is_program = isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or is_kernel or is_program or is_docstring:
            left -= set(range(node.lineno - is_kernel, (node.end_lineno or node.lineno) + 1))
    return len(left)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rmsnorm", "matmul", "swiglu"])
def test_a_kernel_is_tuned_by_at_most_twelve_lines_beside_it(name: str, tmp_path: Path) -> None:
    assert 5 <= lines_beside_the_kernel(ROOT / "examples" / f"{name}.py") <= 12
    printed = run_example(name, tmp_path)
    found = re.search(r"largest error ([\d.e+-]+)", printed)
    assert found is not None, printed
    assert float(found[1]) < 0.02


@pytest.mark.slow
def test_the_full_contract_takes_at_most_forty_lines_beside_the_kernel(tmp_path: Path) -> None:
    assert 30 <= lines_beside_the_kernel(ROOT / "examples" / "rmsnorm_contract.py") <= 40
    printed = run_example("rmsnorm_contract", tmp_path, module=True)
    found = re.search(r"BLOCK=1024 num_warps=4: largest error ([\d.e+-]+)", printed)
    assert found is not None, printed
    assert float(found[1]) < 1e-5
