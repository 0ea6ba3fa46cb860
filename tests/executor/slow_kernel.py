"""A kernel and its baselines that take times and memory of a fake CUDA."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from autotune.kernels.baselines.baseline import OverCopies
from autotune.space import Config
from autotune.trial import Conditions
from tests.executor import faulty
from tests.executor.fake_cuda import FakeCuda

PARTIAL = 3000  # bytes that a launch takes for a while
OUT = 32 * 16 * 2  # bytes of an output
WORKSPACE, COPY = 5000, 64
CONDITIONS = Conditions(sm_clock_mhz=1980)


@dataclass
class SlowKernel(faulty.FaultyKernel):
    """The faulty kernel on the CPU, each launch of which takes 500 us and what its config adds."""

    cuda: FakeCuda
    baseline_error: Exception | None = None
    is_context_alive: bool = True
    is_memory_full: bool = False
    has_own_output: bool = False
    has_statistic: bool = False  # a second output, on request: the sum of each row
    statistic_error: float = 0.0
    jitter: float = 0.0  # that each launch adds to its result
    asked: list[int] = field(default_factory=list)  # how many outputs each launch was given

    def make_inputs(self, shape: Any, *, seed: int, device: str, data: str = "normal") -> faulty.Inputs:
        if self.is_memory_full:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return super().make_inputs(shape, seed=seed, device="cpu", data=data)

    def empty_outputs(self, inputs: faulty.Inputs) -> tuple[torch.Tensor, ...]:
        outputs = super().empty_outputs(inputs)
        return (*outputs, inputs.x.new_full(inputs.x.shape[:1], float("nan"))) if self.has_statistic else outputs

    def reference(self, inputs: faulty.Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        outputs = super().reference(inputs, dtype=dtype)
        return (*outputs, inputs.x.to(dtype or torch.float64).sum(1)) if self.has_statistic else outputs

    def launch(self, config: Config, inputs: faulty.Inputs, out: tuple[torch.Tensor, ...]) -> None:
        self.asked.append(len(out))
        if len(out) > 1:
            out[1].copy_(inputs.x.double().sum(1) + self.statistic_error)
        self.is_context_alive &= config["run"] != "illegal"
        self.cuda.allocate(PARTIAL)
        if self.has_own_output:  # as torch's FlexAttention
            self.cuda.allocate(OUT)
            self.cuda.allocate(-out[0].untyped_storage().nbytes())
            result = 2 * inputs.x
            out[0].set_(result.untyped_storage(), 0, result.shape, result.stride())
        else:
            super().launch(config, inputs, out)
            out[0].add_(self.jitter * len(self.asked))
        self.cuda.allocate(-PARTIAL)
        self.cuda.launch(500.0 + (config.integer("extra_us") if "extra_us" in config else 0))

    def baselines(self) -> "list[FakeBaseline]":
        return [
            FakeBaseline(self, "slow", 900.0),
            FakeBaseline(self, "fast", 400.0),
            FakeBaseline(self, "rare", 300.0, is_usual=False, verified_on_hardware=False),
            FakeBaseline(self, "wrong", 1.0, off_by=1.0, is_usual=False),
            FakeBaseline(self, "missing", 1.0, missing="pip install it", is_usual=False),
            FakeBaseline(self, "holding", 600.0, is_usual=False, holds=("workspace",)),
            FakeBaseline(self, "holding its output", 600.0, is_usual=False, holds=("workspace", "output")),
            FakeBaseline(self, "holding copies", 600.0, is_usual=False, holds=("workspace", "copies")),
        ]


@dataclass
class FakeBaseline:
    """One that takes so many microseconds of a fake GPU, and computes what the kernel's reference does."""

    kernel: SlowKernel
    name: str
    us: float
    missing: str | None = None
    off_by: float = 0.0
    is_usual: bool = True
    verified_on_hardware: bool = True
    holds: tuple[str, ...] = ()

    def available(self) -> str | None:
        return self.missing

    def unsupported(self, shape: Any) -> str | None:
        return None

    def prepare(self, shape: Any, inputs: faulty.Inputs) -> Callable[[], torch.Tensor]:
        out = self.kernel.reference(inputs)[0] + self.off_by
        copy = torch.empty(COPY, dtype=torch.uint8)
        sizes = {"workspace": WORKSPACE, "output": out.nbytes, "copies": COPY}
        self.kernel.cuda.allocate(sum(sizes[name] for name in self.holds))

        def run() -> torch.Tensor:
            if self.kernel.baseline_error and self.name == "fast":
                self.kernel.is_context_alive &= "hardware stack" not in str(self.kernel.baseline_error)
                raise self.kernel.baseline_error
            self.kernel.cuda.launch(self.us)
            self.kernel.cuda.allocate(PARTIAL)
            if "output" not in self.holds:
                self.kernel.cuda.allocate(out.nbytes)
            self.kernel.cuda.allocate(-PARTIAL)
            return out

        return OverCopies(run, (copy,)) if "copies" in self.holds else run
