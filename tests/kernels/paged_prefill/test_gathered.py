"""Paged prefill over pages laid side by side: cases, odd lengths and pages of the Triton kernel's tests, by this one.

Attention is simulated on the CPU, after a copy by torch; a GPU runs both kernels.
"""

from typing import Any, Final

import pytest
import torch

from autotune.kernels.paged_prefill.gluon_hopper import KERNEL, launch
from autotune.kernels.paged_prefill.gluon_hopper.launch import launch_gathered
from autotune.space import Config
from tests.contract.implementations.paged_prefill_gluon_hopper import CONFIG
from tests.contract.simulating import simulated_launches
from tests.kernels.paged_decode.bounds import NO_PAGES
from tests.kernels.paged_prefill.bounds import HOSTILE, first_offset_failure, hostile_failure, pages_failure
from tests.kernels.paged_prefill.cases import Case, gpu_cases
from tests.kernels.paged_prefill.numerics import case_failure

OURS: Final[tuple[Any, Any]] = (KERNEL, CONFIG)
SIMULATED: Final = 10


def is_ours(case: Case) -> bool:
    is_16_bit = case.dtype in ("float16", "bfloat16") and case.kv_dtype != "int8"
    return is_16_bit and not case.alibi and max(case.head_dim, case.head_dim_v) <= 256


CASES: Final = tuple(case for case in gpu_cases() if is_ours(case))
WIDE: Final = Config({**CONFIG, "results": "queries"})  # for which shared memory has no room beside queries of 256
# Offsets that fall give rows to two sequences, either of whose results is right.
WITHIN: Final = tuple(name for name in HOSTILE if name != "offsets that fall")
HALVES: Final = tuple(case for case in CASES if case.dtype == "float16")


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated_launches(launch, monkeypatch)
    monkeypatch.setattr(launch, "require_context", lambda *_: None)


def require_hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernel is for Hopper")


def test_there_are_cases_with_windows_scales_and_both_masks() -> None:
    assert len(CASES) >= 50
    assert {case.causal for case in HALVES} == {True, False}
    assert any(case.window is not None and max(case.lengths) > 100 for case in HALVES)
    assert {case.kv_dtype for case in HALVES} == {None, "float8_e4m3fn", "float8_e5m2"}


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", HALVES[:: max(1, len(HALVES) // SIMULATED)], ids=str)
def test_simulated_case(case: Case) -> None:
    assert case_failure(case, "cpu", launch_gathered, CONFIG) is None


@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_simulated_rows_before_the_first_offset_stay() -> None:
    assert first_offset_failure("cpu", *OURS) is None


@pytest.mark.usefixtures("simulated")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_simulated_launch_stays_within_its_tensors(name: str) -> None:
    assert hostile_failure(*HOSTILE[name], "cpu", *OURS) is None


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gpu_case(case: Case) -> None:
    require_hopper()
    config = CONFIG if case.head_dim < 256 else WIDE
    assert case_failure(case, "cuda", launch_gathered, config) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITHIN)
def test_gpu_launch_stays_within_its_tensors(name: str) -> None:
    require_hopper()
    assert hostile_failure(*HOSTILE[name], "cuda", *OURS) is None
    assert first_offset_failure("cuda", *OURS) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", NO_PAGES)
def test_gpu_pages_lie_in_the_cache(name: str) -> None:
    require_hopper()
    assert pages_failure(NO_PAGES[name], "float16", "cuda", *OURS) is None
