"""The ops of dense attention: ``autotune::attention`` and its other forms."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from autotune.call_shapes import check_dense_ranks, dense_shape
from autotune.eager_calls import attend
from autotune.errors import InputMismatchError
from autotune.kernels.flash_attention.checks import check_fit
from autotune.kernels.flash_attention.scales import is_quantized
from autotune.kernels.tensors import check_out, describe
from autotune.torch_ops.op_family import OpFamily
from autotune.torch_ops.tensor_op import Arguments, is_known

TENSORS: Final = ("q", "k", "v")
OPTIONS: Final = {"causal": "bool", "window": "SymInt?", "softcap": "float?", "scale": "float?"}


def _make_results(
    *, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, return_lse: bool, out: torch.Tensor | None, **options: Any
) -> Any:
    check_dense_ranks(q, k, v)
    sizes = (*q.shape[:3], v.shape[3])
    if is_known({"q": q, "k": k, "v": v, **options}) and 0 not in (*sizes, k.shape[1]):
        softcap, scale = options["softcap"], options["scale"]
        shape = dense_shape(q, k, v, options["causal"], options["window"], softcap is not None)
        check_fit(shape, q, k, v, scale=scale, softcap=softcap)
        if out is not None:
            check_out(out, sizes, {"q": q})
    result = q.new_empty(sizes)
    return (result, q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)) if return_lse else result


def refuse_quantized(q: object, scales: Mapping[str, Any]) -> None:
    """Refuse tensors that have scales, which the ops do not take."""
    if scales or (isinstance(q, torch.Tensor) and is_quantized(q)):
        raise InputMismatchError(f"q is {describe(q)}, in traced code; expected 16 or 32 bits without scales there")


def _cast(arguments: Arguments, dtype: torch.dtype) -> Arguments:
    """Cast as autocast does for torch's ``scaled_dot_product_attention``: all but fp64."""
    cast = {name: arguments[name] for name in TENSORS}
    return arguments | {name: each if each.dtype == torch.float64 else each.to(dtype) for name, each in cast.items()}


def _fold(op: Callable[..., Any], arguments: Arguments, mapped: Mapping[str, int | None], size: int) -> tuple[Any, Any]:
    """Fold the mapped dimension into the batch; what is not mapped is repeated."""
    folded = {}
    for name in TENSORS:
        tensor, dimension = arguments[name], mapped[name]
        spread = tensor.expand(size, *tensor.shape) if dimension is None else tensor.movedim(dimension, 0)
        folded[name] = spread.flatten(0, 1)
    found = op(*(arguments | folded).values())
    batch = (size, folded["q"].shape[0] // size)
    if isinstance(found, torch.Tensor):
        return found.reshape(*batch, *found.shape[1:]), 0
    return tuple(each.reshape(*batch, *each.shape[1:]) for each in found), (0,) * len(found)


ATTENTION: Final = OpFamily("attention", TENSORS, OPTIONS, compute=attend, fake=_make_results, cast=_cast, fold=_fold)
