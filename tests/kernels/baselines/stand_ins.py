"""Stand-ins of packages that are not installed here: recorders of calls, by the packages' own signatures.

A signature is recorded in ``signatures/``, with its source; ``drift`` compares it with the package where that is
installed. An answer is attention by its formula, of what a call was given: so a call that means something else is seen.
"""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch


class Call(NamedTuple):
    """A call by its name, and its arguments by theirs, defaults among them."""

    name: str
    given: dict[str, Any]


class Recorder:
    """The calls of a stand-in, in order; each raises ``fails`` where that is set."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.fails: Exception | None = None

    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def last(self, name: str) -> dict[str, Any]:
        return next(call.given for call in reversed(self.calls) if call.name == name)

    def integers(self) -> set[torch.dtype]:
        """Types of all tensors of lengths, offsets and pages that were given: the libraries take int32 alone."""
        given = [value for call in self.calls for value in call.given.values() if isinstance(value, torch.Tensor)]
        return {value.dtype for value in given if not value.is_floating_point()}

    def replace(self, stub: Callable[..., Any], answer: Callable[[dict[str, Any]], Any], name: str = "") -> Any:
        """Return a function of the stub's signature that records a call and answers it."""
        signature = inspect.signature(stub)

        def call(*arguments: Any, **named: Any) -> Any:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            given = dict(bound.arguments)
            self.calls.append(Call(name or stub.__name__, {key: given[key] for key in given if key != "self"}))
            if self.fails is not None:
                raise self.fails
            return answer(given)

        return call


def drift(recorded: Any, package: Any) -> list[str]:
    """List the functions and methods whose names or defaults of arguments are not those that were recorded."""
    changed = []
    for name, stub in vars(recorded).items():
        if inspect.isclass(stub):
            changed += [f"{name}.{found}" for found in drift(stub, getattr(package, name))]
        elif inspect.isfunction(stub):
            found = inspect.signature(getattr(package, name)).parameters
            parameters = inspect.signature(stub).parameters
            if [(each.name, each.default) for each in found.values()] != [
                (each.name, each.default) for each in parameters.values()
            ]:
                changed.append(name)
    return changed


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    before: int = -1,
    after: int = -1,
    softcap: float | None = None,
    slopes: torch.Tensor | None = None,
    offset: int | None = None,
) -> torch.Tensor:
    """Compute one sequence in fp64: ``q [S_q, H, D]``, ``k [S, H_kv, D]``, ``v [S, H_kv, D_v]``.

    Query i stands at key i + ``offset``, by default so that the last ones meet; it sees so many keys ``before`` and
    ``after`` that one, -1: all. The output of a query that sees none is 0.
    """
    group, position = q.shape[1] // k.shape[1], torch.arange(q.shape[0])[:, None]
    position = position + (k.shape[0] - q.shape[0] if offset is None else offset)
    ahead = torch.arange(k.shape[0]) - position
    q, k, v = (tensor.double().transpose(0, 1) for tensor in (q, k, v))
    scores = q @ k.repeat_interleave(group, 0).mT * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * ahead.abs()
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if before >= 0:
        hidden |= ahead < -before
    if after >= 0:
        hidden |= ahead > after
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf), 2).masked_fill(hidden.all(1)[:, None], 0.0)
    return (weights @ v.repeat_interleave(group, 0)).transpose(0, 1)


def gather(caches: Iterable[torch.Tensor], pages: torch.Tensor, length: int) -> list[torch.Tensor]:
    """Return the first tokens ``[length, H_kv, D]`` of a sequence, whose pages of NHD caches are these, in order."""
    return [cache.float()[pages.long()].flatten(0, 1)[:length] for cache in caches]
