"""Problems from shape options: those of one operation, or of all phases of serving a model."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

from autotune.console.command import flag_of
from autotune.console.kernel_option import named_operation
from autotune.console.shape_fields import fields_text, operation_of, parse_shapes, placeholder
from autotune.console.shape_notes import notes_on
from autotune.console.shape_options import (
    BATCH,
    CONTEXT,
    DECLARATIONS,
    OPERATION,
    PAGE_SIZE,
    SEQ,
    TOKENS,
    ShapeOptions,
    own_options,
    parse_sizes,
)
from autotune.errors import InvalidShapeError, UsageError
from autotune.models import ModelShape, find_model
from autotune.operation import Operation
from autotune.registry import get_operation, operation_names
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.tuning_command import OPTIONS, naming_options
from autotune.varlen_shape import VarlenShape


class Kind(NamedTuple):
    """A class of shapes, and its description by options.

    ``own`` are the options that not every class has, ``renamed`` the fields whose option has another name, ``usual``
    the heads where no model is named, ``is_cached`` whether the keys lie in a cache, which only a model that generates
    has.
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
            chosen = {"seq_kv": seq, **_chosen(given, AttentionShape), "batch": batch, "seq_q": seq}
            yield base.shape(AttentionShape, **chosen)


def _varlen(options: ShapeOptions, base: ModelShape, _: Usual) -> Iterator[VarlenShape]:
    if options.ragged and options.mean_seq is not None:
        raise UsageError(f"--ragged and mean_seq={options.mean_seq} exclude each other; name one")
    given = options.given()
    for seq in parse_sizes(given.get("seq", SEQ), "seq"):
        for batch in parse_sizes(given.get("batch", str(max(1, TOKENS // max(1, seq)))), "batch"):
            is_ragged = options.ragged and batch > 1
            longest = {"q": seq, "kv": given.get("seq_kv", seq)}
            sizes = {f"max_seq_{of}": length for of, length in longest.items()}
            if is_ragged:
                sizes |= {f"mean_seq_{of}": max(1, length // 2) for of, length in longest.items()}
            named = {"mean_seq_q": given.get("mean_seq"), "mean_seq_kv": given.get("mean_seq_kv")}
            sizes |= {name: mean for name, mean in named.items() if mean is not None}
            yield base.shape(VarlenShape, **_chosen(given, VarlenShape) | sizes | {"batch": batch})


def _paged(options: ShapeOptions, base: ModelShape, usual: Usual) -> Iterator[PagedShape]:
    if options.ragged and options.mean_context is not None:
        raise UsageError(f"--ragged and mean_context={options.mean_context} exclude each other; name one")
    given = options.given()
    base = base.over_latents()
    for context in parse_sizes(given.get("context", CONTEXT), "context"):
        if options.queries is not None and options.queries > context > 0 and options.causal is not False:
            raise UsageError(f"queries={options.queries} is more than context={context}, whose last tokens they are")
        for batch in parse_sizes(given.get("batch", usual.batch), "batch"):
            # One sequence is as long as the longest.
            mean = max(1, context // 2) if options.ragged and batch > 1 else context
            queries = given.get("queries", max(1, min(usual.queries, context)))
            sizes = {"batch": batch, "seq_q": queries, "max_context": context}
            chosen = {"page_size": PAGE_SIZE, "mean_context": mean, **_chosen(given, PagedShape), **sizes}
            yield base.shape(PagedShape, **chosen)


def _chosen(given: Mapping[str, Any], shape_class: type[Shape]) -> dict[str, Any]:
    """Return the fields that options of the same name give; values are as wide as keys, or as latents have them, where
    a width is given."""
    names = {field.name for field in fields(shape_class)}
    widths = {"head_dim_v": None} if "head_dim" in given else {}
    return widths | {name: value for name, value in given.items() if name in names}


KINDS: Final[Mapping[type[Shape], Kind]] = {
    AttentionShape: Kind(
        own_options("Dense"), OPTIONS[AttentionShape], ModelShape("", 16, 16, 128), is_cached=False, make=_dense
    ),
    VarlenShape: Kind(
        own_options("Varlen"), OPTIONS[VarlenShape], ModelShape("", 16, 16, 128), is_cached=False, make=_varlen
    ),
    PagedShape: Kind(
        own_options("Paged"),
        OPTIONS[PagedShape],
        ModelShape("", 32, 8, 128),
        is_cached=True,
        make=_paged,
    ),
}
USUAL: Final = {"paged_prefill": Usual(batch="8", queries=2048)}  # a step of chunked prefill


def kind_of(operation: Operation[Any]) -> Kind:
    """Return the kind of an operation's shapes; UsageError where only ``--shape`` describes them."""
    if operation.shape_class not in KINDS:
        taken = fields_text(operation.shape_class)
        raise UsageError(f"operation={operation.name!r} needs --shape with the fields of its own shapes: {taken}")
    return KINDS[operation.shape_class]


def form_options(operation: str) -> str:
    """Return a command's options that name an operation, and the form of a shape where its sizes have no default."""
    shape_class = get_operation(operation).shape_class
    shape = "" if shape_class in KINDS else f" --shape {placeholder(shape_class)}"
    return f"{naming_options(operation)}{shape}"


Problem = tuple[Operation[Any], Shape]

# The operations that serve a model, by phase: `search --model NAME` tunes all of them.
PHASES: Final = {"prefill": OPERATION, "decode": "paged_decode"}


class Wanted(NamedTuple):
    """The problems that shape options describe, in their order, and notes on them."""

    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()


def require_none(options: ShapeOptions, *, beside: str) -> None:
    """Raise UsageError, by its name, for a shape option beside an option that names all shapes."""
    for name, value in options.given().items():
        given = _typed(name, value)
        raise UsageError(f"{given} and {beside}, which names the shapes, exclude each other; leave one out")


def _typed(name: str, value: object) -> str:
    """Return an option as it was typed: ``--no-causal``, ``--seq='512'``."""
    flag = flag_of(f"no_{name}" if value is False else name)
    value = value[0] if isinstance(value, tuple) else value
    return flag if isinstance(value, bool) else f"{flag}={value!r}"


def describe(options: ShapeOptions) -> Wanted:
    """Return one operation with its shapes; a model gives the sizes that no option does.

    UsageError, with the option's name, for a value that is out of range, unknown, or not of this operation.
    """
    options = _with_kernel(options)
    if options.shape:
        return _by_fields(options, options.shape)
    operation = get_operation(OPERATION if options.operation is None else options.operation)
    _require_taken(options, [operation])
    model = named_model(options)
    if model is not None and kind_of(operation).is_cached and (why := why_not_cached(model, operation.name)):
        raise UsageError(f"model={options.model!r} {why}: {operation.name} cannot serve it")
    return _describe(operation, options, model)


def describe_model(options: ShapeOptions) -> Wanted:
    """Return what ``describe`` does, but of a model without an operation its prefill and its decode."""
    options = _with_kernel(options)
    model = None if options.shape else named_model(options)
    if model is None or options.operation is not None:
        return describe(options)
    operations = {phase: get_operation(name) for phase, name in PHASES.items()}
    notes: tuple[str, ...] = ()
    if why := why_not_cached(model, PHASES["decode"]):
        operations = {phase: found for phase, found in operations.items() if not kind_of(found).is_cached}
        notes = (f"{model.name} {why}: only its {' and '.join(operations)} is tuned",)
    _require_taken(options, operations.values())
    problems: tuple[Problem, ...] = ()
    listed: tuple[str, ...] = ()
    for phase, operation in operations.items():
        asked = replace(options, causal=None) if phase == "decode" else options  # a step's query is the last
        part = _describe(operation, asked, model, of=f"the {phase} of {model.name}")
        problems += part.problems
        listed += tuple(f"{phase:9} {operation.name}: {shape}" for _, shape in part.problems)
        notes += part.notes
    if len(operations) > 1:
        text = f"{model.name}: {' and '.join(operations)}; --operation names one of them"
        notes = (f"{text}, --seq, --context and --batch other sizes", *listed, *notes)
    return Wanted(problems, tuple(dict.fromkeys(notes)))


def _with_kernel(options: ShapeOptions) -> ShapeOptions:
    """Return the options with a kernel's operation in its place."""
    return replace(options, kernel=None, operation=named_operation(options.operation, options.kernel))


def _by_fields(options: ShapeOptions, texts: Iterable[str]) -> Wanted:
    """Return the shapes that ``--shape`` gives, of the named operation or of the one that each fits."""
    require_none(replace(options, shape=None, operation=None), beside="--shape")
    problems: list[Problem] = []
    for text in texts:
        operation = operation_of(text) if options.operation is None else get_operation(options.operation)
        for shape in parse_shapes(text, operation):
            if (problem := operation.unsupported(shape)) is not None:
                raise InvalidShapeError(f"shape={text!r}: {problem}")
            problems.append((operation, shape))
    return Wanted(tuple(dict.fromkeys(problems)))


def _describe(operation: Operation[Any], options: ShapeOptions, model: ModelShape | None, *, of: str = "") -> Wanted:
    """Return the shapes of one operation; ``of`` names their part of what was asked for, if they are not all of it."""
    kind = kind_of(operation)
    base = _usual_heads(kind.usual, options) if model is None else model
    with _named_by_options(kind):
        shapes = tuple(kind.make(options, base, USUAL.get(operation.name, Usual())))
        for shape in shapes:
            if (problem := operation.unsupported(shape)) is not None:
                raise InvalidShapeError(problem + (f"; it is for {of} alone, --operation names another" if of else ""))
    return Wanted(tuple((operation, shape) for shape in shapes), notes_on(shapes, operation, options, model))


def _usual_heads(usual: ModelShape, options: ShapeOptions) -> ModelShape:
    """Return the heads where no model is named; KV heads are as many as query heads, or the usual groups of a cache."""
    if options.heads is None or usual.heads > usual.kv_heads:
        _require_fit(usual, options.heads, options.kv_heads)
        return usual
    return replace(usual, heads=options.heads, kv_heads=options.heads)


@contextlib.contextmanager
def _named_by_options(kind: Kind) -> Iterator[None]:
    """Name the option in errors about a field that it gave: ``max_context=-5`` is ``--context=-5``."""
    options = {**{name: name for name in DECLARATIONS}, **kind.renamed}
    try:
        yield
    except UsageError as error:
        pattern = rf"(?<![\w-])({'|'.join(options)})="
        text = re.sub(pattern, lambda match: f"{flag_of(options[match[1]])}=", str(error))
        raise type(error)(text) from None


def _require_taken(options: ShapeOptions, operations: Iterable[Operation[Any]]) -> None:
    """Refuse an option that none of these operations takes, and name those that do."""
    wanted = {operation.name: kind_of(operation) for operation in operations}
    for option, value in options.given().items():
        owners = [shape_class for shape_class, kind in KINDS.items() if option in kind.own]
        if owners and not any(option in kind.own for kind in wanted.values()):
            others = [name for name in operation_names() if get_operation(name).shape_class in owners]
            given, takers = _typed(option, value), " or ".join(others) or "of your own"
            flag = given.partition("=")[0]
            raise UsageError(f"{given} is not for {' or '.join(wanted)}; {flag} is for --operation {takers}")


def named_model(options: ShapeOptions) -> ModelShape | None:
    """Return the named model's share of one of ``--tp`` GPUs; None where no model is named.

    UsageError for ``--tp`` without a model, and for heads that do not fit those of the model.
    """
    if options.model is None:
        if options.tp not in (None, 1):
            raise UsageError(f"tp={options.tp} splits a model's heads; name one with --model")
        return None
    model = find_model(options.model).tensor_parallel(options.tp or 1)
    _require_fit(model, options.heads, options.kv_heads)
    return model


def _require_fit(base: ModelShape, heads: int | None, kv_heads: int | None) -> None:
    """Refuse heads that do not share the KV heads of the model or the usual ones, or the other way round."""
    of, are_usual = (f" of {base.name}", "") if base.name else ("", "usual ")
    if heads is not None and heads > 0 and kv_heads is None and heads % base.kv_heads:
        expected = f"{base.kv_heads}, {2 * base.kv_heads}, ... or --kv-heads as well"
        their = f"{are_usual}{base.kv_heads} KV heads{of}"
        raise UsageError(f"heads={heads} is not a multiple of the {their}; expected {expected}")
    if kv_heads is not None and kv_heads > 0 and heads is None and base.heads % kv_heads:
        their = f"{are_usual}{base.heads} heads{of}"
        expected = "one that does, or --heads as well"
        raise UsageError(f"kv_heads={kv_heads} does not divide the {their}; expected {expected}")


def why_not_cached(model: ModelShape, operation: str) -> str | None:
    """Return the reason why a model has no cache that an operation reads; None for one that has."""
    if not model.causal:
        return "is not causal and has no cache"
    if not model.latent:
        return None
    if operation != PHASES["decode"]:
        return "caches latents (MLA), not keys and values"
    return "caches latents (MLA) of widths that it does not say" if model.latent_widths is None else None
