"""Problems from shape options: those of one operation, or of all phases of serving a model."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from autotune.console.command import flag_of
from autotune.console.shape_kinds import KINDS, QUERY_COUNTS, USUAL, Kind, Usual, kind_of
from autotune.console.shape_options import DECLARATIONS, OPERATION, ShapeOptions
from autotune.errors import InvalidShapeError, UsageError
from autotune.models import ModelShape, find_model
from autotune.operation import Operation
from autotune.registry import get_operation, operation_names
from autotune.shape import PagedShape, Shape

Problem = tuple[Operation[Any], Shape]

# The operations that serve a model, by phase: `search --model NAME` tunes all of them.
PHASES: Final = {"prefill": OPERATION, "decode": "paged_decode"}


class Wanted(NamedTuple):
    """The problems that shape options describe, in their order, and notes on them."""

    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()


def require_none(options: ShapeOptions, *, beside: str) -> None:
    """Refuse shape options beside an option that names all shapes.

    Raises:
        UsageError: a shape option was given; the message names it.
    """
    for name, value in options.given().items():
        given = _typed(name, value)
        raise UsageError(f"{given} and {beside}, which names the shapes, exclude each other; leave one out")


def _typed(name: str, value: object) -> str:
    """Return an option as it was typed: ``--no-causal``, ``--seq='512'``."""
    flag = flag_of(f"no_{name}" if value is False else name)
    return flag if isinstance(value, bool) else f"{flag}={value!r}"


def describe(options: ShapeOptions) -> Wanted:
    """Return one operation with its shapes; a model gives the sizes that no option does.

    Raises:
        UsageError: a value is out of range or unknown, or not of this operation; the message names it.
    """
    operation = get_operation(OPERATION if options.operation is None else options.operation)
    _require_taken(options, [operation])
    model = _find_model(options)
    kind = kind_of(operation)
    if model is not None and kind.is_cached and (why := _why_not_cached(model)):
        raise UsageError(f"model={options.model!r} {why}: {operation.name} cannot serve it")
    return _describe(operation, options, model)


def describe_model(options: ShapeOptions) -> Wanted:
    """Return what ``describe`` does, but of a model without an operation its prefill and its decode.

    Raises:
        UsageError: as ``describe`` does.
    """
    model = _find_model(options)
    if model is None or options.operation is not None:
        return describe(options)
    operations = {phase: get_operation(name) for phase, name in PHASES.items()}
    notes: tuple[str, ...] = ()
    if why := _why_not_cached(model):
        operations = {phase: found for phase, found in operations.items() if not kind_of(found).is_cached}
        notes = (f"{model.name} {why}: only its {' and '.join(operations)} is tuned",)
    _require_taken(options, operations.values())
    parts = {
        phase: _describe(operation, options, model, of=f"the {phase} of {model.name}")
        for phase, operation in operations.items()
    }
    if len(parts) > 1:
        notes = (
            f"{model.name}: {' and '.join(parts)}; --operation names one of them, "
            "--seq, --context and --batch other sizes",
            *(f"{phase:9} {found.name}: {shape}" for phase, part in parts.items() for found, shape in part.problems),
        )
    notes += tuple(note for part in parts.values() for note in part.notes)
    return Wanted(tuple(p for part in parts.values() for p in part.problems), tuple(dict.fromkeys(notes)))


def _describe(operation: Operation[Any], options: ShapeOptions, model: ModelShape | None, *, of: str = "") -> Wanted:
    """Return the shapes of one operation; ``of`` names their part of what was asked for, if they are not all of it."""
    kind = kind_of(operation)
    base = _usual_heads(kind.usual, options) if model is None else model
    notes = [] if model is None else _left_out(operation, kind, options, model)
    with _named_by_options(kind):
        shapes = tuple(kind.make(options, base, USUAL.get(operation.name, Usual())))
        for shape in shapes:
            if (problem := operation.unsupported(shape)) is not None:
                raise InvalidShapeError(problem + (f"; it is for {of} alone, --operation names another" if of else ""))
    notes += [note for shape in shapes if (note := _spread_text(operation, options, shape))]
    return Wanted(tuple((operation, shape) for shape in shapes), tuple(dict.fromkeys(notes)))


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


def _spread_text(operation: Operation[Any], options: ShapeOptions, shape: Shape) -> str:
    """Explain how a ragged batch differs from what its sizes suggest."""
    if not isinstance(shape, PagedShape):
        return ""
    if options.ragged and shape.batch == 1:
        return "--ragged changes nothing for a batch of 1: its sequence is as long as --context"
    counts = QUERY_COUNTS[operation.name](shape) if operation.name in QUERY_COUNTS else (shape.seq_q,)
    if len(set(counts)) == 1:
        return ""
    *others, chunk = counts
    asked = shape.batch * shape.seq_q - len(others)
    rest = f"{shape.seq_q} in the mean"
    if chunk < asked:
        rest = f"all of --context, where {rest} would be {asked}"
    singles = "1 sequence" if len(others) == 1 else f"{len(others)} sequences"
    text = f"batch {shape.batch} of context {shape.max_context} is mixed"
    return f"{text}: {singles} with 1 query each, one with {chunk} ({rest})"


def _left_out(operation: Operation[Any], kind: Kind, options: ShapeOptions, model: ModelShape) -> list[str]:
    """List the features of a model that its shapes leave out."""
    notes = [
        f"{model.name} has {feature}, which {operation.name} does not compute: left out"
        for feature in ("sinks", "alibi")
        if getattr(model, feature) and feature not in kind.own
    ]
    if model.mixes_windows and options.window is None:
        notes.append(
            f"only some layers of {model.name} have its window of {model.window} keys: "
            f"this is for the others; --window {model.window} names those"
        )
    return notes


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


def _find_model(options: ShapeOptions) -> ModelShape | None:
    """Return the named model's share of one of ``--tp`` GPUs, if a model is named."""
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
        raise UsageError(
            f"heads={heads} is not a multiple of the {are_usual}{base.kv_heads} KV heads{of}; "
            f"expected {base.kv_heads}, {2 * base.kv_heads}, ... or --kv-heads as well"
        )
    if kv_heads is not None and kv_heads > 0 and heads is None and base.heads % kv_heads:
        raise UsageError(
            f"kv_heads={kv_heads} does not divide the {are_usual}{base.heads} heads{of}; "
            "expected one that does, or --heads as well"
        )


def _why_not_cached(model: ModelShape) -> str | None:
    """Return the reason that a model has no cache of keys and values, or None."""
    if not model.causal:
        return "is not causal and has no cache"
    if model.latent:
        return "caches latents (MLA), not keys and values"
    return None
