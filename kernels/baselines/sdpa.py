"""torch's scaled_dot_product_attention, each of its backends forced by itself."""

import importlib.metadata
import math
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import BaselineUnavailableError, one_line
from autotune.kernels.baselines.baseline import DTYPES, missing_torch, refuse_unless_ready, wrong_shape
from autotune.shape import AttentionShape

if TYPE_CHECKING:
    import torch

# Of each backend the functions of torch.backends.cuda that read its switch and set it, which CPUs heed, too.
BACKENDS: Final = {
    "cudnn": ("cudnn_sdp_enabled", "enable_cudnn_sdp"),
    "flash": ("flash_sdp_enabled", "enable_flash_sdp"),
    "efficient": ("mem_efficient_sdp_enabled", "enable_mem_efficient_sdp"),
    "math": ("math_sdp_enabled", "enable_math_sdp"),
}
# The first torch whose memory-efficient kernels take grouped heads, NVIDIA's alone: pytorch/pytorch#191085, in
# can_use_mem_efficient_attention of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
GROUPS_IN_EFFICIENT: Final = (2, 14)


class OneBackend:
    """A context in which scaled_dot_product_attention uses this backend or raises; for calls that are timed.

    Torch's ``sdpa_kernel`` does the same and takes 11 us a call where this takes 2, on a CPU whose shortest attention
    takes 4 (2026-11-21, torch 2.13, one thread, least of 7 repeats).

    Example:
        >>> with OneBackend("math"):
        ...     out = scaled_dot_product_attention(q, k, v)
    """

    __slots__ = ("_backend", "_turned")

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._turned: list[tuple[Callable[[bool], None], bool]] = []

    def __enter__(self) -> None:
        self._turned = [(turn, on) for is_on, turn, on in _switches(self._backend) if is_on() is not on]
        for turn, on in self._turned:
            turn(on)

    def __exit__(self, *_: object) -> None:
        for turn, on in self._turned:
            turn(not on)


@dataclass(frozen=True, slots=True)
class Sdpa:
    """One backend over ``AttentionShape``; what the backend itself refuses, ``prepare`` does with torch's words.

    The tensors are passed as ``[B, H, S, D]`` views of ``[B, S, H, D]``, which every backend takes without a copy.
    Torch's own causal flag aligns masks top-left; over other numbers of queries and keys the mask is the one of
    ``torch.nn.attention.bias``, or a tensor where torch would make one in each call.
    """

    backend: str
    is_usual: bool = True
    verified_on_hardware: bool = True

    @property
    def name(self) -> str:
        return f"sdpa {self.backend}"

    def available(self) -> str | None:
        if (missing := missing_torch(self.name)) is not None:
            return missing
        import torch

        if self.backend in ("cudnn", "efficient") and not torch.cuda.is_available():
            return f"{self.name} needs a GPU and a build of torch for it"
        return None

    def unsupported(self, shape: Any) -> str | None:
        if (reason := wrong_shape(self.name, shape, (AttentionShape,), DTYPES, has=("attn_mask",))) is not None:
            return reason
        if shape.attn_mask and (shape.causal or self.backend == "flash"):
            limit = "none" if self.backend == "flash" else "one without a causal flag"
            return f"attn_mask={shape.attn_mask!r}, causal={shape.causal}: {self.name} takes {limit}"
        if shape.window is not None or shape.softcap:
            return f"{self.name} has no window and no softcap"
        if self.backend == "cudnn" and _is_bottom_right(shape):
            return f"{_lengths(shape)}: torch gives cuDNN's attention a bottom-right causal mask as a tensor alone"
        if self.backend == "efficient" and _has_blind_queries(shape):
            return self._no_blind_queries(shape)
        if self.backend == "efficient" and shape.group > 1 and _torch_release() < GROUPS_IN_EFFICIENT:
            heads = f"heads={shape.heads}, kv_heads={shape.kv_heads}"
            return f"{heads}: {self.name} takes grouped heads from torch {'.'.join(map(str, GROUPS_IN_EFFICIENT))} on"
        return None

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """Bind a call over flash attention's ``Inputs`` that returns ``[B, S_q, H, D_v]``; run once here."""
        refuse_unless_ready(self, shape)
        run, mask, q, k, v = self._bind(shape, inputs)
        if self.backend != "math":  # which takes everything
            is_bias = mask is not None and shape.attn_mask is None and q.device.type != "cpu"
            grouped = shape.heads != shape.kv_heads
            self._try((lambda: self._run_fused(run, q, k, v, grouped)) if is_bias else run)
        return run

    def serve(self, shape: Any, inputs: Any) -> "torch.Tensor":
        try:
            return self._bind(shape, inputs)[0]()
        except RuntimeError as error:
            raise BaselineUnavailableError(f"{self.name} does not run here: {one_line(error)}") from error

    def _bind(
        self, shape: Any, inputs: Any
    ) -> "tuple[Callable[[], torch.Tensor], torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor]":
        """Return the call, its mask, and the tensors as torch takes them, ``[B, H, S, D]``."""
        from torch.nn.functional import scaled_dot_product_attention

        q, k, v = (tensor.transpose(1, 2) for tensor in (inputs.q, inputs.k, inputs.v))
        mask = self._mask(shape, q) if _is_bottom_right(shape) else inputs.attn_mask
        causal = mask is None and shape.causal and shape.seq_q > 1  # a single query sees every key

        def run() -> "torch.Tensor":
            with OneBackend(self.backend):
                out = scaled_dot_product_attention(
                    *(q, k, v, mask),
                    is_causal=causal,
                    scale=inputs.scale,
                    enable_gqa=shape.heads != shape.kv_heads,
                )
            return out.transpose(1, 2)

        return run, mask, q, k, v

    def _mask(self, shape: AttentionShape, q: "torch.Tensor") -> "torch.Tensor":
        """Make a causal mask aligned bottom-right: a bias that torch's GPU kernels know, or ``[S_q, S_kv]`` values.

        Torch's math and its kernel for CPUs take values alone, and would make them of the bias in each call.
        """
        if self.backend == "math" or q.device.type == "cpu":
            hidden = q.new_full((shape.seq_q, shape.seq_kv), -math.inf)
            return hidden.triu_(1 + shape.seq_kv - shape.seq_q)
        if _has_blind_queries(shape):
            raise BaselineUnavailableError(self._no_blind_queries(shape))
        from torch.nn.attention.bias import causal_lower_right

        return causal_lower_right(shape.seq_q, shape.seq_kv)

    def _no_blind_queries(self, shape: AttentionShape) -> str:
        return f"{_lengths(shape)}: torch says that {self.name} may return NaN for queries that see no key"

    def _run_fused(
        self, run: "Callable[[], torch.Tensor]", q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor", grouped: bool
    ) -> None:
        """Run it if the backend takes the bias as it is: otherwise torch makes a tensor of it, and blames that."""
        from torch.backends import cuda

        takes = {"flash": cuda.can_use_flash_attention, "efficient": cuda.can_use_efficient_attention}[self.backend]
        with OneBackend(self.backend):
            if not takes(cuda.SDPAParams(q, k, v, None, 0.0, False, grouped), True):
                raise RuntimeError("No kernel of this backend takes the problem.")
        run()

    def _try(self, run: Callable[[], object]) -> None:
        """Run it once: torch warns of what a backend does not take, and raises that there is no kernel."""
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
def _switches(backend: str) -> "tuple[tuple[Callable[[], bool], Callable[[bool], None], bool], ...]":
    """Return for each backend what reads its switch, what sets it, and if it is on where this one is alone."""
    from torch.backends import cuda

    found = BACKENDS.items()
    return tuple((getattr(cuda, is_on), getattr(cuda, turn), name == backend) for name, (is_on, turn) in found)


def _is_bottom_right(shape: AttentionShape) -> bool:
    """Return if there is a mask that torch's causal flag does not mean: one query's hides nothing."""
    return shape.causal and shape.seq_q not in (1, shape.seq_kv)


def _has_blind_queries(shape: AttentionShape) -> bool:
    return shape.causal and shape.seq_q > shape.seq_kv


def _lengths(shape: AttentionShape) -> str:
    return f"seq_q={shape.seq_q}, seq_kv={shape.seq_kv}"


@cache
def _torch_release() -> tuple[int, ...]:
    """Return the major and minor number of the installed torch, which is not imported for that; (0, 0) without one."""
    try:
        return tuple(map(int, re.findall(r"\d+", importlib.metadata.version("torch"))[:2]))
    except importlib.metadata.PackageNotFoundError:
        return (0, 0)


def _reasons(said: Iterable[str]) -> str:
    """Join torch's warnings in one line, without empty headings and the places in its source.

    Example:
        >>> _reasons(["Flash attention kernel not used because: (Triggered internally at a.cpp:9.)", "No heads."])
        'No heads.'
    """
    texts = (" ".join(re.sub(r"\(Triggered internally at .*\)", "", text).split()) for text in said)
    return " ".join(text for text in texts if text and not text.endswith("because:"))


SDPA: Final = tuple(map(Sdpa, BACKENDS))
