"""Checks of a call over a paged cache against the shape of its kernel; real tensors, and ones without memory."""

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.paged_cache.call import check_scale
from autotune.kernels.tensors import check_positive, check_softcap, check_together, describe, dtype_name
from autotune.shape import PagedShape

Expected = dict[str, tuple[tuple[int | None, ...], torch.dtype]]  # sizes and dtype of tensors; a size of None: any


def expected_of(shape: PagedShape, query_sizes: tuple[int | None, ...]) -> Expected:
    """Return the sizes and dtypes that the tensors of a shape's call have, by their names."""
    sizes = (shape.page_size, shape.kv_heads) if shape.layout == "NHD" else (shape.kv_heads, shape.page_size)
    kv_dtype = getattr(torch, shape.kv_dtype)
    return {
        "q": (query_sizes, getattr(torch, shape.dtype)),
        "k_cache": ((None, *sizes, shape.head_dim), kv_dtype),
        "v_cache": ((None, *sizes, shape.head_dim_v), kv_dtype),
        "page_table": ((shape.batch, None), torch.int32),
        "seq_lens": ((shape.batch,), torch.int32),
        "cu_seqlens_q": ((shape.batch + 1,), torch.int32),
    }


def check_fit(
    shape: PagedShape,
    tensors: dict[str, torch.Tensor],
    features: dict[str, torch.Tensor | None],
    expected: Expected,
    *,
    scale: float | None,
    softcap: float | None,
) -> None:
    """Refuse what does not fit a shape, and features that it does not have; reads no tensor.

    Args:
        features: ``sinks``, ``alibi_slopes`` and scales of the caches.

    Raises:
        InputMismatchError: a tensor or a number does not fit.
        NotDifferentiableError: gradients are required.
    """
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, *expected[name], layout=shape.layout)
    pages = [tensors[name].shape[0] for name in ("k_cache", "v_cache")]
    if pages[0] != pages[1]:
        raise InputMismatchError(f"k_cache has {pages[0]} pages and v_cache {pages[1]}; expected as many")
    check_positive("scale", scale)
    check_softcap(softcap, shape.softcap)
    _check_per_head("sinks", features["sinks"], shape.sinks, shape.heads)
    _check_per_head("alibi_slopes", features["alibi_slopes"], shape.alibi, shape.heads)
    for name, scales in features.items():
        if name in ("k_scale", "v_scale"):
            check_scale(name, scales, tensors[f"{name[0]}_cache"], shape.kv_heads, is_required=True)
    check_together(tensors | {name: values for name, values in features.items() if values is not None})


def _check_tensor(
    name: str, tensor: torch.Tensor, sizes: tuple[int | None, ...], dtype: torch.dtype, *, layout: str
) -> None:
    fits = (
        isinstance(tensor, torch.Tensor)
        and tensor.dtype == dtype
        and tensor.ndim == len(sizes)
        and all(size is None or size == found for size, found in zip(sizes, tensor.shape, strict=True))
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        lies = f" ({layout})" if name.endswith("cache") else ""
        raise InputMismatchError(
            f"{name} is {describe(tensor)}; this kernel takes ({wanted}) {dtype_name(dtype)}{lies}"
        )
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise InputMismatchError(f"{name} has the strides {tensor.stride()}; expected 1 in the last dimension")


def _check_per_head(name: str, values: torch.Tensor | None, expected: bool, heads: int) -> None:
    """Refuse sinks or slopes that are missing, not asked for, or not one floating-point number a head."""
    if (values is not None) != expected:
        feature = {"alibi_slopes": "alibi"}.get(name, name)
        state = "None" if values is None else "given"
        raise InputMismatchError(f"{name} is {state}; this kernel was picked for {feature}={expected}")
    if values is None:
        return
    is_tensor = isinstance(values, torch.Tensor)
    if not is_tensor or values.shape != (heads,) or not values.is_floating_point() or not values.is_contiguous():
        raise InputMismatchError(
            f"{name} is {describe(values)}; expected a tensor of ({heads},), contiguous, of floating point"
        )
