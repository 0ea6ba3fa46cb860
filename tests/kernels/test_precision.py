"""Products of float32: on tensor cores where that is exact, and by IEEE elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.language import target_info

from autotune.kernels.tiles.precision import product_precision
from autotune.trial import Status
from tests.contract.compiling import compile_sample

TARGETS = {
    "Turing": (GPUTarget("cuda", 75, 32), "ieee"),
    "Ampere": (GPUTarget("cuda", 80, 32), "bf16x6"),
    "Hopper": (GPUTarget("cuda", 90, 32), "bf16x6"),
    "B200": (GPUTarget("cuda", 100, 32), "ieee"),
    "Thor": (GPUTarget("cuda", 110, 32), "ieee"),
    "RTX 5090": (GPUTarget("cuda", 120, 32), "bf16x6"),
    "MI300X": (GPUTarget("hip", "gfx942", 64), "ieee"),
    "none": (None, "ieee"),
}
SPILLED = 2048  # bytes a thread; what the assembler gives up on spills more, and has 32 registers


@pytest.mark.parametrize("name", TARGETS)
def test_float32_is_split_where_tensor_cores_multiply_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, expected = TARGETS[name]
    monkeypatch.setattr(target_info, "current_target", lambda: target)
    assert product_precision(tl.float32) == expected
    assert {product_precision(dtype) for dtype in (tl.float16, tl.bfloat16)} == {"ieee"}


@pytest.mark.slow
def test_the_interpreter_multiplies_by_ieee_beside_a_gpu_too() -> None:
    code = """
import torch
import autotune
from autotune.device import architecture
from autotune.executor.compiler import use_target

use_target(architecture("sm_90"))
q, k, v = (torch.randn(1, 20, 2, 16) for _ in range(3))
found = autotune.attention(q, k, v)
expected = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2).double() for x in (q, k, v)))
torch.testing.assert_close(found, expected.transpose(1, 2).float(), rtol=0, atol=1e-6)
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("arch", "is_split"),
    [
        ("sm_90", True),
        pytest.param("gfx942", False, marks=pytest.mark.slow),
        pytest.param("sm_80", True, marks=pytest.mark.slow),
        pytest.param("sm_100", False, marks=pytest.mark.slow),
        pytest.param("sm_120", True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_the_default_of_float32_compiles_so_and_fits(arch: str, is_split: bool, tmp_path: Path) -> None:
    outcomes = compile_sample("tests.kernels.compile_precision", arch, tmp_path)
    assert len(outcomes) == 4
    for name, outcome in outcomes.items():
        assert outcome["status"] == Status.OK, name
        assert outcome["in_bfloat16"] == is_split, name
        assert outcome["has_stores"], name  # what takes too much tensor memory is compiled to a trap
        assert outcome["resources"]["spill_bytes"] < SPILLED, name
