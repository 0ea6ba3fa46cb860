"""torch's scaled_dot_product_attention, each of its backends forced by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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


@dataclass(frozen=True, slots=True)
class Sdpa:
    """One backend over ``AttentionShape``; what the backend itself refuses, it refuses with torch's words.

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
        return None

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """A call over flash attention's ``Inputs`` that returns ``[B, S_q, H, D_v]``.

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

        return run


SDPA: Final = tuple(map(Sdpa, BACKENDS))
