"""The numbers of the Gluon kernel on a GPU: problems of the Triton kernel's tests, by defaults and drawn configs."""

import random
from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from autotune.device import NVIDIA_H200
from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention.gluon_hopper.launch import launch
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from tests.kernels.cases import Case, gpu_cases
from tests.kernels.numerics import case_failure

SPACE: Final = IMPLEMENTATION.space
DRAWN_EVERY: Final = 3  # so many cases run one drawn config; the others the default, which many share a binary of
DRAWS: Final = 40


def problems() -> list[Case]:
    """The cases of 16 bits, each problem once whatever the Triton kernel's tiles."""
    plain: dict[str, Any] = {"block_q": 64, "block_k": 64, "num_stages": 2, "loads": "descriptor"}
    halves = [replace(case, **plain) for case in gpu_cases() if case.dtype != "float32"]
    return list(dict.fromkeys(halves))


def shape_of(case: Case) -> AttentionShape:
    names = ("batch", "heads", "kv_heads", "head_dim", "head_dim_v", "dtype", "causal", "window")
    fields = {name: getattr(case, name) for name in names}
    # A launcher takes no queries or no keys; a problem that is tuned has some.
    return AttentionShape(**fields, seq_q=max(1, case.seq_q), seq_kv=max(1, case.seq_kv), softcap=bool(case.softcap))


def config_of(number: int, case: Case) -> Config:
    """Return the default, or of every third case a valid config that is drawn, by the number of the case."""
    shape, generator = shape_of(case), random.Random(number)
    for _ in range(DRAWS if number % DRAWN_EVERY == 0 else 0):
        drawn = Config({each.name: generator.choice(each.values) for each in SPACE.parameters})
        if SPACE.why_invalid(drawn, shape, NVIDIA_H200) is None:
            return drawn
    return SPACE.default(shape, NVIDIA_H200)


def is_declined(case: Case) -> bool:
    """Return True for tensors that TMA cannot copy: an odd address, or batches that share memory."""
    return case.layout == "unaligned" or (case.layout == "expanded" and case.batch > 1)


def test_there_are_enough_problems_and_drawn_configs() -> None:
    every = problems()
    drawn = [config_of(number, case) for number, case in enumerate(every)]
    assert len(every) >= 350
    assert sum(not is_declined(case) for case in every) >= 250
    for parameter in SPACE.parameters:
        assert {config[parameter.name] for config in drawn} == set(parameter.values)


@pytest.mark.gpu
@pytest.mark.parametrize(("number", "case"), list(enumerate(problems())), ids=str)
def test_gpu_problem(number: int, case: Case) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernel is for Hopper")
    config = config_of(number, case)

    def compute(*tensors: torch.Tensor | None, options: object, **features: Any) -> None:
        launch(*tensors, options=config, **features)  # type: ignore[arg-type]

    if is_declined(case) and case.seq_q and case.seq_kv:
        with pytest.raises(UnsupportedCallError, match="16 bytes"):
            case_failure(case, "cuda", compute)
    else:
        assert case_failure(case, "cuda", compute) is None
