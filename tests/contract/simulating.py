"""The correctness gate of a kernel that Triton's interpreter cannot run: its launches are simulated over NumPy."""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import pytest
import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import JITFunction

from autotune.correctness import Case, Verdict, check_config, make_cases
from autotune.implementation import Kernel
from autotune.registry import load_definition
from autotune.trial import Status
from tests.contract.planting import Gate, Mutant, load_copy, package_of
from tests.kernels.gluon_simulator import simulate
from tests.kernels.paged_prefill.gathered import GATHERED_BY_TORCH
from tests.kernels.simulated_memory import Descriptor, Pointer
from tests.kernels.simulated_threads import HangError
from tests.kernels.strided_descriptor import StridedDescriptor

PROGRAMS: Final = 2  # so that each computes several tiles, and slots are used again
ORDERS: Final = 4  # of threads: a race may come out right in one of them
# Kernels in Triton that the simulator has not the language of, by torch; the interpreter runs them in their own tests.
STAND_INS: Final[dict[str, Any]] = {"gather_pages": GATHERED_BY_TORCH}


class SimulatedLaunch:
    """Stands for a kernel in the module that launches it: ``forward[grid](*arguments)``."""

    def __init__(self, kernel: Any, seed: int = 0) -> None:
        self._kernel, self._seed = kernel, seed

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, num_warps=4, **constants: simulate(
            self._kernel, self._programs(grid[0]), *map(as_simulated, arguments), seed=self._seed, **constants
        )

    def _programs(self, programs: int) -> int:
        """Return how many run: few of those that share tiles."""
        return min(PROGRAMS, programs) if "SCHEDULE" in self._kernel.arg_names else programs


def as_simulated(argument: Any) -> Any:
    """Return an argument of a launch, or one of its tuples, as the simulator takes it."""
    if isinstance(argument, TensorDescriptor) and list(argument.shape) != list(argument.base.shape):
        return StridedDescriptor(memory_of(argument.base), argument.shape, argument.strides, argument.block_shape)
    if isinstance(argument, TensorDescriptor):
        rows, width = argument.block_shape[1], argument.block_shape[3]
        return Descriptor(bits_of(argument.base), rows, width)
    if isinstance(argument, torch.Tensor):
        return Pointer(memory_of(argument))
    if isinstance(argument, tuple):
        return type(argument)(*map(as_simulated, argument))
    return argument


def memory_of(tensor: torch.Tensor) -> Any:
    """Return the memory from a tensor's first element to its last, as an array."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bits_of(tensor.as_strided((last + 1,), (1,)))


def bits_of(tensor: torch.Tensor) -> Any:
    """Return a tensor's memory as an array; of types that NumPy lacks, their bits."""
    held = {torch.float8_e4m3fn: torch.uint8, torch.bfloat16: torch.uint16}.get(tensor.dtype, tensor.dtype)
    return tensor.view(held).numpy()


def simulated_launches(module: ModuleType, patch: pytest.MonkeyPatch, seed: int = 0) -> None:
    """Simulate what a module launches, and what the launching modules do that it calls, in the order of a seed."""
    for name, value in vars(module).copy().items():
        if isinstance(value, JITFunction):
            stand_in = STAND_INS.get(value.fn.__name__)
            patch.setattr(module, name, SimulatedLaunch(value, seed) if stand_in is None else stand_in)
        elif isinstance(value, FunctionType) and is_other_launch(value.__module__, module.__name__):
            simulated_launches(sys.modules[value.__module__], patch, seed)


def is_other_launch(name: str, own: str) -> bool:
    """Return if a module is one that launches kernels of the package, and not the module of that name itself."""
    return name != own and name.startswith("autotune.kernels.") and name.endswith(".launch")


def judge_simulated(operation: str, implementation: str, gate: Gate, mutant: Mutant | None, folder: Path) -> Verdict:
    """Judge a copy by the correctness gate on the gate's own shape, every output of it.

    It is judged in ``ORDERS`` orders of its threads, until one fails. A bug that waits for ever hangs, and one that the
    simulator stops, as for more arrivals than a barrier is made for, fails to launch.
    """
    kernel = load_copy(operation, implementation, mutant, folder)
    launch = sys.modules[f"{package_of(operation, implementation, mutant)}.launch"]
    cases = make_cases(load_definition(operation), (gate.shape,), device="cpu")
    verdicts = (_judge_once(kernel, launch, gate, cases, seed) for seed in range(ORDERS))
    return next((each for each in verdicts if each.status is not Status.OK), Verdict(Status.OK))


def _judge_once(kernel: Kernel, launch: ModuleType, gate: Gate, cases: Sequence[Case], seed: int) -> Verdict:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        simulated_launches(launch, patch, seed)
        try:
            return check_config(kernel, gate.config, cases, every_output=True)
        except HangError as error:
            return Verdict(Status.HANG, message=str(error))
        except AssertionError as error:
            return Verdict(Status.LAUNCH_ERROR, message=str(error))
