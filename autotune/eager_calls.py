"""Calls over real tensors: each picks a kernel for the shape of its tensors, and launches it.

Public functions come straight here, and so do their ops (``autotune.torch_ops``) when a traced graph runs. An op passes
the parameters of its schema by position: to name them takes a dictionary a call.
"""

import math
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from autotune.call_shapes import (
    check_dense_ranks,
    decode_shape,
    dense_shape,
    padded_shape,
    prefill_shape,
    varlen_shape,
)
from autotune.dispatch import pick_for_device
from autotune.dispatch.events import watch_compiles
from autotune.errors import InputMismatchError
from autotune.references import missing_package
from autotune.shape import parse_layout

if TYPE_CHECKING:
    import torch


def is_traced(*tensors: "torch.Tensor") -> bool:
    """Return if torch must see the call as one op: it traces, transforms or casts, or no memory is behind the tensors.

    So it is under ``torch.compile``, ``torch.export``, ``make_fx``, ``torch.func`` and autocast, and for tensors of the
    meta device and of classes of their own, such as fake ones.
    """
    try:
        import torch
    except ImportError:
        raise missing_package("torch") from None
    if torch.compiler.is_compiling():  # first: Dynamo reads no further
        return True
    for tensor in tensors:
        if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
            return True
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._is_any_autocast_enabled()
        or torch.autograd.forward_ad._current_level >= 0  # tangents, which the op refuses
        or tensors[0].is_meta
    )


def attend(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    q_lens: "torch.Tensor | None",
    kv_lens: "torch.Tensor | None",
    kv_starts: "torch.Tensor | None",
    check: bool,
    attn_mask: "torch.Tensor | None",
    sinks: "torch.Tensor | None",
    kv_ends: "torch.Tensor | None",
    *,
    return_lse: bool,
    out: "torch.Tensor | None",
    **scales: "torch.Tensor | float | None",
) -> Any:
    """Compute ``autotune.attention``; ``scales`` are of tensors of one byte an element, and given where one is."""
    check_dense_ranks(q, k, v)
    if scales:
        from autotune.kernels.flash_attention.scales import refuse_scales

        refuse_scales(q, scales)
    operands: dict[str, torch.Tensor | None] = {}
    if attn_mask is not None or sinks is not None or kv_ends is not None:
        from autotune.kernels.flash_attention.operands import check_operands

        operands = {"attn_mask": attn_mask, "sinks": sinks, "kv_ends": kv_ends}
        check_operands(q, k.shape[1], **operands)
    if q_lens is not None or kv_lens is not None or kv_starts is not None:
        numbers = {"q_lens": q_lens, "kv_lens": kv_lens, "kv_starts": kv_starts}
        return _attend_padded(
            *(q, k, v, numbers, causal, window, softcap, scale, check, operands), return_lse=return_lse, out=out
        )
    if 0 in (q.shape[0], q.shape[1], k.shape[1]):
        return _attend_nothing(q, k, v, causal, window, softcap, scale, sinks, return_lse=return_lse, out=out)
    if operands:
        return _attend_with(operands, q, k, v, causal, window, softcap, scale, return_lse=return_lse, out=out)
    shape = dense_shape(q, k, v, causal, window, softcap is not None)
    kernel = pick_for_device(shape, gpu_of(q), "flash_attention")  # keeps its picks, until reload()
    if out is None:  # an implementation of somebody else's need not know of buffers
        return kernel(q, k, v, scale=scale, softcap=softcap, return_lse=return_lse, **scales)
    return kernel(q, k, v, scale=scale, softcap=softcap, return_lse=return_lse, out=out, **scales)


def _attend_with(
    operands: "dict[str, torch.Tensor | None]",
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    *,
    return_lse: bool,
    out: "torch.Tensor | None",
) -> Any:
    """Compute attention with a mask operand or sinks, which were checked."""
    from autotune.kernels.flash_attention.operands import kind_of_mask

    kinds = (kind_of_mask(operands["attn_mask"]), operands["sinks"] is not None, operands["kv_ends"] is not None)
    shape = dense_shape(q, k, v, causal, window, softcap is not None, kinds)
    kernel = pick_for_device(shape, gpu_of(q), "flash_attention")
    options: dict[str, Any] = {name: each for name, each in operands.items() if each is not None}
    options |= {"scale": scale, "softcap": softcap, "return_lse": return_lse} | ({} if out is None else {"out": out})
    return kernel(q, k, v, **options)


def _attend_padded(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    numbers: "dict[str, torch.Tensor | None]",
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    check: bool,
    operands: "dict[str, torch.Tensor | None]",
    *,
    return_lse: bool,
    out: "torch.Tensor | None",
) -> Any:
    """Compute attention over a padded batch, by a kernel of packed sequences; ``numbers`` say which rows count."""
    from autotune.kernels.flash_attention.operands import refuse_beside_padding
    from autotune.kernels.flash_attention_varlen.padding import PACKED, check_counts, check_padding, refuse_bytes

    refuse_bytes(q, numbers)
    refuse_beside_padding(operands, numbers)
    sinks = operands.get("sinks")
    if 0 in (q.shape[0], q.shape[1], k.shape[1]):
        check_padding(numbers, q.shape[0], {"q": q})
        if check:
            check_counts(numbers, *([each.shape[1]] * each.shape[0] for each in (q, k)))
        return _attend_nothing(q, k, v, causal, window, softcap, scale, sinks, return_lse=return_lse, out=out)
    shape = padded_shape(q, k, v, causal, window, (softcap is not None, sinks is not None), numbers)
    kernel = pick_for_device(shape, gpu_of(q), "flash_attention_varlen")
    options: dict[str, Any] = dict(zip(PACKED, numbers.values(), strict=True))
    options |= {"scale": scale, "softcap": softcap, "check": check}
    options |= {name: each for name, each in (("sinks", sinks), ("out", out)) if each is not None}
    found = kernel(q, k, v, None, None, return_lse=return_lse, **options)
    return (found[0], found[1].transpose(1, 2)) if return_lse else found


def _attend_nothing(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    sinks: "torch.Tensor | None",
    *,
    return_lse: bool,
    out: "torch.Tensor | None",
) -> Any:
    """Compute attention without queries or keys, for which no kernel is picked."""
    from autotune.kernels.flash_attention.checks import check_call
    from autotune.kernels.flash_attention.scales import OUTPUT_DTYPES, is_quantized, output_dtype
    from autotune.kernels.tensors import check_apart, check_out

    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        sizes = f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}"
        raise InputMismatchError(f"{sizes} do not fit each other")
    if not q.dtype == k.dtype == v.dtype:
        raise InputMismatchError(f"q, k and v are of {q.dtype}, {k.dtype} and {v.dtype}; expected one dtype")
    # Heads, widths and types are those that a kernel takes: one sequence, query and key at least make a shape.
    some_q, some_k, some_v = (
        each.new_empty((max(1, each.shape[0]), max(1, each.shape[1]), *each.shape[2:]), device="meta")
        for each in (q, k, v)
    )
    dense_shape(some_q, some_k, some_v, causal, window, softcap is not None)
    check_call(q, k, v, scale=scale, softcap=softcap)
    out_sizes = (*q.shape[:3], v.shape[3])
    if out is None:
        out = q.new_zeros(out_sizes, dtype=output_dtype(q.dtype))
    else:
        check_out(out, out_sizes, {"q": q}, dtypes=OUTPUT_DTYPES if is_quantized(q) else ())
        check_apart(out, {"q": q, "k": k, "v": v})
        out.zero_()
    lse = out.new_full((q.shape[0], q.shape[2], q.shape[1]), -math.inf).float()
    if sinks is not None:
        lse.copy_(sinks[:, None])
    return (out, lse) if return_lse else out


def attend_varlen(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    cu_seqlens_k: "torch.Tensor",
    sinks: "torch.Tensor | None",
    seqused_q: "torch.Tensor | None",
    seqused_k: "torch.Tensor | None",
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    check: bool,
    *,
    return_lse: bool,
    out: "torch.Tensor | None",
) -> Any:
    """Compute ``autotune.attention_varlen``."""
    longest, features = (max_seqlen_q, max_seqlen_k), (softcap is not None, sinks is not None)
    shape = varlen_shape(q, k, v, cu_seqlens_q, cu_seqlens_k, longest, causal, window, features)
    if check:
        from autotune.kernels.flash_attention_varlen.packed_call import check_longest

        check_longest("max_seqlen_q", max_seqlen_q, cu_seqlens_q, q.shape[0])
        check_longest("max_seqlen_k", max_seqlen_k, cu_seqlens_k, k.shape[0])
    kernel = pick_for_device(shape, gpu_of(q), "flash_attention_varlen")
    options: dict[str, Any] = {"sinks": sinks, "scale": scale, "softcap": softcap, "check": check}
    given = {"seqused_q": seqused_q, "seqused_k": seqused_k, "out": out}
    options |= {name: each for name, each in given.items() if each is not None}
    return kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, return_lse=return_lse, **options)


def decode(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    sinks: "torch.Tensor | None",
    alibi_slopes: "torch.Tensor | None",
    k_scale: "torch.Tensor | None",
    v_scale: "torch.Tensor | None",
    layout: str,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    mean_context: int | None,
    check: bool,
    *,
    return_lse: bool,
    out: "torch.Tensor | None",
) -> Any:
    """Compute ``autotune.paged_decode``."""
    options: dict[str, Any] = {"sinks": sinks, "alibi_slopes": alibi_slopes, "k_scale": k_scale, "v_scale": v_scale}
    options |= {"scale": scale, "softcap": softcap, "check": check, "return_lse": return_lse}
    if 0 in q.shape[:1]:
        tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "page_table": page_table, "seq_lens": seq_lens}
        shape = decode_shape(_first_of(q), k_cache, v_cache, page_table, layout, window, mean_context, options)
        return _attend_no_sequences("paged_decode", shape, tensors, options, out)
    shape = decode_shape(q, k_cache, v_cache, page_table, layout, window, mean_context, options)
    kernel = pick_for_device(shape, gpu_of(q), "paged_decode")
    if out is not None:
        options["out"] = out
    return kernel(q, k_cache, v_cache, page_table, seq_lens, **options)


def prefill(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    sinks: "torch.Tensor | None",
    alibi_slopes: "torch.Tensor | None",
    k_scale: "torch.Tensor | None",
    v_scale: "torch.Tensor | None",
    causal: bool,
    layout: str,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    mean_context: int | None,
    check: bool,
    *,
    return_lse: bool,
    out: "torch.Tensor | None",
) -> Any:
    """Compute ``autotune.paged_prefill``."""
    options: dict[str, Any] = {"sinks": sinks, "alibi_slopes": alibi_slopes, "scale": scale, "softcap": softcap}
    options |= {"check": check, "return_lse": return_lse}
    told = options | {"causal": causal}
    if 0 in page_table.shape[:1]:
        tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "page_table": page_table, "seq_lens": seq_lens}
        tensors |= {"cu_seqlens_q": cu_seqlens_q}
        shape = prefill_shape(q, k_cache, v_cache, _first_of(page_table), layout, window, mean_context, told)
        options |= {"k_scale": k_scale, "v_scale": v_scale}
        return _attend_no_sequences("paged_prefill", shape, tensors, options, out)
    shape = prefill_shape(q, k_cache, v_cache, page_table, layout, window, mean_context, told)
    kernel = pick_for_device(shape, gpu_of(q), "paged_prefill")
    given = {"k_scale": k_scale, "v_scale": v_scale, "out": out}  # which another's implementation need not know
    options |= {name: each for name, each in given.items() if each is not None}
    return kernel(q, k_cache, v_cache, page_table, seq_lens, cu_seqlens_q, **options)


def _first_of(batch: "torch.Tensor") -> "torch.Tensor":
    """Return what stands for one sequence of a batch of none; no memory is behind it."""
    return batch.new_empty((1, *batch.shape[1:]), device="meta")


def _attend_no_sequences(operation: str, *call: Any) -> Any:
    require_packages("triton")
    from autotune.empty_batches import attend_no_sequences  # loads triton

    return attend_no_sequences(operation, *call)


def append(
    k: "torch.Tensor",
    v: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    slots: "torch.Tensor",
    k_scale: "torch.Tensor | None",
    v_scale: "torch.Tensor | None",
    layout: str,
    check: bool,
) -> None:
    """Compute ``autotune.append_kv``."""
    name = parse_layout(layout)
    require_packages("triton")
    from autotune.kernels.paged_cache.append import PACKAGE, append  # loads torch and triton
    from autotune.kernels.paged_cache.call import check_append, check_slots
    from autotune.kernels.tensors import check_device, on_device_of

    check_append(k, v, k_cache, v_cache, slots, layout=name, k_scale=k_scale, v_scale=v_scale)
    check_device(k.device)
    if check:
        check_slots(slots, pages=k_cache.shape[0], page_size=k_cache.shape[1 if name == "NHD" else 2])
    watch_compiles(PACKAGE)
    with on_device_of(k):
        append(k, v, k_cache, v_cache, slots, layout=name, k_scale=k_scale, v_scale=v_scale)


def gpu_of(tensor: "torch.Tensor") -> int | None:
    """Return the index of the GPU that holds a tensor; None for one on the CPU, which Triton's interpreter computes."""
    if not tensor.is_cpu:
        return tensor.device.index
    require_packages("triton")
    return None


def require_packages(*names: str) -> None:
    """Raise MissingDependencyError for the first of these packages that is absent."""
    for name in names:
        if sys.modules.get(name) is None and find_spec(name) is None:
            raise missing_package(name)
