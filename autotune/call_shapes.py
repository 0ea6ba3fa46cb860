"""Shapes of calls: the problem that the tensors and options of a public function pose."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from autotune.dispatch import CACHED_PICKS
from autotune.errors import InputMismatchError, InvalidShapeError
from autotune.rounding import power_of_two
from autotune.shape import MAX_CONTEXT, MAX_HEAD_DIM, AttentionShape, PagedShape, parse_layout
from autotune.varlen_shape import MAX_WIDTH, VarlenShape

# The caches below are typed: 1 equals True, and 4.0 equals 4, but only one of each is a valid option.

if TYPE_CHECKING:
    import torch

DECODE_QUERIES: Final = {3: "[B, H, D]", 4: "[B, S_q, H, D]"}  # by their number of dimensions
PREFILL_QUERIES: Final = {3: "[T, H, D]"}


def dense_shape(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    causal: bool,
    window: int | None,
    softcap: bool,
    operands: tuple[str | None, bool, bool] = (None, False, False),
) -> AttentionShape:
    """Return the shape of a call of ``attention`` over tensors of four dimensions, none of size 0.

    ``operands`` are the kind of its mask, and if it has sinks and ends of keys.
    """
    return _dense_shape(q.shape, k.shape, v.shape[3], q.dtype, causal, window, softcap, operands)


def check_dense_ranks(q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor") -> None:
    """Raise InputMismatchError unless all three have four dimensions."""
    if not q.ndim == k.ndim == v.ndim == 4:
        raise InputMismatchError(f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} dimensions; expected [B, S, H, D]")


def check_varlen_ranks(q: Sequence[int], k: Sequence[int], v: Sequence[int], *offsets: Sequence[int]) -> None:
    """Validate the dimensions of packed tensors and of their offsets, given all sizes."""
    ranks = [len(sizes) for sizes in (q, k, v, *offsets)]
    if ranks != [3, 3, 3, 1, 1]:
        raise InputMismatchError(
            f"q, k, v, cu_seqlens_q and cu_seqlens_k have {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} "
            "dimensions; expected packed [T, H, D], and offsets [sequences + 1]"
        )


def varlen_shape(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    cu_seqlens_k: "torch.Tensor",
    longest: tuple[int, int],
    causal: bool,
    window: int | None,
    features: tuple[bool, bool],
) -> VarlenShape:
    """Return the shape of a call of ``attention_varlen``; ``features`` tell if it has a softcap, and sinks."""
    check_varlen_ranks(q.shape, k.shape, v.shape, cu_seqlens_q.shape, cu_seqlens_k.shape)
    batch = max(0, cu_seqlens_q.shape[0] - 1)
    hints = (*_round_lengths("q", longest[0], q.shape[0], batch), *_round_lengths("k", longest[1], k.shape[0], batch))
    sizes = (power_of_two(max(1, batch)), *hints)
    return _varlen_shape(sizes, (*q.shape[1:], k.shape[1], v.shape[2]), _name(q.dtype), causal, window, features)


def padded_shape(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    causal: bool,
    window: int | None,
    features: tuple[bool, bool],
    numbers: "Mapping[str, torch.Tensor | None]",
) -> VarlenShape:
    """Return the shape of a call of ``attention`` over a padded batch, none of whose sizes is 0.

    ``features`` tell if it has a softcap, and sinks. ``numbers`` say which rows count. They are not read: where any are
    given, half of the rows do in the mean.

    Raises:
        InvalidShapeError: heads are wider than in a padded batch, or not allowed at all.
    """
    for name, width in (("head_dim", q.shape[3]), ("head_dim_v", v.shape[3])):
        if MAX_WIDTH < width <= MAX_HEAD_DIM:
            said = ", ".join(each for each, tensor in numbers.items() if tensor is not None)
            raise InvalidShapeError(
                f"{name}={width} is not computed with {said}; expected {MAX_WIDTH} at most, or attn_mask in their place"
            )
    counted = (numbers["q_lens"] is not None, numbers["kv_lens"] is not None or numbers["kv_starts"] is not None)
    sizes: list[int] = [power_of_two(q.shape[0])]
    for rows, is_counted in zip((q.shape[1], k.shape[1]), counted, strict=True):
        bound = power_of_two(rows)
        sizes += (bound, max(1, bound // 2) if is_counted else bound)
    heads = (*q.shape[2:], k.shape[2], v.shape[3])
    return _varlen_shape(tuple(sizes), heads, _name(q.dtype), causal, window, features)


def decode_shape(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    layout: str,
    window: int | None,
    mean_context: int | None,
    options: Mapping[str, Any],
) -> PagedShape:
    """Return the shape of a call of ``paged_decode``; ``options`` are its others."""
    sizes = (q.shape, k_cache.shape, v_cache.shape, page_table.shape)
    masks = (window, _features(options))
    return _decode_shape(sizes, q.dtype, k_cache.dtype, *masks, parse_layout(layout), _round_mean(mean_context))


def prefill_shape(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    layout: str,
    window: int | None,
    mean_context: int | None,
    options: Mapping[str, Any],
) -> PagedShape:
    """Return the shape of a call of ``paged_prefill``; ``options`` are its others."""
    check_paged_ranks(q.shape, k_cache.shape, v_cache.shape, page_table.shape, PREFILL_QUERIES)
    batch = page_table.shape[0]
    # Serving packs another number of queries in every step: few picks, and shapes that are found in a table, need a
    # mean that is rounded.
    mean_queries = max(1, -(-q.shape[0] // max(1, batch)))
    sizes = (batch, power_of_two(mean_queries), *q.shape[1:])
    pages = (*k_cache.shape[1:3], v_cache.shape[3], page_table.shape[1])
    dtypes = (_name(q.dtype), _name(k_cache.dtype))
    masks, features = (options["causal"], window), _features(options)
    return _paged_shape(sizes, pages, dtypes, *masks, features, parse_layout(layout), _round_mean(mean_context))


def check_paged_ranks(
    q: Sequence[int],
    k_cache: Sequence[int],
    v_cache: Sequence[int],
    page_table: Sequence[int],
    queries: Mapping[int, str],
) -> None:
    """Validate the dimensions, given all sizes; the kernel checks those against the shape it was picked for."""
    ranks = [len(sizes) for sizes in (q, k_cache, v_cache, page_table)]
    if ranks[0] not in queries or ranks[1:] != [4, 4, 2]:
        raise InputMismatchError(
            f"q, k_cache, v_cache and page_table have {ranks[0]}, {ranks[1]}, {ranks[2]} and {ranks[3]} dimensions; "
            f"expected {' or '.join(queries.values())}, two caches of 4, and [B, max_pages]"
        )


@lru_cache(maxsize=CACHED_PICKS, typed=True)
def _dense_shape(
    q: tuple[int, ...],
    k: tuple[int, ...],
    width: int,
    dtype: "torch.dtype",
    causal: bool,
    window: int | None,
    softcap: bool,
    operands: tuple[str | None, bool, bool] = (None, False, False),
) -> AttentionShape:
    sizes: dict[str, Any] = {"batch": q[0], "heads": q[2], "kv_heads": k[2], "seq_q": q[1], "seq_kv": k[1]}
    features: dict[str, Any] = {"head_dim": q[3], "head_dim_v": width, "causal": causal, "window": window}
    features |= {"softcap": softcap, "attn_mask": operands[0], "sinks": operands[1]}
    features["kv_ends"] = operands[2]
    return AttentionShape(**sizes, **features, dtype=_name(dtype))


def _round_lengths(of: str, longest: int, rows: int, batch: int) -> tuple[int, int]:
    """Return the longest and the mean length for a shape, of which few differ: every batch has others.

    The longest is rounded up to a power of two, and the mean by as much, and then to a quarter of the power of two
    below: how even lengths are is kept.
    """
    if type(longest) is not int or not 0 <= longest <= MAX_CONTEXT:
        raise InputMismatchError(
            f"max_seqlen_{of}={longest!r} is not allowed; expected an integer from 0 to {MAX_CONTEXT}"
        )
    if rows > batch * longest:
        mean = -(-rows // max(1, batch))
        raise InputMismatchError(
            f"max_seqlen_{of}={longest} is not allowed; expected {mean} at least, the mean of {rows} rows of {of} in "
            f"{batch} sequences"
        )
    bound = power_of_two(max(1, longest))
    mean = -(-rows * bound // max(1, batch * longest))
    unit = 1 << max(0, mean.bit_length() - 3)
    return bound, min(bound, max(1, (mean + unit - 1) // unit * unit))


@lru_cache(maxsize=CACHED_PICKS, typed=True)
def _varlen_shape(
    sizes: tuple[int, ...],
    heads: tuple[int, ...],
    dtype: str,
    causal: bool,
    window: int | None,
    features: tuple[bool, bool],
) -> VarlenShape:
    """Make the shape of a call, given the batch and its lengths, and the numbers and widths of heads."""
    named: dict[str, Any] = dict(
        zip(("batch", "max_seq_q", "mean_seq_q", "max_seq_kv", "mean_seq_kv"), sizes, strict=True)
    )
    named |= zip(("heads", "head_dim", "kv_heads", "head_dim_v"), heads, strict=True)
    named |= zip(("softcap", "sinks"), features, strict=True)
    return VarlenShape(**named, dtype=dtype, causal=causal, window=window)


@lru_cache(maxsize=CACHED_PICKS, typed=True)
def _decode_shape(
    sizes: tuple[Sequence[int], ...],
    dtype: "torch.dtype",
    kv_dtype: "torch.dtype",
    window: int | None,
    features: tuple[bool, bool, bool],
    layout: str,
    mean_context: int | None,
) -> PagedShape:
    """Make the shape of a call over ``q``, ``k_cache``, ``v_cache`` and ``page_table`` of these sizes."""
    q, k_cache, v_cache, page_table = sizes
    check_paged_ranks(q, k_cache, v_cache, page_table, DECODE_QUERIES)
    queries = (q[0], 1, *q[1:]) if len(q) == 3 else tuple(q)
    pages = (*k_cache[1:3], v_cache[3], page_table[1])
    dtypes = (_name(dtype), _name(kv_dtype))
    return _paged_shape(queries, pages, dtypes, True, window, features, layout, mean_context)


def _features(options: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    return options["softcap"] is not None, options["sinks"] is not None, options["alibi_slopes"] is not None


def _name(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


def _round_mean(mean_context: int | None) -> int | None:
    """Round to an eighth of the power of two below: a server's mean changes in every step, and each value is a pick."""
    if mean_context is None:
        return None
    if type(mean_context) is not int or mean_context < 1:
        raise InvalidShapeError(f"mean_context={mean_context!r} is not allowed; expected an integer from 1")
    shift = max(0, mean_context.bit_length() - 4)
    return ((mean_context + (1 << shift >> 1)) >> shift) << shift


@lru_cache(maxsize=CACHED_PICKS, typed=True)
def _paged_shape(
    q: tuple[int, ...],
    pages: tuple[int, ...],
    dtypes: tuple[str, str],
    causal: bool,
    window: int | None,
    features: tuple[bool, bool, bool],
    layout: str,
    mean_context: int | None,
) -> PagedShape:
    """Make the shape of a call; the table's capacity, rounded up to a power of two, bounds the context and its mean."""
    page_size, kv_heads = pages[:2] if layout == "NHD" else (pages[1], pages[0])
    _check_cache(q[2], kv_heads, page_size, dtypes[1], layout)
    bound = min(MAX_CONTEXT, power_of_two(max(1, pages[3] * page_size)))
    sizes: dict[str, Any] = {"batch": q[0], "heads": q[2], "kv_heads": kv_heads, "seq_q": q[1], "page_size": page_size}
    sizes |= {"max_context": bound, "mean_context": bound if mean_context is None else min(mean_context, bound)}
    sizes |= {"head_dim": q[3], "head_dim_v": pages[2], "dtype": dtypes[0], "kv_dtype": dtypes[1], "layout": layout}
    sizes |= zip(("softcap", "sinks", "alibi"), features, strict=True)
    return PagedShape(**sizes, causal=causal, window=window)


def _check_cache(heads: int, kv_heads: int, page_size: int, kv_dtype: str, layout: str) -> None:
    """Refuse what engines' caches are taken for by mistake; the shape checks the rest."""
    if kv_dtype == "uint8":
        raise InputMismatchError(
            "k_cache and v_cache are uint8, which says nothing of their numbers; expected a view of their type, as "
            "k_cache.view(torch.float8_e4m3fn)"
        )
    if min(kv_heads, page_size) > 0 and heads % kv_heads > 0 and heads % page_size == 0:
        other = "HND" if layout == "NHD" else "NHD"
        raise InputMismatchError(
            f"k_cache has {kv_heads} KV heads as layout={layout!r}, of which the {heads} heads of q are no multiple; "
            f"as layout={other!r} it has {page_size}"
        )
