"""A search that has every kind of child: a worker, a compile server, its compilers, and what those have started.

Run to be killed: ``python -m tests.search.family FOLDER``; the worker is a fake, the rest is real.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from autotune import platforms
from autotune.device import Device
from autotune.executor.child import Child
from autotune.executor.gpu import GpuExecutor
from autotune.executor.settings import Settings
from autotune.implementation import Implementation
from autotune.operation import Cost, Operation
from autotune.registry import register, register_implementation
from autotune.search import Limits, Observer, search
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space
from autotune.table import Store
from autotune.trial import Trial

SHAPE: Final = AttentionShape(batch=1, heads=1, seq_q=32, head_dim=16, dtype="bfloat16")
COMPILE_SECONDS: Final = 1.0  # then a compiler that waits for its child is ended, and the search goes on
GRANDCHILD: Final = ("sleep", "3600")


def _default(shape: AttentionShape, device: Device) -> Config:
    return Config(compile="raises", run="fine", variant=0)


MODULE: Final = "tests.search.family"  # which is not the name it runs under
OPERATION: Final = Operation(
    name="family",
    shape_class=AttentionShape,
    cost=lambda shape: Cost(flops=1, bytes=1),
    definition=f"{MODULE}:KERNEL",
)
IMPLEMENTATION: Final = Implementation(
    name="slow",
    operation="family",
    kernel=f"{MODULE}:KERNEL",
    space=Space(
        (
            Parameter("compile", ("raises", "waits for a child")),
            Parameter("run", ("fine",)),
            Parameter("variant", tuple(range(1000))),
        ),
        lambda config, shape, device: None,
        _default,
    ),
    sources=(Path(__file__),),
    entry=("_default",),
)
register("family", f"{MODULE}:OPERATION")
register_implementation("family", "slow", f"{MODULE}:IMPLEMENTATION")


class Kernel:
    """Compiles by starting another program, as Triton starts ptxas."""

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Any:
        if config["compile"] == "raises":
            raise ValueError("no such instruction")
        subprocess.run(GRANDCHILD, check=True)

    def check_shapes(self, shape: AttentionShape) -> tuple[AttentionShape, ...]:
        """The fake worker checks nothing, so that nothing else is compiled."""
        return ()


KERNEL: Final = Kernel()


class Talkative(Observer):
    """Says each trial that was kept."""

    def on_trial(self, trial: Trial) -> None:
        print(trial.number, flush=True)


def use_fake_worker() -> None:
    """From here on there is a GPU."""
    start = Child.__init__

    def start_fake(self: Child, module: str, *arguments: str, **named: Any) -> None:
        fakes = {"autotune.executor.worker": "tests.executor.fake_worker"}
        start(self, fakes.get(module, module), *arguments, **named)

    Child.__init__ = start_fake  # type: ignore[method-assign]
    platforms.has_gpu = lambda: True


def main() -> None:
    use_fake_worker()
    executor = GpuExecutor(Settings(jobs=2, compile_seconds=COMPILE_SECONDS))
    try:
        search(
            OPERATION,
            SHAPE,
            executor,
            Store(Path(sys.argv[1])),
            limits=Limits(),
            sampler="random",
            observer=Talkative(),
        )
    finally:
        executor.close()


if __name__ == "__main__":
    main()
