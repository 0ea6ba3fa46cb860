"""The ops over paged caches: ``autotune::paged_decode``, ``paged_prefill`` and their other forms, ``append_kv``."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from autotune.call_shapes import (
    DECODE_QUERIES,
    PREFILL_QUERIES,
    check_paged_ranks,
    decode_shape,
    prefill_shape,
)
from autotune.eager_calls import append, decode, prefill
from autotune.errors import InvalidShapeError
from autotune.kernels.paged_cache.call import check_append
from autotune.kernels.paged_cache.fit import check_fit, expected_of
from autotune.kernels.tensors import check_out
from autotune.registry import get_operation
from autotune.shape import PagedShape, parse_layout
from autotune.torch_ops.op_family import OpFamily
from autotune.torch_ops.tensor_op import Arguments, TensorOp, check_traced, is_known

DECODE_TENSORS: Final = ("q", "k_cache", "v_cache", "page_table", "seq_lens")
PREFILL_TENSORS: Final = (*DECODE_TENSORS, "cu_seqlens_q")
APPEND_TENSORS: Final = ("k", "v", "k_cache", "v_cache", "slots")
APPEND_PARAMETERS: Final = {
    "k": "Tensor",
    "v": "Tensor",
    "k_cache": "Tensor(a!)",
    "v_cache": "Tensor(b!)",
    "slots": "Tensor",
    "k_scale": "Tensor(c!)?",
    "v_scale": "Tensor(d!)?",
    "layout": "str",
    "check": "bool",
}
LENGTHS: Final = ("seq_lens", "cu_seqlens_q")
PER_HEAD: Final = {"sinks": "Tensor?", "alibi_slopes": "Tensor?"}
SCALES: Final = {"k_scale": "Tensor?", "v_scale": "Tensor?"}
NUMBERS: Final = {
    "layout": "str",
    "scale": "float?",
    "window": "SymInt?",
    "softcap": "float?",
    "mean_context": "SymInt?",
    "check": "bool",
}


def _fake(name: str, shape_of: Callable[..., PagedShape], queries: Mapping[int, str]) -> Callable[..., Any]:
    """Return what makes results of an operation, and refuses tensors of known sizes that no kernel takes."""

    def make_results(
        *,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        return_lse: bool,
        out: torch.Tensor | None,
        **options: Any,
    ) -> Any:
        check_paged_ranks(q.shape, k_cache.shape, v_cache.shape, page_table.shape, queries)
        sizes = (*q.shape[:-1], v_cache.shape[3])
        tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "page_table": page_table}
        if is_known(tensors | options) and 0 not in (q.shape[0], page_table.shape[0]):
            named = {name: options[name] for name in ("layout", "window", "mean_context")}
            shape = shape_of(*tensors.values(), **named, options=options)
            if (problem := get_operation(name).unsupported(shape)) is not None:
                raise InvalidShapeError(problem)
            called = tensors | {each: options[each] for each in LENGTHS if each in options}
            features = {each: options[each] for each in (*PER_HEAD, *SCALES)}
            numbers = {each: options[each] for each in ("scale", "softcap")}
            check_fit(shape, called, features, expected_of(shape, tuple(q.shape)), **numbers)
            if out is not None:
                check_out(out, sizes, tensors, contiguous=True)
        result = q.new_empty(sizes)
        return (result, q.new_empty(q.shape[:-1], dtype=torch.float32)) if return_lse else result

    return make_results


def _check_append(*values: Any) -> None:
    """Refuse tensors of known sizes that cannot be appended."""
    arguments = dict(zip(APPEND_PARAMETERS, values, strict=True))
    if is_known(arguments):
        options = {name: arguments[name] for name in SCALES}
        check_append(*(arguments[name] for name in APPEND_TENSORS), layout=parse_layout(arguments["layout"]), **options)


def _cast_queries(arguments: Arguments, dtype: torch.dtype) -> Arguments:
    """Cast the queries to the caches' type, or to autocast's where that is of one byte; a cache is never copied."""
    cache = arguments["k_cache"]
    return arguments | {"q": arguments["q"].to(dtype if cache.itemsize == 1 else cache.dtype)}


def _cast_tokens(arguments: Arguments, dtype: torch.dtype) -> Arguments:
    """Cast tokens to the caches' type; a cache of one byte takes them as they are."""
    cache = arguments["k_cache"]
    if cache.itemsize == 1:
        return arguments
    return arguments | {name: arguments[name].to(cache.dtype) for name in ("k", "v")}


PAGED_DECODE: Final = OpFamily(
    "paged_decode",
    DECODE_TENSORS,
    {**PER_HEAD, **SCALES, **NUMBERS},
    compute=decode,
    fake=_fake("paged_decode", decode_shape, DECODE_QUERIES),
    cast=_cast_queries,
)
PAGED_PREFILL: Final = OpFamily(
    "paged_prefill",
    PREFILL_TENSORS,
    {**PER_HEAD, **SCALES, "causal": "bool", **NUMBERS},
    compute=prefill,
    fake=_fake("paged_prefill", prefill_shape, PREFILL_QUERIES),
    cast=_cast_queries,
)
_APPEND_KV: Final = TensorOp(
    "append_kv",
    APPEND_PARAMETERS,
    "()",
    compute=append,
    fake=_check_append,
    cast=_cast_tokens,
)


def append_kv(*tensors: torch.Tensor, **options: Any) -> None:
    """Call the op of ``autotune.append_kv``, as part of what is traced."""
    arguments = dict(zip(APPEND_TENSORS, tensors, strict=True)) | options
    check_traced(APPEND_TENSORS, arguments)
    _APPEND_KV(*[arguments[name] for name in APPEND_PARAMETERS])
