"""What the analyses measure: eager and naive attention, torch's fused backends, and the kernel that is served."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from autotune import hardware
from autotune.comparison import OURS
from autotune.kernels.baselines.eager import Eager
from autotune.kernels.baselines.naive import Naive
from autotune.kernels.baselines.sdpa import Sdpa
from autotune.operation import Baseline

if TYPE_CHECKING:
    import torch

Family = Literal["naive", "eager", "fused"]

GPU_ONLY: Final = "runs on a GPU only"


class Served:
    """The kernel that ``get_kernel`` hands out, with the interface of a baseline."""

    name: Final = OURS
    is_usual: Final = True
    verified_on_hardware: Final = True

    def available(self) -> str | None:
        if not hardware.has_gpu():
            return "autotune's kernels need a CUDA or ROCm GPU, and none is here"
        return None

    def unsupported(self, shape: Any) -> str | None:
        return "varlen=True: flash_attention takes sequences of one length" if shape.varlen else None

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        from autotune.dispatch import get_kernel

        kernel = get_kernel(shape)
        q, k, v = inputs.q, inputs.k, inputs.v

        def run() -> "torch.Tensor":
            out: torch.Tensor = kernel(q, k, v, scale=inputs.scale, softcap=inputs.softcap)
            return out

        run()
        return run


def contenders() -> list[tuple[Family, Baseline]]:
    """All of them, with how each moves its data; those that are not here say why when they are asked."""
    fused: list[tuple[Family, Baseline]] = [("fused", Sdpa(name)) for name in ("flash", "efficient", "cudnn")]
    return [("eager", Eager()), ("naive", Naive()), *fused, ("fused", Served())]


def why_not(baseline: Baseline, shape: Any, kind: str) -> str | None:
    """Why it cannot be measured on this device, or None."""
    if kind == "cpu" and baseline.name in (OURS, "naive", "sdpa efficient", "sdpa cudnn"):
        return GPU_ONLY
    return baseline.available() or baseline.unsupported(shape)
