"""torch's scaled_dot_product_attention, each of its backends forced by itself."""

import importlib.metadata
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import BaselineUnavailableError, one_line
from autotune.kernels.baselines.baseline import refuse_unless_ready
from autotune.shape import AttentionShape

if TYPE_CHECKING:
    import torch

BACKENDS: Final = {
    "cudnn": "CUDNN_ATTENTION",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
DTYPES: Final = ("float16", "bfloat16", "float32")
# The first torch whose memory-efficient kernels take grouped heads, NVIDIA's alone: pytorch/pytorch#191085, in
# can_use_mem_efficient_attention of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
GROUPS_IN_EFFICIENT: Final = (2, 14)


@dataclass(frozen=True, slots=True)
class Sdpa:
    """One backend over ``AttentionShape``; what the backend itself refuses, ``prepare`` does with torch's words.

    The tensors are passed as ``[B, H, S, D]`` views of ``[B, S, H, D]``, which every backend takes without a copy.

    Example:
        >>> inputs = KERNEL.make_inputs(shape, seed=0, device="cpu")  # of flash attention
        >>> out = Sdpa("math").prepare(shape, inputs)()
    """

    backend: str
    is_usual: bool = True
    verified_on_hardware: bool = True

    @property
    def name(self) -> str:
        return f"sdpa {self.backend}"

    def available(self) -> str | None:
        try:
            import torch
        except Exception as error:  # a broken install raises more than ImportError
            return f"{self.name} needs torch ({error}): pip install torch"
        if self.backend in ("cudnn", "efficient") and not torch.cuda.is_available():
            return f"{self.name} needs a GPU and a build of torch for it"
        return None

    def unsupported(self, shape: Any) -> str | None:
        if not isinstance(shape, AttentionShape):
            return f"{type(shape).__name__}: {self.name} computes an AttentionShape"
        if shape.dtype not in DTYPES:
            return f"dtype={shape.dtype}: {self.name} takes {', '.join(DTYPES)}"
        if shape.window is not None or shape.softcap:
            return f"{self.name} has no window and no softcap"
        if shape.varlen:
            return f"varlen=True: {self.name} takes sequences of one length"
        if shape.causal and shape.seq_q != shape.seq_kv:
            return f"seq_q={shape.seq_q}, seq_kv={shape.seq_kv}: torch aligns causal masks top-left, not bottom-right"
        if self.backend == "efficient" and shape.group > 1 and _torch_release() < GROUPS_IN_EFFICIENT:
            heads = f"heads={shape.heads}, kv_heads={shape.kv_heads}"
            return f"{heads}: {self.name} takes grouped heads from torch {'.'.join(map(str, GROUPS_IN_EFFICIENT))} on"
        return None

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """A call over flash attention's ``Inputs`` that returns ``[B, S_q, H, D_v]``; run once here.

        Raises:
            MissingDependencyError: ``available`` says why.
            BaselineUnavailableError: ``unsupported`` says why, or the backend refuses the problem.
        """
        refuse_unless_ready(self, shape)
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        backend = getattr(SDPBackend, BACKENDS[self.backend])
        q, k, v = (tensor.transpose(1, 2) for tensor in (inputs.q, inputs.k, inputs.v))
        grouped = shape.heads != shape.kv_heads

        def run() -> "torch.Tensor":
            with sdpa_kernel(backend):
                out = scaled_dot_product_attention(
                    q, k, v, is_causal=inputs.causal, scale=inputs.scale, enable_gqa=grouped
                )
            return out.transpose(1, 2)

        if self.backend != "math":  # which takes everything
            self._try(run)
        return run

    def _try(self, run: "Callable[[], torch.Tensor]") -> None:
        """Run it once: torch says what a backend does not take in warnings, and raises that there is no kernel."""
        import torch

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                run()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                reasons = _reasons(str(warning.message) for warning in said) or one_line(error)
                raise BaselineUnavailableError(f"{self.name} does not run here: {reasons}") from error


@cache
def _torch_release() -> tuple[int, ...]:
    """Major and minor number of the installed torch, which is not imported for that; of none the least."""
    try:
        return tuple(map(int, re.findall(r"\d+", importlib.metadata.version("torch"))[:2]))
    except importlib.metadata.PackageNotFoundError:
        return (0, 0)


def _reasons(said: Iterable[str]) -> str:
    """Torch's warnings as one line, without headings of nothing and the places in its source.

    Example:
        >>> _reasons(["Flash attention kernel not used because: (Triggered internally at a.cpp:9.)", "No heads."])
        'No heads.'
    """
    texts = (" ".join(re.sub(r"\(Triggered internally at .*\)", "", text).split()) for text in said)
    return " ".join(text for text in texts if text and not text.endswith("because:"))


SDPA: Final = tuple(map(Sdpa, BACKENDS))
