"""Checks of a call over packed sequences, or those of a padded batch, by the shape that its kernel was picked for.

Each raises ``InputMismatchError``, whose message says what is wrong and what is expected.
"""

from itertools import pairwise

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.flash_attention_varlen.padding import Numbers, check_counts, check_padding
from autotune.kernels.tensors import (
    check_offsets,
    check_positive,
    check_softcap,
    check_together,
    describe,
    dtype_name,
)
from autotune.varlen_shape import VarlenShape

TENSORS = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")


def check_fit(
    shape: VarlenShape,
    tensors: dict[str, torch.Tensor],
    sinks: torch.Tensor | None,
    numbers: Numbers,
    *,
    scale: float | None,
    softcap: float | None,
) -> None:
    """Refuse tensors and options that do not fit; the numbers of sequences, queries and keys may be any.

    ``tensors`` are those of ``TENSORS``; a padded batch has no offsets. ``numbers`` say which rows count.
    """
    is_packed = "cu_seqlens_q" in tensors
    rows = {"q": (shape.heads, shape.head_dim), "k": (shape.kv_heads, shape.head_dim)}
    rows["v"] = (shape.kv_heads, shape.head_dim_v)
    any_rows = ("any",) if is_packed else ("any", "any")
    for name, sizes in rows.items():
        tensor = tensors[name]
        is_tensor = isinstance(tensor, torch.Tensor) and tensor.ndim == len(any_rows) + 2
        if not is_tensor or tuple(tensor.shape[-2:]) != sizes or dtype_name(tensor.dtype) != shape.dtype:
            wanted = f"({', '.join(map(str, (*any_rows, *sizes)))}) {shape.dtype}"
            raise InputMismatchError(f"{name} is {describe(tensor)}; this kernel takes {wanted}")
        if tensor.numel() and tensor.stride(-1) != 1:
            raise InputMismatchError(f"{name} has the strides {tensor.stride()}; expected 1 in the last dimension")
    (check_numbers if is_packed else _check_batches)(tensors)
    if tensors["k"].shape[-3] != tensors["v"].shape[-3]:
        raise InputMismatchError(
            f"k has {tensors['k'].shape[-3]} keys and v {tensors['v'].shape[-3]} values; expected as many"
        )
    if is_packed and numbers["kv_starts"] is not None:
        raise InputMismatchError("kv_starts is given with packed sequences; expected a padded batch, without offsets")
    check_padding(numbers, count_sequences(tensors), tensors)
    check_positive("scale", scale)
    check_softcap(softcap, shape.softcap)
    _check_sinks(sinks, shape)
    check_together(tensors | ({} if sinks is None else {"sinks": sinks}))


def count_sequences(tensors: dict[str, torch.Tensor]) -> int:
    """Return how many sequences there are: by their offsets, or of a padded batch."""
    return tensors["cu_seqlens_q"].shape[0] - 1 if "cu_seqlens_q" in tensors else tensors["q"].shape[0]


def _check_batches(tensors: dict[str, torch.Tensor]) -> None:
    """Refuse tensors of different numbers of sequences."""
    batch = tensors["q"].shape[0]
    for name in ("k", "v"):
        if tensors[name].shape[0] != batch:
            raise InputMismatchError(f"q has {batch} sequences and {name} {tensors[name].shape[0]}; expected as many")


def check_numbers(tensors: dict[str, torch.Tensor]) -> None:
    """Refuse offsets that are no contiguous int32 vectors, and of different numbers of sequences; reads none."""
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        offsets = tensors[name]
        is_vector = isinstance(offsets, torch.Tensor) and offsets.ndim == 1 and offsets.shape[0] > 0
        if not is_vector or offsets.dtype != torch.int32 or not offsets.is_contiguous():
            raise InputMismatchError(
                f"{name} is {describe(offsets)}; expected (sequences + 1) int32, contiguous: where each begins, and "
                "the end of the last"
            )
    counts = [tensors[name].shape[0] - 1 for name in ("cu_seqlens_q", "cu_seqlens_k")]
    if counts[0] != counts[1]:
        raise InputMismatchError(
            f"cu_seqlens_q has {counts[0]} sequences and cu_seqlens_k {counts[1]}; expected as many"
        )
    for name in ("q", "k") if counts[0] == 0 else ():
        if rows := tensors[name].shape[0]:
            raise InputMismatchError(f"{name} has {rows} rows of 0 sequences; expected none")


def check_lengths(tensors: dict[str, torch.Tensor], numbers: Numbers) -> None:
    """Read offsets, and the numbers of rows that count, and refuse those that are none; waits for the GPU."""
    if "cu_seqlens_q" not in tensors:
        batch, queries = tensors["q"].shape[:2]
        return check_counts(numbers, [queries] * batch, [tensors["k"].shape[1]] * batch)
    check_offsets("cu_seqlens_q", tensors["cu_seqlens_q"], tensors["q"].shape[0], "queries")
    check_offsets("cu_seqlens_k", tensors["cu_seqlens_k"], tensors["k"].shape[0], "keys")
    return check_counts(numbers, *(tensors[f"cu_seqlens_{each}"].diff().tolist() for each in "qk"))


def check_longest(name: str, longest: int, offsets: torch.Tensor, rows: int) -> None:
    """Read offsets, and refuse a sequence that is longer than its longest is said to be; waits for the GPU.

    Offsets that fall, or do not lead from 0 to the number of rows, are no lengths: the kernel's own check refuses them.
    """
    places = offsets.tolist()
    pairs = list(pairwise(places))
    if places[:1] != [0] or places[-1] != rows or any(end < begin for begin, end in pairs):
        return
    for sequence, (begin, end) in enumerate(pairs):
        if end - begin > longest:
            raise InputMismatchError(
                f"{name}={longest} is not allowed; expected {end - begin} at least, the length of sequence {sequence}"
            )


def _check_sinks(sinks: torch.Tensor | None, shape: VarlenShape) -> None:
    """Refuse sinks that are missing, not asked for, or not one floating-point number a head."""
    if (sinks is not None) != shape.sinks:
        state = "None" if sinks is None else "given"
        raise InputMismatchError(f"sinks is {state}; this kernel was picked for sinks={shape.sinks}")
    if sinks is None:
        return
    is_tensor = isinstance(sinks, torch.Tensor)
    if not is_tensor or sinks.shape != (shape.heads,) or not sinks.is_floating_point() or not sinks.is_contiguous():
        raise InputMismatchError(
            f"sinks is {describe(sinks)}; expected a tensor of ({shape.heads},), contiguous, of floating point"
        )
