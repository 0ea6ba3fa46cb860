"""The classes of shapes: how options become shapes of each, its usual sizes, and the options that it alone takes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from autotune.console.shape_options import BATCH, CONTEXT, PAGE_SIZE, SEQ, TOKENS, ShapeOptions, parse_sizes
from autotune.errors import UsageError
from autotune.models import ModelShape
from autotune.operation import Operation
from autotune.search_spaces.paged_prefill.operation import query_counts
from autotune.shape import AttentionShape, PagedShape, Shape

T = TypeVar("T")


class Kind(NamedTuple):
    """A class of shapes, and how options describe them.

    ``own`` are the options that no other class has, ``renamed`` the fields whose option has another name, ``usual`` the
    heads where no model is named, ``is_cached`` whether the keys lie in a cache, which only a model that generates has.
    """

    own: tuple[str, ...]
    renamed: Mapping[str, str]
    usual: ModelShape
    is_cached: bool
    make: Callable[[ShapeOptions, ModelShape, "Usual"], Iterable[Shape]]


class Usual(NamedTuple):
    """The usual sizes of an operation over a cache."""

    batch: str = BATCH
    queries: int = 1


def _dense(options: ShapeOptions, base: ModelShape, _: Usual) -> Iterator[AttentionShape]:
    for seq in parse_sizes(_given(options.seq, SEQ), "seq"):
        for batch in parse_sizes(_given(options.batch, str(max(1, TOKENS // max(1, seq)))), "batch"):
            yield AttentionShape(
                batch=batch,
                seq_q=seq,
                seq_kv=_given(options.seq_kv, seq),
                causal=_given(options.causal, base.causal),
                **_shared(options, base),
            )


def _paged(options: ShapeOptions, base: ModelShape, usual: Usual) -> Iterator[PagedShape]:
    if options.ragged and options.mean_context is not None:
        raise UsageError(f"--ragged and mean_context={options.mean_context} exclude each other; name one")
    shared = _shared(options, base)
    for context in parse_sizes(_given(options.context, CONTEXT), "context"):
        if options.queries is not None and options.queries > context > 0:
            raise UsageError(f"queries={options.queries} is more than context={context}, whose last tokens they are")
        for batch in parse_sizes(_given(options.batch, usual.batch), "batch"):
            # One sequence is as long as the longest.
            mean = max(1, context // 2) if options.ragged and batch > 1 else context
            yield PagedShape(
                batch=batch,
                seq_q=_given(options.queries, max(1, min(usual.queries, context))),
                max_context=context,
                mean_context=_given(options.mean_context, mean),
                page_size=_given(options.page_size, PAGE_SIZE),
                kv_dtype=_given(options.kv_dtype, shared["dtype"]),
                layout=_given(options.layout, "NHD"),
                sinks=_given(options.sinks, base.sinks),
                alibi=_given(options.alibi, base.alibi),
                **shared,
            )


def _shared(options: ShapeOptions, base: ModelShape) -> dict[str, Any]:
    """Return the fields that all shapes of attention have, without the lengths."""
    return {
        "heads": _given(options.heads, base.heads),
        "kv_heads": _given(options.kv_heads, base.kv_heads),
        "head_dim": _given(options.head_dim, base.head_dim),
        "head_dim_v": _given(options.head_dim, base.head_dim_v),
        "dtype": _given(options.dtype, "bfloat16"),
        "window": base.window if options.window is None and not base.mixes_windows else options.window,
        "softcap": _given(options.softcap, base.softcap is not None),
    }


PAGED_OWN: Final = ("context", "mean_context", "ragged", "queries", "page_size", "kv_dtype", "layout", "sinks", "alibi")
KINDS: Final[Mapping[type[Shape], Kind]] = {
    AttentionShape: Kind(
        ("seq", "seq_kv", "causal"), {"seq_q": "seq"}, ModelShape("", 16, 16, 128), is_cached=False, make=_dense
    ),
    PagedShape: Kind(
        PAGED_OWN,
        {"seq_q": "queries", "max_context": "context"},
        ModelShape("", 32, 8, 128),
        is_cached=True,
        make=_paged,
    ),
}
USUAL: Final = {"paged_prefill": Usual(batch="8", queries=2048)}  # a step of chunked prefill
# Whose queries a ragged batch spreads unevenly, and how.
QUERY_COUNTS: Final = {"paged_prefill": query_counts}


def kind_of(operation: Operation[Any]) -> Kind:
    """Return the kind of an operation's shapes.

    Raises:
        UsageError: they cannot be.
    """
    if operation.shape_class not in KINDS:
        name = operation.shape_class.__name__
        raise UsageError(f"operation={operation.name!r} takes a {name}, which no option describes; use Python")
    return KINDS[operation.shape_class]


def _given(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value
