"""An operation whose kernels go wrong in every way, on demand; children import it by its registered name."""

import ctypes
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch

from autotune.device import Device
from autotune.operation import Cost, Operation
from autotune.registry import register
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space

SHAPE: Final = AttentionShape(batch=1, heads=1, seq_q=32, head_dim=16, dtype="bfloat16")
GATE: Final = "AUTOTUNE_TEST_GATE"  # names a file that the compile of "gate" waits for
COMPILES: Final = ("fine", "raise", "print", "exit", "segfault", "huge", "nothing", "gate", "hang", "grandchild")
RUNS: Final = (
    *("fine", "wrong", "nan", "raise", "print", "split", "illegal", "die", "hang", "die_idle"),
    *("race_die", "race_hang", "race_illegal", "race_raise"),
)


def _default(shape: AttentionShape, device: Device) -> Config:
    return Config(compile="fine", run="fine")


OPERATION: Final = Operation(
    name="faulty",
    shape_class=AttentionShape,
    space=Space((Parameter("compile", COMPILES), Parameter("run", RUNS)), lambda config, shape, device: None, _default),
    cost=lambda shape: Cost(flops=1, bytes=1),
    sources=(Path(__file__),),
    entry=("_default",),
)
register("faulty", operation=f"{__name__}:OPERATION", kernel=f"{__name__}:KERNEL")

UNLOADABLE: Final = Operation(
    name="unloadable",
    shape_class=AttentionShape,
    space=OPERATION.space,
    cost=OPERATION.cost,
    sources=OPERATION.sources,
    entry=OPERATION.entry,
)
register("unloadable", operation=f"{__name__}:UNLOADABLE", kernel=f"{__name__}:NO_SUCH_KERNEL")


def config(*, compile: str = "fine", run: str = "fine") -> Config:
    return Config(compile=compile, run=run)


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

    def empty_output(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
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
            case "die":
                print("last words", file=sys.stderr, flush=True)
                os._exit(9)
            case "hang":
                _sleep()

    def reference(self, inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        return (2 * inputs.x.to(dtype or torch.float64),)

    def warmup(self, config: Config, shape: AttentionShape) -> Any:
        match config["compile"]:
            case "raise":
                raise ValueError("no such instruction\nin line 2")
            case "print":
                print("noise on standard output", flush=True)
                os.write(1, b"and below Python\n")
            case "exit":
                os._exit(3)
            case "segfault":
                ctypes.string_at(0)
            case "huge":
                return _compiled(shared=10**6)
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


def _compiled(*, shared: int) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(shared=shared), asm={})


def _sleep() -> None:
    time.sleep(600)


KERNEL: Final = FaultyKernel()
