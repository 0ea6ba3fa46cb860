"""The subjects of the analyses: implementations that can run on this machine, and the served kernel among them."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from autotune import platforms
from autotune.kernels.baselines.eager import Eager
from autotune.kernels.baselines.naive import Naive
from autotune.kernels.baselines.sdpa import Sdpa
from autotune.lab.bench.comparison import OURS
from autotune.operation import Baseline
from autotune.registry import load_baselines, load_definition, load_kernel
from autotune.shape import Shape

if TYPE_CHECKING:
    import torch

Family = Literal["naive", "eager", "fused"]

GPU_ONLY: Final = "runs on a GPU only"


class ServedKernel:
    """The kernel that ``get_kernel`` returns, with the interface of a baseline."""

    name: Final = OURS
    is_usual: Final = True
    verified_on_hardware: Final = True

    def available(self) -> str | None:
        if not platforms.has_gpu():
            return "autotune's kernels need a GPU, and none is here"
        return None

    def unsupported(self, shape: Any) -> str | None:
        return None

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        from autotune.dispatch import get_kernel

        kernel = get_kernel(shape)
        q, k, v = inputs.q, inputs.k, inputs.v

        def run() -> "torch.Tensor":
            out: torch.Tensor = kernel(q, k, v, scale=inputs.scale, softcap=inputs.softcap)
            return out

        run()
        return run


def subjects() -> list[tuple[Family, Baseline]]:
    """List the subjects of dense attention, each with the family whose formulas describe its traffic."""
    fused: list[tuple[Family, Baseline]] = [("fused", Sdpa(name)) for name in ("flash", "efficient", "cudnn")]
    return [("eager", Eager()), ("naive", Naive()), *fused, ("fused", ServedKernel())]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none; torch adds stacks below."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def why_not(baseline: Baseline, shape: Any, kind: str) -> str | None:
    """Return the reason why a subject cannot be measured on this kind of device, or None."""
    if kind == "cpu" and baseline.name in (OURS, "naive", "sdpa efficient", "sdpa cudnn"):
        return GPU_ONLY
    return baseline.available() or baseline.unsupported(shape)


def chosen_baselines(operation: str, shape: Shape, names: Sequence[str]) -> Iterator[tuple[Baseline, str | None]]:
    """Yield the baselines of these names, each with the reason why it does not run here, or None."""
    for baseline in load_baselines(operation):
        if baseline.name in names:
            yield baseline, baseline.available() or baseline.unsupported(shape)


def prepare_served(
    operation: str, shape: Shape, inputs: Any, *, is_interpreted: bool = False
) -> "Callable[[], torch.Tensor]":
    """Return a call of what is served on the GPU here, or of what Triton's interpreter can run of that of an NVIDIA
    H200; its output is filled with NaN beforehand."""
    from autotune.dispatch import get_kernel, pick_for_device

    pick = pick_for_device(shape, None, operation) if is_interpreted else get_kernel(shape, operation=operation)
    served = pick.candidate
    kernel = load_kernel(operation, served.implementation)
    outputs = load_definition(operation).empty_outputs(inputs)[:1]

    def run() -> "torch.Tensor":
        kernel.launch(served.config, inputs, outputs)
        return outputs[0]

    return run
