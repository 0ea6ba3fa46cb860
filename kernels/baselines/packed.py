"""Baselines of packed sequences from torch: its varlen kernels, FlexAttention over documents, and a call a sequence."""

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from autotune.kernels.baselines.baseline import (
    DTYPES,
    missing_feature,
    missing_nvidia_gpu,
    missing_torch,
    refusals_of,
    refuse_elsewhere,
    refuse_unless_ready,
    wrong_shape,
)
from autotune.kernels.baselines.flex import Flex
from autotune.varlen_shape import VarlenShape

if TYPE_CHECKING:
    import torch

    Run = Callable[[], torch.Tensor]


class TorchVarlen:
    """``torch.nn.attention.varlen.varlen_attn`` over ``VarlenShape``: torch's build of FlashAttention 2."""

    name: Final = "torch varlen"
    is_usual: Final = True
    verified_on_hardware: Final = False

    def available(self) -> str | None:
        if (missing := missing_torch(self.name)) is not None:
            return missing
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:
            return f"{self.name} needs torch 2.11 or newer: pip install 'torch>=2.11'"
        if not {"window_size", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters):
            return f"{self.name} takes windows and grouped heads from torch 2.11 on: pip install 'torch>=2.11'"
        return missing_nvidia_gpu(self.name)

    def unsupported(self, shape: Any) -> str | None:
        if (reason := wrong_shape(self.name, shape, (VarlenShape,), DTYPES[:2])) is not None:
            return reason
        if shape.head_dim != shape.head_dim_v:
            return f"head_dim={shape.head_dim}, head_dim_v={shape.head_dim_v}: {self.name} takes one width"
        return missing_feature(self.name, shape, "softcap", "sinks")

    def prepare(self, shape: Any, inputs: Any) -> "Run":
        """Bind a call over the operation's ``Inputs`` that returns ``[T, H, D_v]``; run once here."""
        refuse_unless_ready(self, shape)
        refuse_elsewhere(self.name, inputs.q, "cuda")
        import torch
        from torch.nn.attention.varlen import varlen_attn

        longest = [int(each.diff().max()) for each in (inputs.cu_seqlens_q, inputs.cu_seqlens_k)]
        before = -1 if inputs.window is None else inputs.window - 1
        options: dict[str, Any] = {
            "scale": inputs.scale,
            "window_size": (before, 0 if inputs.causal else before),
            "enable_gqa": shape.group > 1,
        }

        def run() -> "torch.Tensor":
            with torch.no_grad():
                out: Any = varlen_attn(*inputs.tensors, *longest, **options)
            return out  # type: ignore[no-any-return]

        with refusals_of(self.name):
            run()
        return run


class SdpaLoop:
    """A ``scaled_dot_product_attention`` for each sequence over ``VarlenShape``, by the backend that torch chooses.

    Masks that torch's causal flag does not mean are made once, when it is prepared.
    """

    name: Final = "sdpa loop"
    is_usual: Final = True
    verified_on_hardware: Final = False

    def available(self) -> str | None:
        return missing_torch(self.name)

    def unsupported(self, shape: Any) -> str | None:
        if (reason := wrong_shape(self.name, shape, (VarlenShape,), DTYPES)) is not None:
            return reason
        return missing_feature(self.name, shape, "softcap", "sinks")

    def prepare(self, shape: Any, inputs: Any) -> "Run":
        """Bind a call over the operation's ``Inputs`` that returns ``[T, H, D_v]``; run once here."""
        refuse_unless_ready(self, shape)
        import torch

        bounds = (pairwise(offsets.tolist()) for offsets in (inputs.cu_seqlens_q, inputs.cu_seqlens_k))
        calls = [
            _bind_sequence(inputs, slice(*rows), slice(*keys), enable_gqa=shape.group > 1)
            for rows, keys in zip(*bounds, strict=True)
            if rows[0] < rows[1]
        ]
        empty = inputs.q.new_zeros((0, shape.heads, shape.head_dim_v))

        def run() -> "torch.Tensor":
            with torch.no_grad():
                return torch.cat([call() for call in calls]) if calls else empty

        with refusals_of(self.name):
            run()
        return run


def _bind_sequence(inputs: Any, rows: slice, keys: slice, *, enable_gqa: bool) -> "Run":
    """Return a call over one sequence that has queries; one without keys gives 0, as do queries that see none."""
    from torch.nn.functional import scaled_dot_product_attention

    from autotune.kernels.flash_attention.reference import visible_keys

    q, k, v = (each[None, at].transpose(1, 2) for each, at in ((inputs.q, rows), (inputs.k, keys), (inputs.v, keys)))
    seq_q, seq_kv = q.shape[2], k.shape[2]
    if seq_kv == 0:
        zeros = q.new_zeros((seq_q, q.shape[1], v.shape[3]))
        return lambda: zeros
    is_flag = inputs.causal and inputs.window is None and seq_q == seq_kv
    hidden = None
    if not is_flag and (inputs.window is not None or (inputs.causal and seq_q > 1)):
        places: dict[str, Any] = {"causal": inputs.causal, "window": inputs.window, "device": q.device}
        hidden = ~visible_keys(0, seq_q, seq_q, seq_kv, **places)
    blind = None if hidden is None or not bool(hidden.all(1).any()) else hidden.all(1)[:, None]
    mask = None if hidden is None else ~hidden
    options: dict[str, Any] = {"is_causal": is_flag, "scale": inputs.scale, "enable_gqa": enable_gqa}

    def call() -> "torch.Tensor":
        out = scaled_dot_product_attention(q, k, v, mask, **options)
        out = out if blind is None else out.masked_fill(blind, 0.0)
        return out[0].transpose(0, 1)

    return call


class FlexDocuments(Flex):
    """FlexAttention over ``VarlenShape`` as one sequence, whose mask lets a query see keys of its own document alone.

    It is compiled for the total lengths, and the block mask, made once, is of these very documents.
    """

    name: Final = "flex documents"  # type: ignore[misc]  # of another operation
    verified_on_hardware: Final = False  # type: ignore[misc]

    def unsupported(self, shape: Any) -> str | None:
        if (reason := wrong_shape(self.name, shape, (VarlenShape,), DTYPES)) is not None:
            return reason
        return missing_feature(self.name, shape, "sinks")

    def prepare(self, shape: Any, inputs: Any) -> "Run":
        """Bind a call over the operation's ``Inputs`` that returns ``[T, H, D_v]``; compiles, and runs once."""
        refuse_unless_ready(self, shape)
        with refusals_of(self.name):
            from autotune.kernels.flash_attention.flex.compiled import compile_attention  # loads torch and triton
            from autotune.kernels.flash_attention.flex.masks import softcap

            tensors = tuple(each[None] for each in (inputs.q, inputs.k, inputs.v))
            cap = None if inputs.softcap is None else softcap(inputs.softcap)
            call = compile_attention(*tensors, scale=inputs.scale, score_mod=cap, mask_mod=_documents(inputs))
            run = call.bind(*tensors)
            return lambda: run()[0]


def _documents(inputs: Any) -> "Callable[..., torch.Tensor]":
    """Return the mask of packed sequences: the same document, and its diagonal and window, bottom-right aligned."""
    import torch

    def number(offsets: "torch.Tensor", rows: int) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return each row's document, and how far it lies before the end of that."""
        place = torch.arange(rows, device=offsets.device)
        documents = torch.searchsorted(offsets[1:].contiguous(), place, right=True, out_int32=True)
        return documents, offsets[1:][documents.long()] - place

    q_documents, q_ages = number(inputs.cu_seqlens_q, inputs.q.shape[0])
    kv_documents, kv_ages = number(inputs.cu_seqlens_k, inputs.k.shape[0])
    causal, window = inputs.causal, inputs.window

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        ahead = q_ages[query] - kv_ages[key]
        seen = q_documents[query] == kv_documents[key]
        if causal:
            seen = seen & (ahead <= 0)
        if window is not None:
            seen = seen & (ahead.abs() < window)
        return seen

    return visible
