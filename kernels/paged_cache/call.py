"""Checks of what goes with a paged cache: tokens, slots and scales, and the pages of sequences.

Each raises ``InputMismatchError``, whose message says what is wrong and what is expected.
"""

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.paged_cache.quantization import LARGEST
from autotune.kernels.tensors import check_tensors, check_together, describe, dtype_name
from autotune.shape import PagedShape

TOKEN_TYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_append(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    layout: str,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    """Refuse what ``append`` cannot store: tokens by the caches, and ``v_cache`` by ``k_cache``; reads no tensor."""
    tensors = {"k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v, "slots": slots}
    check_tensors(tensors)
    for (name, tensor), ndim in zip(tensors.items(), (4, 4, 3, 3, 1), strict=True):
        if tensor.ndim != ndim:
            raise InputMismatchError(f"{name} is {tuple(tensor.shape)}; expected {ndim} dimensions")
    kv_heads = k_cache.shape[2 if layout == "NHD" else 1]
    count = k.shape[0] if k.shape[0] == v.shape[0] else slots.shape[0]
    is_quantized = k_cache.dtype in LARGEST
    expected = {
        "k_cache": (tuple(k_cache.shape), (*TOKEN_TYPES, *LARGEST)),
        "v_cache": ((*k_cache.shape[:3], v_cache.shape[3]), (k_cache.dtype,)),
        "k": ((count, kv_heads, k_cache.shape[3]), TOKEN_TYPES if is_quantized else (k_cache.dtype,)),
        "v": ((count, kv_heads, v_cache.shape[3]), (k.dtype,)),
        "slots": ((count,), (torch.int64, torch.int32)),
    }
    for name, (sizes, dtypes) in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != sizes or tensor.dtype not in dtypes:
            wanted = f"{sizes} {' or '.join(map(dtype_name, dtypes))}"
            raise InputMismatchError(
                f"{name} is {describe(tensor)}; expected {wanted}{_reason(name, k, k_cache, layout)}"
            )
        if name != "slots" and tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise InputMismatchError(f"{name} has the strides {tensor.stride()}; expected 1 in the last dimension")
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    for (name, scale), cache in zip(scales.items(), (k_cache, v_cache), strict=True):
        check_scale(name, scale, cache, kv_heads)
    check_together(tensors | {name: scale for name, scale in scales.items() if scale is not None})


def _reason(name: str, k: torch.Tensor, k_cache: torch.Tensor, layout: str) -> str:
    beside = f"k_cache is {describe(k_cache)} ({layout})"
    reasons = {"v_cache": beside, "k": beside, "v": f"k is {describe(k)} and {beside}"}
    return f", since {reasons[name]}" if name in reasons else ""


def check_slots(slots: torch.Tensor, *, pages: int, page_size: int) -> None:
    """Read the slots, and refuse those past the end of the cache and those of two tokens; waits for the GPU."""
    wrong = (slots >= pages * page_size).nonzero().flatten().tolist()
    if wrong:
        raise InputMismatchError(
            f"slots[{wrong[0]}]={int(slots[wrong[0]])} is not in the cache; expected 0 to {pages * page_size - 1} for "
            f"{pages} pages of {page_size}, or a negative number to skip the token"
        )
    ordered, order = slots.sort(stable=True)
    twice = ((ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)).nonzero().flatten().tolist()
    if twice:
        first, second = order[twice[0] : twice[0] + 2].tolist()
        raise InputMismatchError(
            f"slots[{second}]={int(slots[second])} is that of slots[{first}] too; expected each slot once, or a "
            f"negative number to skip the token"
        )


def check_scale(
    name: str, scale: torch.Tensor | None, cache: torch.Tensor, kv_heads: int, *, is_required: bool = False
) -> None:
    """Refuse the scale of a cache that is not quantized, none of int8, and another than the cache's type has.

    ``is_required``: 8-bit floats have no default of 1.
    """
    if cache.dtype not in LARGEST:
        if scale is not None:
            raise InputMismatchError(
                f"{name} is {describe(scale)}; expected None for a cache of {dtype_name(cache.dtype)}"
            )
        return
    is_int8 = cache.dtype == torch.int8
    if scale is None and not is_int8 and not is_required:
        return
    allowed = [tuple(cache.shape[:3])] if is_int8 else [(), (kv_heads,)]
    fits = isinstance(scale, torch.Tensor) and tuple(scale.shape) in allowed and scale.dtype == torch.float32
    if not fits:
        wanted = f"a float32 tensor of {' or '.join(map(str, allowed))}"
        raise InputMismatchError(
            f"{name} is {describe(scale)}; expected {wanted} for a cache of {dtype_name(cache.dtype)}"
        )


def check_pages(
    shape: PagedShape, page_table: torch.Tensor, seq_lens: torch.Tensor, *, pages: int, queries: int | torch.Tensor
) -> None:
    """Read lengths and page indices, and refuse those that lead outside the cache; waits for the GPU.

    ``queries`` are each sequence's. Pages before all their windows are not read, nor those of a sequence without any,
    and may be anything. Negative ones of latents are left out.
    """
    page_size = shape.page_size
    capacity = page_table.shape[1] * page_size
    for sequence, length in enumerate(seq_lens.tolist()):
        if not 0 <= length <= capacity:
            raise InputMismatchError(
                f"seq_lens[{sequence}]={length} is not allowed; page_table holds {page_table.shape[1]} pages of "
                f"{page_size} a sequence: expected 0 to {capacity}"
            )
    first_keys = torch.arange(page_table.shape[1], device=page_table.device) * page_size
    is_used = first_keys < seq_lens[:, None]
    if shape.window is not None:
        seen = seq_lens.long() - queries - shape.window + 1  # the first key that a query sees
        is_used &= first_keys + page_size > seen[:, None]
    if isinstance(queries, torch.Tensor):
        is_used &= (queries > 0)[:, None]
    is_absent = page_table >= pages
    if not shape.is_latent:
        is_absent |= page_table < 0
    wrong = (is_used & is_absent).nonzero().tolist()
    if wrong:
        row, column = wrong[0]
        raise InputMismatchError(
            f"page_table[{row}, {column}]={int(page_table[row, column])} is not a page; expected 0 to {pages - 1} "
            f"for the {int(seq_lens[row])} keys of the sequence"
        )
