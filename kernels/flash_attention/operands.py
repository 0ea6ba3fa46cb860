"""Operands of dense attention beside queries, keys and values: a mask of scores, and sinks; their checks.

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


def check_operands(q: torch.Tensor, seq_kv: int, attn_mask: Operand, sinks: Operand) -> None:
    """Refuse what is no mask of the scores of ``q [B, S_q, H, D]`` and so many keys, and what are no sinks."""
    batch, seq_q, heads, _ = q.shape
    given = {name: each for name, each in (("attn_mask", attn_mask), ("sinks", sinks)) if each is not None}
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
    if given:
        check_together({"q": q, **given})


def check_picked(shape: AttentionShape, attn_mask: Operand, sinks: Operand) -> None:
    """Refuse operands that a kernel was not picked for, and the absence of those that it was."""
    if (kind := kind_of_mask(attn_mask)) != shape.attn_mask:
        found = "None" if attn_mask is None else f"{kind}, {describe(attn_mask)}"
        raise InputMismatchError(f"attn_mask is {found}; this kernel was picked for attn_mask={shape.attn_mask!r}")
    if (sinks is not None) != shape.sinks:
        found = "None" if sinks is None else "given"
        raise InputMismatchError(f"sinks is {found}; this kernel was picked for sinks={shape.sinks}")


def refuse_beside_padding(attn_mask: Operand, numbers: Mapping[str, Operand]) -> None:
    """Refuse a mask beside what says which rows of a padded batch count."""
    if attn_mask is not None:
        name = next(name for name, each in numbers.items() if each is not None)
        raise InputMismatchError(
            f"attn_mask and {name} are both given; expected one of them: a mask can hide padding, too"
        )
