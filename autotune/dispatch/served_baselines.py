"""Baselines that are served: those of ``among="fastest"`` that won a race and can take a call."""

from collections.abc import Callable
from typing import Any

from autotune.errors import BaselineUnavailableError
from autotune.operation import ServedBaseline, ServedDefinition
from autotune.registry import load_baselines, load_definition
from autotune.shape import Shape


def bind_baseline(operation: str, shape: Shape, name: str) -> Callable[..., Any]:
    """Bind a baseline; a call that it cannot do raises ``BaselineUnavailableError``."""
    definition: Any = load_definition(operation)
    baseline, absent = _find_baseline(operation, name), why_unserved(operation, shape, name)

    def call(*tensors: Any, return_lse: bool = False, out: Any = None, **options: Any) -> Any:
        if baseline is None or absent is not None or return_lse or out is not None:
            missing = "has no log-sum-exp" if return_lse else "cannot write into out"
            raise BaselineUnavailableError(absent or f"{name} {missing}")
        return baseline.serve(shape, definition.bind_inputs(shape, tensors, options))

    return call


def why_unserved(operation: str, shape: Shape, name: str, *, here: bool = True) -> str | None:
    """Return the reason why a baseline cannot be served, here or where its library is installed, or None."""
    baseline = _find_baseline(operation, name)
    if baseline is None or not isinstance(load_definition(operation), ServedDefinition):
        return f"{name} is compared and not served"
    return (baseline.available() if here else None) or baseline.unsupported(shape)


def _find_baseline(operation: str, name: str) -> ServedBaseline | None:
    found = (each for each in load_baselines(operation) if each.name == name and isinstance(each, ServedBaseline))
    return next(found, None)
