"""An operation whose kernels go wrong in every way, on demand; children import it by its registered name."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch

from autotune.device import Device
from autotune.implementation import Implementation
from autotune.operation import Cost, Operation
from autotune.registry import register, register_implementation
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space
from autotune.trial import Candidate

SHAPE: Final = AttentionShape(batch=1, heads=1, seq_q=32, head_dim=16, dtype="bfloat16")
GATE: Final = "AUTOTUNE_TEST_GATE"  # names a file that the compile of "gate" waits for
COMPILES: Final = (
    *("fine", "raise", "print", "exit", "segfault", "abort", "huge", "nothing", "gate", "hang", "grandchild"),
    *("killed", "killed_once", "starved", "twin", "huge_for_all", "unwritable"),
)
RUNS: Final = (
    *("fine", "wrong", "nan", "raise", "print", "split", "illegal", "trap", "die", "killed", "hang", "die_idle"),
    *("machine", "slow_cases", "killed_once", "starved", "meet"),
    *("race_die", "race_hang", "race_illegal", "race_raise", "race_void", "race_unopened"),
    *("race_void_once", "race_slow", "baseline_die", "baseline_hang", "baseline_raise"),
)


def config(*, compile: str = "fine", run: str = "fine", **others: int) -> Config:
    return Config(compile=compile, run=run, **others)


def _default(shape: AttentionShape, device: Device) -> Config:
    return Config(compile="fine", run="fine")


def candidate(implementation: str = "ours", **values: Any) -> Candidate:
    """One of ``config``'s, of an implementation."""
    return Candidate(implementation, config(**values))


OPERATION: Final = Operation(
    name="faulty",
    shape_class=AttentionShape,
    cost=lambda shape: Cost(flops=1, bytes=1),
    definition=f"{__name__}:KERNEL",
)
OURS: Final = Implementation(
    name="ours",
    operation="faulty",
    space=Space((Parameter("compile", COMPILES), Parameter("run", RUNS)), lambda config, shape, device: None, _default),
    kernel=f"{__name__}:KERNEL",
    sources=(Path(__file__),),
    entry=("_default",),
)
IN_PLACE: Final = replace(OURS, name="in_place", compiles_ahead=False)  # compiled by the worker that launches it
UNLOADABLE: Final = replace(OURS, name="unloadable", kernel=f"{__name__}:NO_SUCH_KERNEL")
register("faulty", f"{__name__}:OPERATION")
register_implementation("faulty", "ours", f"{__name__}:OURS")
register_implementation("faulty", "in_place", f"{__name__}:IN_PLACE")
register_implementation("faulty", "unloadable", f"{__name__}:UNLOADABLE")

# Each fault of a suite so many times, and as many configs that are fine: the fastest has no extra microsecond.
SUITE: Final = {
    "hang": config(run="hang"),
    "illegal access": config(run="illegal"),
    "trap": config(run="trap"),
    "out of shared memory": config(compile="huge"),
    "wrong numbers": config(run="wrong"),
    "NaN": config(run="nan"),
    "compiler hangs": config(compile="hang"),
    "compiler's child hangs": config(compile="grandchild"),
    "compiler crashes": config(compile="segfault"),
    "worker killed": config(run="killed"),
    "fine": config(),
}
SUITE_SIZES: Final = {"fault_suite": 10, "short_fault_suite": 1}  # of each kind, by the name of the operation


def _reject_others(config: Config, shape: AttentionShape, device: Device) -> str | None:
    kind = Config(compile=config["compile"], run=config["run"])
    return None if kind in SUITE.values() else "not in the suite"


def _suite(name: str) -> tuple[Operation[AttentionShape], Implementation[AttentionShape]]:
    extra_us = Parameter("extra_us", tuple(range(SUITE_SIZES[name])))
    space = Space(
        (*OURS.space.parameters, extra_us), _reject_others, lambda shape, device: config(extra_us=SUITE_SIZES[name] - 1)
    )
    return replace(OPERATION, name=name), replace(OURS, operation=name, space=space)


SUITE_OPERATION, SUITE_IMPLEMENTATION = _suite("fault_suite")
SHORT_OPERATION, SHORT_IMPLEMENTATION = _suite("short_fault_suite")
for _name, _kind in (("fault_suite", "SUITE"), ("short_fault_suite", "SHORT")):
    register(_name, f"{__name__}:{_kind}_OPERATION")
    register_implementation(_name, "ours", f"{__name__}:{_kind}_IMPLEMENTATION")


@dataclass(frozen=True, slots=True)
class Inputs:
    x: torch.Tensor


class FaultyKernel:
    """Doubles its input, or fails as its config says."""

    def make_inputs(self, shape: AttentionShape, *, seed: int, device: str, data: str = "normal") -> Inputs:
        generator = torch.Generator(device=device).manual_seed(seed)
        x = torch.randn(shape.seq_q, shape.head_dim, generator=generator, device=device)
        return Inputs(x.to(getattr(torch, shape.dtype)))

    def check_shapes(self, shape: AttentionShape) -> tuple[AttentionShape, ...]:
        return (shape, shape)

    def empty_outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        return (torch.full_like(inputs.x, float("nan")),)

    def launch(self, config: Config, inputs: Inputs, out: tuple[torch.Tensor, ...]) -> None:
        match config["run"]:
            case "fine":
                out[0].copy_(2 * inputs.x)
            case "print":
                print("noise on standard output", flush=True)
                os.write(1, b"and below Python\n")
                out[0].copy_(2 * inputs.x)
            case "wrong":
                out[0].copy_(2.1 * inputs.x)
            case "raise":
                raise RuntimeError("the launch was refused")
            case "illegal":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            case "die":
                print("last words", file=sys.stderr, flush=True)
                os._exit(9)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "killed_once":
                _die_once()
                out[0].copy_(2 * inputs.x)
            case "starved":
                raise MemoryError("no more")
            case "hang":
                _sleep()

    def statistic_slack(self, inputs: Inputs) -> float:
        return 0.0

    def reference(self, inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        return (2 * inputs.x.to(dtype or torch.float64),)

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Any:
        match config["compile"] if config["compile"] != "huge_for_all" or every_output else "fine":
            case "raise":
                raise ValueError("no such instruction\nin line 2")
            case "print":
                print("noise on standard output", flush=True)
                os.write(1, b"and below Python\n")
            case "exit":
                os._exit(3)
            case "segfault":
                ctypes.string_at(0)
            case "abort":
                os.abort()
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "killed_once":
                _die_once()
            case "unwritable":
                raise PermissionError(13, "Permission denied", "/nowhere")
            case "starved":
                raise RuntimeError("`ptxas` failed with error code -9")
            case "twin":
                return _compiled(shared=1024, cubin=b"always the same")
            case "huge" | "huge_for_all":
                return (*_compiled(shared=1024), *_compiled(shared=10**6))
            case "nothing":
                return None
            case "gate":
                while not Path(os.environ[GATE]).exists():
                    time.sleep(0.01)
            case "hang":
                _sleep()
            case "grandchild":
                subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)
        return _compiled(shared=1024)


def _compiled(*, shared: int, **asm: bytes) -> tuple[Any, ...]:
    return (SimpleNamespace(metadata=SimpleNamespace(shared=shared), asm=asm),)


def _die_once() -> None:
    killed = Path(os.environ[GATE] + ".killed")
    if not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _sleep() -> None:
    time.sleep(600)


KERNEL: Final = FaultyKernel()
