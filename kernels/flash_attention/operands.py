"""Operands of dense attention beside queries, keys and values: a mask, sinks, ends of keys; their checks.

Each check raises ``InputMismatchError``, whose message names the argument, what it is and what is expected.
"""

from collections.abc import Mapping

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.tensors import check_tensors, check_together, describe, dtype_name
from autotune.shape import AttentionShape

Operand = torch.Tensor | None


def kind_of_mask(attn_mask: Operand) -> str | None:
    """Return the kind of a mask as ``AttentionShape.attn_mask`` has it."""
    if attn_mask is None:
        return None
    check_tensors({"attn_mask": attn_mask})
    return "boolean" if attn_mask.dtype == torch.bool else "additive"


def check_operands(
    q: torch.Tensor, seq_kv: int, attn_mask: Operand = None, sinks: Operand = None, kv_ends: Operand = None
) -> None:
    """Refuse what is no mask of the scores of ``q [B, S_q, H, D]`` and so many keys, no sinks, or no ends of keys."""
    batch, seq_q, heads, _ = q.shape
    operands = {"attn_mask": attn_mask, "sinks": sinks, "kv_ends": kv_ends}
    given = {name: each for name, each in operands.items() if each is not None}
    check_tensors(given)
    if given and q.element_size() == 1:
        raise InputMismatchError(f"{next(iter(given))} is given, and q is {describe(q)}; expected 16 or 32 bits")
    if attn_mask is not None:
        dtypes = dict.fromkeys((torch.bool, torch.float32, q.dtype))
        sizes = ((1, batch), (1, heads), (1, seq_q), (seq_kv,))
        fits = attn_mask.ndim == 4 and all(map(lambda size, allowed: size in allowed, attn_mask.shape, sizes))
        if not fits or attn_mask.dtype not in dtypes:
            wanted = f"({batch} or 1, {heads} or 1, {seq_q} or 1, {seq_kv}) {' or '.join(map(dtype_name, dtypes))}"
            raise InputMismatchError(f"attn_mask is {describe(attn_mask)}; expected {wanted}")
    if sinks is not None and (tuple(sinks.shape) != (heads,) or not sinks.is_floating_point()):
        raise InputMismatchError(f"sinks is {describe(sinks)}; expected ({heads},) of floating point")
    if sinks is not None and not sinks.is_contiguous():
        raise InputMismatchError(f"sinks has the strides {sinks.stride()}; expected a contiguous tensor")
    if kv_ends is not None:
        _check_ends(kv_ends, batch, seq_q)
    if given:
        check_together({"q": q, **given})


def _check_ends(kv_ends: torch.Tensor, batch: int, seq_q: int) -> None:
    fits = kv_ends.ndim == 2 and kv_ends.shape[0] in (1, batch) and kv_ends.shape[1] == seq_q
    if not fits or kv_ends.dtype != torch.int32 or (seq_q > 1 and kv_ends.stride(1) != 1):
        strides = f" of the strides {kv_ends.stride()}" if fits and kv_ends.dtype == torch.int32 else ""
        wanted = f"({batch} or 1, {seq_q}) int32, the last stride 1"
        raise InputMismatchError(f"kv_ends is {describe(kv_ends)}{strides}; expected {wanted}")


def check_picked(shape: AttentionShape, attn_mask: Operand, sinks: Operand, kv_ends: Operand) -> None:
    """Refuse operands that a kernel was not picked for, and the absence of those that it was."""
    if (kind := kind_of_mask(attn_mask)) != shape.attn_mask:
        found = "None" if attn_mask is None else f"{kind}, {describe(attn_mask)}"
        raise InputMismatchError(f"attn_mask is {found}; this kernel was picked for attn_mask={shape.attn_mask!r}")
    for name, each, picked in (("sinks", sinks, shape.sinks), ("kv_ends", kv_ends, shape.kv_ends)):
        if (each is not None) != picked:
            found = "None" if each is None else "given"
            raise InputMismatchError(f"{name} is {found}; this kernel was picked for {name}={picked}")


def refuse_beside_padding(operands: Mapping[str, Operand], numbers: Mapping[str, Operand]) -> None:
    """Refuse what says which keys are seen beside what says which rows of a padded batch count."""
    for operand in ("attn_mask", "kv_ends"):
        if operands.get(operand) is not None:
            name = next(name for name, each in numbers.items() if each is not None)
            raise InputMismatchError(
                f"{operand} and {name} are both given; expected one of them: a mask can hide padding, too"
            )
