"""Products of float32: on tensor cores where that is exact, and by IEEE elsewhere."""

from pathlib import Path

import pytest
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.language import target_info

from autotune.kernels.precision import product_precision
from autotune.trial import Status
from tests.kernels.compiling import compile_sample

TARGETS = {
    "Turing": (GPUTarget("cuda", 75, 32), "ieee"),
    "Ampere": (GPUTarget("cuda", 80, 32), "bf16x6"),
    "Hopper": (GPUTarget("cuda", 90, 32), "bf16x6"),
    "MI300X": (GPUTarget("hip", "gfx942", 64), "ieee"),
    "the interpreter": (None, "ieee"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_float32_is_split_where_tensor_cores_multiply_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, expected = TARGETS[name]
    monkeypatch.setattr(target_info, "current_target", lambda: target)
    assert product_precision(tl.float32) == expected
    assert {product_precision(dtype) for dtype in (tl.float16, tl.bfloat16)} == {"ieee"}


@pytest.mark.parametrize(("arch", "is_split"), [("sm_86", True), ("sm_90", True), ("gfx942", False)])
def test_the_default_of_float32_compiles_so_and_fits(arch: str, is_split: bool, tmp_path: Path) -> None:
    outcomes = compile_sample("tests.kernels.compile_precision", arch, tmp_path)
    assert {name: outcome["status"] for name, outcome in outcomes.items()} == dict.fromkeys(outcomes, Status.OK)
    found = {name: outcome["in_bfloat16"] for name, outcome in outcomes.items()}
    assert found == dict.fromkeys(("flash_attention", "paged_decode", "paged_prefill"), is_split)
