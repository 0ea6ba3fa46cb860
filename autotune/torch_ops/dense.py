"""The ops of dense attention: ``autotune::attention`` and its other forms."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from autotune.call_shapes import check_dense_ranks, dense_shape, padded_shape
from autotune.eager_calls import attend
from autotune.errors import InputMismatchError, UsageError
from autotune.kernels.flash_attention.checks import check_fit
from autotune.kernels.flash_attention.operands import check_operands, kind_of_mask, refuse_beside_padding
from autotune.kernels.flash_attention.scales import is_quantized
from autotune.kernels.flash_attention_varlen import packed_call
from autotune.kernels.flash_attention_varlen.padding import PADDED
from autotune.kernels.tensors import check_out, describe
from autotune.torch_ops.op_family import OpFamily
from autotune.torch_ops.tensor_op import Arguments, is_known

TENSORS: Final = ("q", "k", "v")
OPERANDS: Final = ("attn_mask", "sinks", "kv_ends")
OPTIONS: Final = {
    "causal": "bool",
    "window": "SymInt?",
    "softcap": "float?",
    "scale": "float?",
    **dict.fromkeys(PADDED, "Tensor?"),
    "check": "bool",
    **dict.fromkeys(OPERANDS, "Tensor?"),
}


def _make_results(
    *, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, return_lse: bool, out: torch.Tensor | None, **options: Any
) -> Any:
    check_dense_ranks(q, k, v)
    sizes = (*q.shape[:3], v.shape[3])
    tensors: dict[str, torch.Tensor] = {"q": q, "k": k, "v": v}
    is_padded = any(options[name] is not None for name in PADDED)
    if is_known(tensors | options) and 0 not in (*sizes, k.shape[1]):
        _check_sizes(tensors, options, is_padded=is_padded)
        if out is not None:
            check_out(out, sizes, {"q": q}, contiguous=is_padded)
    result = q.new_empty(sizes)
    if not return_lse:
        return result
    batch, queries, heads = sizes[:3]
    lse_sizes = (batch, queries, heads) if is_padded else (batch, heads, queries)
    lse = q.new_empty(lse_sizes, dtype=torch.float32)
    return result, lse.transpose(1, 2) if is_padded else lse


def _check_sizes(tensors: dict[str, torch.Tensor], options: Mapping[str, Any], *, is_padded: bool) -> None:
    """Refuse what a kernel of these sizes, all of them known, would refuse."""
    q, k, v = tensors.values()
    operands = {name: options[name] for name in OPERANDS}
    has_sinks, has_ends = operands["sinks"] is not None, operands["kv_ends"] is not None
    places, has_softcap = (options["causal"], options["window"]), options["softcap"] is not None
    given = {name: options[name] for name in ("scale", "softcap")}
    check_operands(q, k.shape[1], **operands)
    if is_padded:
        numbers = {name: options[name] for name in PADDED}
        refuse_beside_padding(operands, numbers)
        packed = padded_shape(q, k, v, *places, (has_softcap, has_sinks), numbers)
        packed_call.check_fit(packed, tensors, operands["sinks"], numbers, **given)
    else:
        shape = dense_shape(q, k, v, *places, has_softcap, (kind_of_mask(operands["attn_mask"]), has_sinks, has_ends))
        check_fit(shape, q, k, v, **given)


def refuse_quantized(q: object, scales: Mapping[str, Any]) -> None:
    """Refuse tensors that have scales, which the ops do not take."""
    if scales or (isinstance(q, torch.Tensor) and is_quantized(q)):
        raise InputMismatchError(f"q is {describe(q)}, in traced code; expected 16 or 32 bits without scales there")


def _cast(arguments: Arguments, dtype: torch.dtype) -> Arguments:
    """Cast as autocast does for torch's ``scaled_dot_product_attention``: all but fp64, and masks of fp32."""
    cast = {name: arguments[name] for name in TENSORS}
    if (mask := arguments["attn_mask"]) is not None and mask.dtype not in (torch.bool, torch.float32):
        cast["attn_mask"] = mask
    return arguments | {name: each if each.dtype == torch.float64 else each.to(dtype) for name, each in cast.items()}


def _fold(op: Callable[..., Any], arguments: Arguments, mapped: Mapping[str, int | None], size: int) -> tuple[Any, Any]:
    """Fold the mapped dimension into the batch; what is not mapped is repeated."""
    folded = {}
    for name in (*TENSORS, *(name for name in PADDED if arguments[name] is not None)):
        tensor, dimension = arguments[name], mapped[name]
        spread = tensor.expand(size, *tensor.shape) if dimension is None else tensor.movedim(dimension, 0)
        folded[name] = spread.flatten(0, 1)
    for name in ("attn_mask", "kv_ends"):
        if arguments[name] is not None:
            folded[name] = _fold_operand(arguments[name], mapped[name], size, folded["q"].shape[0])
    if mapped["sinks"] is not None:
        raise UsageError("sinks are mapped by torch.vmap; expected the same for all problems, one number a head")
    found = op(*(arguments | folded).values())
    batch = (size, folded["q"].shape[0] // size)
    if isinstance(found, torch.Tensor):
        return found.reshape(*batch, *found.shape[1:]), 0
    return tuple(each.reshape(*batch, *each.shape[1:]) for each in found), (0,) * len(found)


def _fold_operand(operand: torch.Tensor, dimension: int | None, size: int, batch: int) -> torch.Tensor:
    """Return an operand for ``batch`` sequences, all problems'; one of all sequences of all problems stays as it is."""
    if dimension is None and operand.shape[0] == 1:
        return operand
    spread = operand.expand(size, *operand.shape) if dimension is None else operand.movedim(dimension, 0)
    return spread.expand(size, batch // size, *spread.shape[2:]).flatten(0, 1)


ATTENTION: Final = OpFamily("attention", TENSORS, OPTIONS, compute=attend, fake=_make_results, cast=_cast, fold=_fold)
