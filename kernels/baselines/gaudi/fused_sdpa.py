"""Gaudi's fused attention over dense tensors, ``habana_frameworks.torch.hpex.kernels.FusedSDPA``.

Arguments and limits are those of Intel's documentation (docs.habana.ai, "Python Packages", hpex/kernels/FusedSDPA) and
of the bridge's sources (HabanaAI/gaudi-pytorch-bridge, ``hpex/kernels/FusedSDPA.py``); not verified on hardware.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from autotune.dtypes import QUANTIZED_DTYPES
from autotune.errors import BaselineUnavailableError, UnknownNameError
from autotune.kernels.baselines.baseline import missing_operand, refuse_elsewhere, refuse_unless_ready
from autotune.kernels.baselines.gaudi import bridge
from autotune.shape import AttentionShape

if TYPE_CHECKING:
    from autotune.kernels.flash_attention.definition import Inputs

DEVICE: Final = "hpu"
SOFTMAX_MODES: Final = ("none", "fast", "fp32")  # the bridge lowers their case, and has fp32 since 1.20
# In this order, after autograd's context. Release 1.19 ends before window_size, which another, of sinks, follows.
ARGUMENTS: Final = (
    *("q", "k", "v", "attn_mask", "dropout_p", "is_causal", "scale", "softmax_mode", "recompute_mode"),
    *("valid_seq_len", "seq_padding_type", "return_dropout_mask", "return_attn_probs", "window_size"),
)
# Windows need the kernel's slicing, which by default starts at these lengths and cuts them into such slices.
WINDOW_MIN_SEQ: Final = 32768
WINDOW_SLICE: Final = 1024


def bind_fused_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float,
    softmax_mode: str = "fast",
    recompute: bool | None = True,
    valid_seq_len: torch.Tensor | None = None,
    window: int | None = None,
) -> Callable[[], torch.Tensor]:
    """Bind FusedSDPA of ``q [B, H, S_q, D]`` over ``k [B, H_kv, S_kv, D]`` and ``v [B, H_kv, S_kv, D_v]``, on the HPU.

    ``causal`` masks begin top-left, as torch's do. ``softmax_mode`` is "none", "fast" or "fp32" (of bf16 inputs);
    ``recompute`` True does not materialise the probabilities, None follows the process-wide flag of ``sdp_kernel``.
    ``valid_seq_len``, int32 ``[B]`` and for causal masks alone, are the lengths of sequences that are padded on the
    right. A ``window`` of W leaves the keys closer than W positions. The call returns ``[B, H, S_q, D_v]``.

    Raises:
        MissingDependencyError: the bridge or a Gaudi is absent.
        BaselineUnavailableError: the installed bridge takes other arguments.
    """
    bridge.require()
    # By position, as ``apply`` takes them, and the last ones only where they are needed.
    arguments: list[Any] = [q, k, v, None, 0.0, causal, scale, softmax_mode, recompute]
    if valid_seq_len is not None or window is not None:
        arguments += [valid_seq_len, "right"]
    if window is not None:
        # Both ends count. A causal mask is the right side's limit, which the documentation prefers to a 0 there.
        arguments += [False, False, (window - 1, -1 if causal else window - 1)]
    kernel = bridge.find_fused_sdpa()
    known = tuple(inspect.signature(kernel.forward).parameters)[1:]
    needed = ARGUMENTS[: len(arguments)]
    if known[: len(needed)] != needed:
        raise BaselineUnavailableError(
            f"this FusedSDPA takes {len(known)} arguments, ({', '.join(known)}); needed: ({', '.join(needed)})"
        )
    return partial(kernel.apply, *arguments)


@dataclass(frozen=True, slots=True)
class FusedSdpa:
    """Implements ``Baseline`` for ``AttentionShape``: one FusedSDPA, the mode of execution that of the process.

    The defaults are what vLLM's prefill uses. ``valid_seq_len`` passes every sequence's length too, as vLLM does where
    a batch is padded. In lazy mode the call is an HPU graph's replay, or without ``hpu_graphs`` a step of its own; in
    eager mode it is the operation itself.
    """

    softmax_mode: str = "fast"
    recompute: bool | None = True
    valid_seq_len: bool = False
    hpu_graphs: bool = True
    name: str = "gaudi fused sdpa"
    is_usual: bool = False
    verified_on_hardware: bool = False

    def __post_init__(self) -> None:
        if (mode := self.softmax_mode) not in SOFTMAX_MODES:
            raise UnknownNameError(f"softmax_mode={mode!r} is unknown; allowed: {', '.join(SOFTMAX_MODES)}")

    def available(self) -> str | None:
        return bridge.missing()

    def unsupported(self, shape: Any) -> str | None:
        if not isinstance(shape, AttentionShape):
            return f"{type(shape).__name__}: FusedSDPA takes dense attention, AttentionShape"
        if shape.dtype in QUANTIZED_DTYPES:
            return f"dtype={shape.dtype}: FusedSDPA takes no scales here"
        if shape.softcap:
            return "softcap=True: FusedSDPA has none"
        if (reason := missing_operand("FusedSDPA", shape)) is not None:
            return reason
        if shape.causal and shape.seq_q not in (1, shape.seq_kv):
            return f"seq_q={shape.seq_q}, seq_kv={shape.seq_kv}: FusedSDPA's causal masks begin top-left"
        if self.valid_seq_len and not _has_causal_mask(shape):
            return f"causal={shape.causal}, seq_q={shape.seq_q}: valid_seq_len needs a causal mask"
        if self.softmax_mode == "fp32" and shape.dtype != "bfloat16":
            return f"dtype={shape.dtype}: softmax_mode='fp32' takes bfloat16"
        return None if shape.window is None else self._unsupported_window(shape, shape.window)

    def _unsupported_window(self, shape: AttentionShape, window: int) -> str | None:
        if self.recompute is not True or self.softmax_mode == "fp32":
            return f"window={window}: FusedSDPA's need recompute=True and a softmax_mode other than 'fp32'"
        if (window - 1) % WINDOW_SLICE:
            return f"window={window}: FusedSDPA's are one more than a multiple of {WINDOW_SLICE}"
        if any(seq < WINDOW_MIN_SEQ or seq % WINDOW_SLICE for seq in (shape.seq_q, shape.seq_kv)):
            lengths = f"multiples of {WINDOW_SLICE} from {WINDOW_MIN_SEQ}"
            return f"window={window}: FusedSDPA has windows of {lengths} queries and keys"
        return None

    def prepare(self, shape: AttentionShape, inputs: "Inputs") -> Callable[[], torch.Tensor]:
        refuse_unless_ready(self, shape)
        refuse_elsewhere("FusedSDPA", inputs.q, DEVICE)
        q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in (inputs.q, inputs.k, inputs.v))
        run = bind_fused_sdpa(
            *(q, k, v),
            causal=_has_causal_mask(shape),
            scale=inputs.scale,
            softmax_mode=self.softmax_mode,
            recompute=self.recompute,
            valid_seq_len=q.new_full((shape.batch,), shape.seq_kv, dtype=torch.int32) if self.valid_seq_len else None,
            window=shape.window,
        )
        end_step = bridge.step_marker()
        end_step()  # what was collected so far, the copies too, is no part of a call
        if self.hpu_graphs and bridge.is_lazy():
            replay = bridge.graphed(run)
            replay()  # records
            return lambda: replay().transpose(1, 2)

        def call() -> torch.Tensor:
            out = run()
            end_step()
            return out.transpose(1, 2)

        return call


def _has_causal_mask(shape: AttentionShape) -> bool:
    """Return if a mask hides a key: a single query is the last position, and top-left it would see one key."""
    return shape.causal and shape.seq_q > 1
