"""The classes of shapes: how options become shapes of each, its usual sizes, and the options that it alone takes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from autotune.console.shape_options import (
    BATCH,
    CONTEXT,
    PAGE_SIZE,
    SEQ,
    TOKENS,
    ShapeOptions,
    own_options,
    parse_sizes,
)
from autotune.errors import UsageError
from autotune.models import ModelShape
from autotune.operation import Operation
from autotune.search_spaces.paged_prefill.operation import query_counts
from autotune.shape import AttentionShape, PagedShape, Shape

DTYPE: Final = "bfloat16"


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
    given = options.given()
    for seq in parse_sizes(given.get("seq", SEQ), "seq"):
        for batch in parse_sizes(given.get("batch", str(max(1, TOKENS // max(1, seq)))), "batch"):
            lengths = {"seq_kv": seq, "causal": base.causal}
            yield AttentionShape(batch=batch, seq_q=seq, **_chosen(given, base, lengths))


def _paged(options: ShapeOptions, base: ModelShape, usual: Usual) -> Iterator[PagedShape]:
    if options.ragged and options.mean_context is not None:
        raise UsageError(f"--ragged and mean_context={options.mean_context} exclude each other; name one")
    given = options.given()
    cache = {"page_size": PAGE_SIZE, "kv_dtype": given.get("dtype", DTYPE), "layout": "NHD"}
    for context in parse_sizes(given.get("context", CONTEXT), "context"):
        if options.queries is not None and options.queries > context > 0:
            raise UsageError(f"queries={options.queries} is more than context={context}, whose last tokens they are")
        for batch in parse_sizes(given.get("batch", usual.batch), "batch"):
            # One sequence is as long as the longest.
            mean = max(1, context // 2) if options.ragged and batch > 1 else context
            yield PagedShape(
                batch=batch,
                seq_q=given.get("queries", max(1, min(usual.queries, context))),
                max_context=context,
                **_chosen(given, base, {**cache, "mean_context": mean, "sinks": base.sinks, "alibi": base.alibi}),
            )


def _chosen(given: Mapping[str, Any], base: ModelShape, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a shape: what was given, else the values of its class or those that all attention has."""
    usual = {
        "heads": base.heads,
        "kv_heads": base.kv_heads,
        "head_dim": base.head_dim,
        "dtype": DTYPE,
        "window": None if base.mixes_windows else base.window,
        "softcap": base.softcap is not None,
        **own,
    }
    return {
        **{name: given.get(name, value) for name, value in usual.items()},
        "head_dim_v": given.get("head_dim", base.head_dim_v),
    }


KINDS: Final[Mapping[type[Shape], Kind]] = {
    AttentionShape: Kind(
        own_options("Dense"), {"seq_q": "seq"}, ModelShape("", 16, 16, 128), is_cached=False, make=_dense
    ),
    PagedShape: Kind(
        own_options("Paged"),
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
        UsageError: no option describes them.
    """
    if operation.shape_class not in KINDS:
        name = operation.shape_class.__name__
        raise UsageError(f"operation={operation.name!r} takes a {name}, which no option describes; use Python")
    return KINDS[operation.shape_class]
