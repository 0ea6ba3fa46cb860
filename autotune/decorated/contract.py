"""The operation and the implementation that a decorator stands for: below these, all kernels are alike."""

import inspect
import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.decorated.call_arguments import tensor_of
from autotune.decorated.configs import Configs, make_space
from autotune.decorated.definition import KernelDefinition
from autotune.decorated.key_shapes import KernelShape
from autotune.decorated.launch import Launched
from autotune.decorated.recorded_call import RecordedCall
from autotune.decorated.signature import Signature
from autotune.errors import UsageError
from autotune.implementation import Implementation
from autotune.operation import Cost, Operation
from autotune.own_kernels import OWN_IMPLEMENTATION
from autotune.space import Config


@dataclass(frozen=True, slots=True)
class Contract:
    """The operation and the implementation that a decorated kernel registers."""

    operation: Operation[Any]
    implementation: Implementation[Any]


def make_contract(
    name: str,
    definition: KernelDefinition,
    launched: Launched,
    signature: Signature,
    shape_class: type[KernelShape],
    configs: Configs,
    prune: Callable[[Any], tuple[Config, ...]],
    cost: Callable[[Any], Cost],
    calls: MutableMapping[Any, RecordedCall],
) -> Contract:
    """Make them. What ``calls`` has of a shape is carried to the processes of a search."""
    source = signature.source
    operation = Operation(
        name=name,
        shape_class=shape_class,
        cost=cost,
        definition=definition,
        unsearchable=definition.why_unsearchable,
        multiplies_in="tf32" if source.has_dots and not source.is_ieee else "",
        carry=lambda shape: calls[shape].to_text() if shape in calls else "",
        receive=lambda shape, text: calls.__setitem__(shape, RecordedCall.from_text(text)),
    )
    implementation = Implementation(
        name=OWN_IMPLEMENTATION,
        operation=name,
        space=make_space(configs, prune),
        kernel=launched,
        sources=_sources(signature.function),
        entry=(signature.function.__qualname__.partition(".")[0],),
        counts_decorators=False,
        can_interpret=not signature.is_gluon,
        is_deterministic=lambda config: not source.has_atomics,
    )
    return Contract(operation, implementation)


def _sources(function: Callable[..., Any]) -> tuple[Path, ...]:
    """Return the file of a kernel, and those of the functions of Triton's that it calls in other files."""
    found, pending = dict[Path, None](), [function]
    seen = set[Any]()
    while pending:
        here = pending.pop()
        seen.add(here)
        found[Path(inspect.getsourcefile(here) or "")] = None
        for name in here.__code__.co_names:
            called = getattr(here.__globals__.get(name), "fn", None)
            if inspect.isfunction(called) and called not in seen and not called.__module__.startswith("triton."):
                pending.append(called)
    return tuple(found)


def make_cost(
    cost: Callable[[Any], Any] | None, arguments: Callable[[Any], Mapping[str, Any]]
) -> Callable[[Any], Cost]:
    """Return the formula of the work of a shape.

    FLOPs alone stand beside every tensor moved once; without a formula there are none.

    Raises (the formula):
        UsageError: it returned no ``Cost``, no FLOPs and no pair of FLOPs and bytes.
    """

    def moved(shape: Any) -> int:
        tensors = [tensor for each in arguments(shape).values() if (tensor := tensor_of(each)) is not None]
        return sum(each.numel() * each.element_size() for each in tensors)

    def formula(shape: Any) -> Cost:
        found = 0 if cost is None else cost(shape)
        if isinstance(found, Cost):
            return found
        pair = found if isinstance(found, tuple) else (found, moved(shape))
        if len(pair) != 2 or not all(isinstance(each, int | float) and 0 <= each < math.inf for each in pair):
            raise UsageError(f"cost({shape}) returned {found!r}; expected FLOPs, a pair of FLOPs and bytes, or a Cost")
        return Cost(int(pair[0]), max(1, int(pair[1])))

    return formula
