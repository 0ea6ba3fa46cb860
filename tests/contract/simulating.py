"""The correctness gate of a kernel that Triton's interpreter cannot run: its launches are simulated over NumPy."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from autotune.correctness import Verdict, check_config, make_cases
from autotune.registry import load_definition
from autotune.trial import Status
from tests.contract.planting import Gate, Mutant, load_copy, package_of
from tests.kernels import gluon_simulator
from tests.kernels.gluon_simulator import Descriptor, HangError, Pointer, simulate

PROGRAMS: Final = 2  # so that each computes several tiles, and slots are used again
HANG_SECONDS: Final = 10.0  # of a mutant; no wait of a right kernel takes a hundredth


class SimulatedLaunch:
    """Stands for a kernel in the module that launches it: ``forward[grid](*arguments)``."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments: simulate(self._kernel, min(PROGRAMS, grid[0]), *map(_as_simulated, arguments))


def _as_simulated(argument: Any) -> Any:
    if isinstance(argument, TensorDescriptor):
        rows, width = argument.block_shape[1], argument.block_shape[3]
        return Descriptor(argument.base.numpy(), rows, width)
    return Pointer(argument.numpy()) if isinstance(argument, torch.Tensor) else argument


def judge_simulated(operation: str, implementation: str, gate: Gate, mutant: Mutant | None, folder: Path) -> Verdict:
    """Judge a copy by the correctness gate on the gate's own shape, every output of it.

    One that waits for ever hangs, and one that the simulator stops, as for more arrivals than a barrier is made for,
    fails to launch.
    """
    kernel, definition = load_copy(operation, implementation, mutant, folder), load_definition(operation)
    launch = sys.modules[f"{package_of(operation, implementation, mutant)}.launch"]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        if mutant is not None:
            patch.setattr(gluon_simulator, "SECONDS", HANG_SECONDS)
        patch.setattr(launch, "flash_attention_forward", SimulatedLaunch(launch.flash_attention_forward))
        try:
            return check_config(
                kernel, gate.config, make_cases(definition, (gate.shape,), device="cpu"), every_output=True
            )
        except HangError as error:
            return Verdict(Status.HANG, message=str(error))
        except AssertionError as error:
            return Verdict(Status.LAUNCH_ERROR, message=str(error))
