"""Notes on shapes that options describe: how they differ from what the options, or a model, suggest."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from autotune.console.shape_options import ShapeOptions
from autotune.models import ModelShape
from autotune.operation import Operation
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.varlen_shape import VarlenShape


def notes_on(
    shapes: Sequence[Shape], operation: Operation[Any], options: ShapeOptions, model: ModelShape | None
) -> tuple[str, ...]:
    """Return how shapes differ from what their options or the model suggest, each note once."""
    notes = [] if model is None else _left_out(operation, model)
    for shape in shapes:
        notes += [_spread_text(operation, options, shape), _window_text(options, shape)]
    if model is not None and model.mixes_windows and options.window is None:
        notes.append(_layers_text(model, shapes))
    return tuple(note for note in dict.fromkeys(notes) if note)


def _spread_text(operation: Operation[Any], options: ShapeOptions, shape: Shape) -> str:
    """Explain how a ragged batch differs from what its sizes suggest."""
    if not isinstance(shape, PagedShape):
        return ""
    if options.ragged and shape.batch == 1:
        return "--ragged changes nothing for a batch of 1: its sequence is as long as --context"
    counts = operation.query_counts(shape) if operation.query_counts else (shape.seq_q,)
    if len(set(counts)) == 1:
        return ""
    *others, chunk = counts
    asked = shape.batch * shape.seq_q - len(others)
    mean = f"{shape.seq_q} in the mean"
    rest = f"all of --context, where {mean} would be {asked}" if chunk < asked else mean
    singles = f"{len(others)} sequence{'s' if len(others) > 1 else ''}"
    text = f"batch {shape.batch} of context {shape.max_context} is mixed"
    return f"{text}: {singles} with 1 query each, one with {chunk} ({rest})"


def _window_text(options: ShapeOptions, shape: Shape) -> str:
    """Explain why a shape has not the window that was asked for."""
    if options.window is None or not isinstance(shape, AttentionShape) or shape.window is not None:
        return ""
    return f"--window {options.window} hides none of {shape.seq_kv} keys: this is the shape without a window"


def _layers_text(model: ModelShape, shapes: Sequence[Shape]) -> str:
    """Explain which shapes are of some layers of a model alone: where the window of its others hides keys."""
    others = [shape for shape in shapes if _would_hide(model.window, shape)]
    if not others:
        return ""
    side = "" if model.causal else " to either side, one's own included"
    text = f"only some layers of {model.name} have its window of {model.window} keys{side}"
    own = "this is" if len(others) == len(shapes) else "what is longer is"
    return f"{text}: {own} for the others; --window {model.window} names those"


def _would_hide(window: int | None, shape: Shape) -> bool:
    assert isinstance(shape, AttentionShape | VarlenShape | PagedShape)
    return replace(shape, window=window) != shape


def _left_out(operation: Operation[Any], model: ModelShape) -> list[str]:
    """Name features of a model that an operation does not compute."""
    known = {field.name for field in fields(operation.shape_class)}
    return [
        f"{model.name} has {feature}, which {operation.name} does not compute: left out"
        for feature in ("sinks", "alibi")
        if getattr(model, feature) and feature not in known
    ]
