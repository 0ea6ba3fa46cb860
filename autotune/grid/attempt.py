"""Attempts: how far each task of a grid came, in files that are written once; no state is kept elsewhere.

An attempt writes that it begins, and later how it ended. One that only began is running, or was lost with its machine.
The attempt of a task with the highest number owns it: an earlier one that wakes up again, after its machine was taken
for dead, finds a higher number before it writes and stops (a fencing token, as in M. Kleppmann, Designing
Data-Intensive Applications, chapter 8).
"""

import json
import math
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from autotune.errors import TableError
from autotune.redaction import redacted

State = Literal["done", "failed", "interrupted"]
AnsweredBy = Literal["gpu", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One begun attempt at a task.

    Attributes:
        task: the task's key.
        number: from 1; of several attempts the highest owns the task.
        token: random, so that two attempts that take one number at once are two; the greater of them owns the task.
        host: where it runs.
        device: the name of the device, its power cap in watts and its toolchain, as tables tell rows apart.
        started: when, with a time zone.
        executor: what answers: a ``gpu``, or the ``replay`` of recorded sweeps, which does a task for no GPU.
    """

    task: str
    number: int
    token: str
    host: str
    device: str
    power_cap_watts: float | None
    toolchain: str
    started: datetime
    executor: AnsweredBy = "gpu"

    @property
    def order(self) -> tuple[int, str]:
        return self.number, self.token


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """The end of an attempt.

    Attributes:
        task: the task's key.
        token: of the attempt.
        state: ``done``; ``failed``, with a message, such as a task without a correct candidate; or ``interrupted``.
        seconds: that it took.
        trials: how many trials it measured, by status.
        message: the reason of a failure, or the recorded shape that answered a replay; credentials are left out.
    """

    task: str
    token: str
    state: State
    seconds: float
    trials: dict[str, int] = field(default_factory=dict)
    message: str = ""


def encode(record: Attempt | AttemptEnd) -> bytes:
    """Return a record as JSON, with no credentials in its texts."""
    given: dict[str, Any] = {
        name: redacted(value) if isinstance(value, str) else value for name, value in asdict(record).items()
    }
    if isinstance(record, Attempt):
        given["started"] = record.started.isoformat()
    return json.dumps(given, sort_keys=True).encode()


def decode_attempt(data: bytes, where: str) -> Attempt:
    """Return the attempt in a file's bytes; TableError, with the file's name, where it holds none."""
    try:
        given = json.loads(data)
        attempt = Attempt(**{**given, "started": datetime.fromisoformat(given["started"])})
        if attempt.started.tzinfo is None:
            raise ValueError(f"started={given['started']!r} has no time zone")
        _require_texts(attempt, "task", "token", "host", "device", "toolchain")
        if attempt.power_cap_watts is not None:
            _require_numbers(attempt.power_cap_watts)
        if type(attempt.number) is not int or attempt.executor not in get_args(AnsweredBy):
            raise ValueError(f"number={attempt.number!r} or executor={attempt.executor!r} is none")
        return attempt
    except (ValueError, TypeError, KeyError) as error:
        raise TableError(f"{where}: is not an attempt at a task: {type(error).__name__}: {error}") from error


def decode_ending(data: bytes, where: str) -> AttemptEnd:
    """Return the ending in a file's bytes; TableError, with the file's name, where it holds none."""
    try:
        ending = AttemptEnd(**json.loads(data))
        _require_texts(ending, "task", "token", "message")
        _require_numbers(ending.seconds, *ending.trials.values())
        if ending.state not in get_args(State):
            raise ValueError(f"state={ending.state!r} is none")
        return ending
    except (ValueError, TypeError, AttributeError) as error:
        raise TableError(f"{where}: is not the end of an attempt: {type(error).__name__}: {error}") from error


def _require_texts(record: Attempt | AttemptEnd, *names: str) -> None:
    for name in names:
        if not isinstance(value := getattr(record, name), str):
            raise ValueError(f"{name}={value!r} is no text")


def _require_numbers(*values: object) -> None:
    for value in values:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{value!r} is no number")
