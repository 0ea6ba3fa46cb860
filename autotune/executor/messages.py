"""JSON lines between a parent and its children: outcomes to plain data and back, and the pipes they travel on."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, BinaryIO, Final

from autotune import registry
from autotune.executor import BaselineResult, Race
from autotune.operation import Kernel, Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Conditions, Outcome, Resources, Status, Timing

Turn = int | str | None  # whom the GPU runs next in a race: a finalist's place, a baseline's name, nobody

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Plain data of an outcome; the inverse of ``outcome_from_json``."""
    return {**asdict(outcome), "config": dict(outcome.config)}


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """An outcome from what ``outcome_to_json`` made of it."""
    return Outcome(
        **{
            **data,
            "config": Config(data["config"]),
            "status": Status(data["status"]),
            "timing": timing_from_json(data["timing"]),
            "resources": Resources(**data["resources"]),
            "conditions": Conditions(**data["conditions"]),
        }
    )


def race_to_json(race: Race) -> dict[str, Any]:
    """Plain data of a race; the inverse of ``race_from_json``."""
    return {
        "outcomes": [outcome_to_json(outcome) for outcome in race.outcomes],
        "baselines": [asdict(baseline) for baseline in race.baselines],
        "extra_bytes": list(race.extra_bytes),
    }


def race_from_json(data: Mapping[str, Any]) -> Race:
    """A race from what ``race_to_json`` made of it."""
    return Race(
        tuple(outcome_from_json(outcome) for outcome in data["outcomes"]),
        tuple(BaselineResult(**{**item, "timing": timing_from_json(item["timing"])}) for item in data["baselines"]),
        tuple(data["extra_bytes"]),
    )


def timing_from_json(data: Mapping[str, Any] | None) -> Timing | None:
    """A timing from its fields, or None."""
    return None if data is None else Timing(**data)


def problem_to_json(operation: Operation[Any], shape: Shape) -> dict[str, Any]:
    """What a child needs to open the same problem: names, never code."""
    reference = registry.reference(operation.name)
    return {"operation": operation.name, "reference": reference._asdict(), "shape": shape.as_dict()}


def open_problem(data: Mapping[str, Any]) -> tuple[Operation[Any], Kernel, Shape]:
    """In a child: the operation, kernel and shape that ``problem_to_json`` named."""
    registry.register(data["operation"], **data["reference"])
    operation = registry.get_operation(data["operation"])
    return operation, registry.load_kernel(data["operation"]), operation.shape_class(**data["shape"])


def take_standard_output() -> BinaryIO:
    """In a child: keep standard output for messages alone; whatever else is printed goes to standard error."""
    messages = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return messages


def send(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    """Write one message as one line."""
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends, however it ends (Linux only).

    ``parent`` is the process number of the one that is meant, whoever is the parent now if left out: a parent that
    ended before this call kills nobody, so where another is in its place this process ends here.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take back what ``die_with_parent`` asked for."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
