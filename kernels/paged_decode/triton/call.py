"""Calls of users: check that tensors fit, allocate the output, launch."""

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.paged_cache.call import check_scale
from autotune.kernels.paged_decode.triton.launch import launch, launch_options
from autotune.kernels.tensors import (
    check_device,
    check_positive,
    check_softcap,
    check_together,
    describe,
    dtype_name,
    on_device_of,
    refuse_options,
)
from autotune.shape import PagedShape
from autotune.space import Config

Sizes = tuple[int | None, ...]  # a size of None may be any


class BoundDecode:
    """Decode attention for one shape with one config: what ``get_kernel`` hands out.

    Example (on a GPU):
        >>> shape = PagedShape(batch=64, heads=32, kv_heads=8, max_context=8192, head_dim=128, page_size=16)
        >>> kernel = autotune.get_kernel(shape)
        >>> out = kernel(q, k_cache, v_cache, page_table, seq_lens)  # q [64, 32, 128] or [64, 1, 32, 128]
    """

    def __init__(self, config: Config, shape: PagedShape) -> None:
        self._shape = shape
        self._options = launch_options(config)
        sizes = (shape.page_size, shape.kv_heads) if shape.layout == "NHD" else (shape.kv_heads, shape.page_size)
        dtype, kv_dtype = getattr(torch, shape.dtype), getattr(torch, shape.kv_dtype)
        self._expected: dict[str, tuple[Sizes, torch.dtype]] = {
            "q": ((shape.batch, shape.seq_q, shape.heads, shape.head_dim), dtype),
            "k_cache": ((None, *sizes, shape.head_dim), kv_dtype),
            "v_cache": ((None, *sizes, shape.head_dim_v), kv_dtype),
            "page_table": ((shape.batch, None), torch.int32),
            "seq_lens": ((shape.batch,), torch.int32),
        }
        self._expected_short = self._expected | {"q": ((shape.batch, shape.heads, shape.head_dim), dtype)}

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
        return_lse: bool = False,
        check: bool = False,
        **unknown: object,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """The output ``[B, H, D_v]`` or ``[B, S_q, H, D_v]``, as ``q`` is, in its dtype; with ``return_lse`` also the
        natural logarithm of the softmax's denominator, fp32, of the output's shape without the last axis.

        ``check`` also reads lengths and pages, which waits for the GPU. See ``autotune.paged_decode`` for the rest.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
        """
        shape = self._shape
        if unknown:
            refuse_options(self.__call__, shape, unknown)
        tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "page_table": page_table, "seq_lens": seq_lens}
        has_no_axis = shape.seq_q == 1 and getattr(q, "ndim", 0) == 3  # of queries
        self._check_tensors(tensors, self._expected_short if has_no_axis else self._expected)
        self._check_features(scale, softcap, sinks, alibi_slopes)
        check_scale("k_scale", k_scale, k_cache, shape.kv_heads, is_required=True)
        check_scale("v_scale", v_scale, v_cache, shape.kv_heads, is_required=True)
        features = {"sinks": sinks, "alibi_slopes": alibi_slopes, "k_scale": k_scale, "v_scale": v_scale}
        check_together(tensors | {name: values for name, values in features.items() if values is not None})
        check_device(q.device, q.dtype)
        if check:
            check_pages(shape, page_table, seq_lens, pages=k_cache.shape[0], queries=shape.seq_q)
        queries = q[:, None] if has_no_axis else q
        out = torch.empty((*queries.shape[:3], shape.head_dim_v), dtype=q.dtype, device=q.device)
        lse = torch.empty(queries.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
        with on_device_of(q):
            launch(
                queries,
                k_cache,
                v_cache,
                page_table,
                seq_lens,
                out,
                lse,
                layout=shape.layout,
                scale=shape.head_dim**-0.5 if scale is None else scale,
                window=shape.window,
                softcap=softcap,
                sinks=sinks,
                alibi_slopes=alibi_slopes,
                k_scale=k_scale,
                v_scale=v_scale,
                options=self._options,
            )
        if has_no_axis:
            out, lse = out[:, 0], None if lse is None else lse[:, 0]
        return out if lse is None else (out, lse)

    def _check_tensors(self, tensors: dict[str, torch.Tensor], expected: dict[str, tuple[Sizes, torch.dtype]]) -> None:
        """Refuse sizes, dtypes and strides that are not those of the shape."""
        for name, tensor in tensors.items():
            sizes, dtype = expected[name]
            fits = (
                isinstance(tensor, torch.Tensor)
                and tensor.dtype == dtype
                and tensor.ndim == len(sizes)
                and all(size is None or size == found for size, found in zip(sizes, tensor.shape, strict=True))
            )
            if not fits:
                wanted = ", ".join("any" if size is None else str(size) for size in sizes)
                layout = f" ({self._shape.layout})" if name.endswith("cache") else ""
                raise InputMismatchError(
                    f"{name} is {describe(tensor)}; this kernel takes ({wanted}) {dtype_name(dtype)}{layout}"
                )
            if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
                raise InputMismatchError(f"{name} has the strides {tensor.stride()}; expected 1 in the last dimension")
        pages = [tensors[name].shape[0] for name in ("k_cache", "v_cache")]
        if pages[0] != pages[1]:
            raise InputMismatchError(f"k_cache has {pages[0]} pages and v_cache {pages[1]}; expected as many")

    def _check_features(
        self,
        scale: float | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
        alibi_slopes: torch.Tensor | None,
    ) -> None:
        """Refuse features that the kernel was not picked for, and numbers that make no softmax."""
        shape = self._shape
        check_positive("scale", scale)
        check_softcap(softcap, shape.softcap)
        _check_per_head("sinks", sinks, shape.sinks, shape.heads)
        _check_per_head("alibi_slopes", alibi_slopes, shape.alibi, shape.heads)


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


def check_pages(
    shape: PagedShape, page_table: torch.Tensor, seq_lens: torch.Tensor, *, pages: int, queries: int | torch.Tensor
) -> None:
    """Read lengths and page indices, and refuse those that lead outside the cache; waits for the GPU.

    ``queries`` are each sequence's. Pages before all their windows are not read, nor those of a sequence without any,
    and may be anything.

    Raises:
        InputMismatchError: a length is negative or more than the table holds, or the page of a key does not exist.
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
    wrong = (is_used & ((page_table < 0) | (page_table >= pages))).nonzero().tolist()
    if wrong:
        row, column = wrong[0]
        raise InputMismatchError(
            f"page_table[{row}, {column}]={int(page_table[row, column])} is not a page; expected 0 to {pages - 1} "
            f"for the {int(seq_lens[row])} keys of the sequence"
        )
