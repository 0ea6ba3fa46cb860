"""The ops of attention over packed sequences: ``autotune::attention_varlen`` and its other forms."""

from typing import Any, Final

import torch

from autotune.call_shapes import check_varlen_ranks, varlen_shape
from autotune.eager_calls import attend_varlen
from autotune.kernels.flash_attention_varlen.packed_call import TENSORS, check_fit
from autotune.kernels.tensors import check_out
from autotune.torch_ops.op_family import OpFamily
from autotune.torch_ops.tensor_op import Arguments, is_known

OPTIONS: Final = {
    "sinks": "Tensor?",
    "seqused_q": "Tensor?",
    "seqused_k": "Tensor?",
    "max_seqlen_q": "SymInt",
    "max_seqlen_k": "SymInt",
    "causal": "bool",
    "window": "SymInt?",
    "softcap": "float?",
    "scale": "float?",
    "check": "bool",
}


def _make_results(*, return_lse: bool, out: torch.Tensor | None, **given: Any) -> Any:
    tensors = {name: given[name] for name in TENSORS}
    check_varlen_ranks(*(tensor.shape for tensor in tensors.values()))
    q, sinks, softcap = tensors["q"], given["sinks"], given["softcap"]
    sizes = (*q.shape[:2], tensors["v"].shape[2])
    if is_known(given):
        longest, features = (given["max_seqlen_q"], given["max_seqlen_k"]), (softcap is not None, sinks is not None)
        shape = varlen_shape(*(*tensors.values(), longest, given["causal"], given["window"], features))
        numbers = {"seqused_q": given["seqused_q"], "seqused_k": given["seqused_k"], "kv_starts": None}
        check_fit(shape, tensors, sinks, numbers, scale=given["scale"], softcap=softcap)
        if out is not None:
            check_out(out, sizes, {"q": q}, contiguous=True)
    result = q.new_empty(sizes)
    return (result, q.new_empty(sizes[:2], dtype=torch.float32)) if return_lse else result


def _cast(arguments: Arguments, dtype: torch.dtype) -> Arguments:
    """Cast as autocast does for dense attention: all but fp64."""
    cast = {name: arguments[name] for name in ("q", "k", "v")}
    return arguments | {name: each if each.dtype == torch.float64 else each.to(dtype) for name, each in cast.items()}


ATTENTION_VARLEN: Final = OpFamily(
    "attention_varlen", TENSORS, OPTIONS, compute=attend_varlen, fake=_make_results, cast=_cast
)
