"""A saved roofline: the output of ``autotune analyze roofline --json``, read back and checked."""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from autotune.errors import UsageError
from autotune.lab.machine.ceilings import Ceilings
from autotune.lab.roofline.ncu import Counted, CountedBeside
from autotune.lab.roofline.placement import RooflinePoint
from autotune.shape import AttentionShape
from autotune.trial import Timing, Toolchain

LIMIT: Final = 2**63  # of any number: bytes, FLOPs and rates lie far below it
MADE_BY: Final = "autotune analyze roofline --ncu --json > FILE"


@dataclass(frozen=True, slots=True)
class MeasuredRoofline:
    """One run: ceilings, points, and bytes by the model beside those that Nsight Compute counted.

    ``counted`` is None where no counts were asked for; ``failures`` has the reasons of lengths without counts.
    ``measured_at``, which has its time zone, and ``toolchain`` are None in early documents, which lack them.
    """

    ceilings: Ceilings
    points: tuple[RooflinePoint, ...]
    counted: tuple[CountedBeside, ...] | None = None
    failures: tuple[str, ...] = ()
    measured_at: datetime | None = None
    toolchain: Toolchain | None = None


# Fields that have another name in the document, and those whose numbers are above 0.
RENAMED: Final = {(Ceilings, "processor"): "machine", (MeasuredRoofline, "counted"): "ncu"}
POSITIVE: Final = {(RooflinePoint, "flops"), (RooflinePoint, "bytes"), (Timing, "samples")}


class _WrongError(Exception):
    """The document is not a roofline's; the message names the place and what stands there."""


def read_roofline(path: Path) -> MeasuredRoofline:
    """Read a measured roofline from a file; values that follow from its numbers are computed again.

    UsageError, with the file and the command that writes one, for what cannot be read or is something else.

    Example:
        >>> read_roofline(Path("h200.json")).ceilings.ridge
        178.9
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        if isinstance(data, dict) and "ceilings" not in data and "works" in data:
            raise _WrongError("was derived and not measured (--no-measure)")
        found: MeasuredRoofline = _read(MeasuredRoofline, data, "")
        return found
    except OSError as error:
        wrong = f"cannot be read: {error.strerror}"
    except _WrongError as error:
        wrong = str(error)
    except (ValueError, RecursionError) as error:
        wrong = f"is no JSON: {' '.join(str(error).split())}"
    raise UsageError(f"roofline={str(path)!r} {wrong}; expected what `{MADE_BY}` writes")


def _read(kind: Any, data: Any, place: str) -> Any:
    """Read a value of a type: a text, a number, a time, a shape, or an optional, a tuple or a dataclass of these."""
    if kind in READERS:
        return READERS[kind](data, place)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if data is None else _read(inner[0], data, place)
    if origin is tuple:
        if not isinstance(data, list):
            raise _WrongError(f"has no list at {place}")
        return tuple(_read(inner[0], item, f"{place}[{index}]") for index, item in enumerate(data))
    if origin is Literal:
        if data not in inner:
            raise _WrongError(f"has {data!r} at {place}, allowed are {', '.join(inner)}")
        return data
    return _dataclass(kind, data, place)


def _dataclass(kind: Any, data: Any, place: str) -> Any:
    """Read a dataclass; further fields are ignored, those with a default may be absent."""
    found, types = _object(data, place), get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in fields(kind):
        key = RENAMED.get((kind, field.name), field.name)
        at = f"{place}.{key}" if place else key
        if key in found:
            is_positive = (kind, field.name) in POSITIVE
            values[field.name] = _positive(found[key], at) if is_positive else _read(types[field.name], found[key], at)
        elif field.default is MISSING:
            raise _WrongError(f"has no {key!r} in {place or 'the document'}")
    made = kind(**values)
    if isinstance(made, Timing) and not 0 < made.low_us <= made.median_us <= made.high_us:
        raise _WrongError(f"has no median within an interval above 0 at {place}")
    if isinstance(made, Counted):
        _positive(made.total, place)
    for name in ("memory", "compute") if isinstance(made, Ceilings) else ():
        if min((rate.value for rate in getattr(made, name)), default=0.0) <= 0.0:
            raise _WrongError(f"has no rates above 0 at {place}.{name}")
    return made


def _object(data: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise _WrongError(f"has no object at {place or 'the document'}")
    return data


def _reader(is_right: Callable[[Any], bool], expected: str) -> Callable[[Any, str], Any]:
    def read(data: Any, place: str) -> Any:
        if not is_right(data):
            raise _WrongError(f"has {data!r} at {place}, where {expected} stands")
        return data

    return read


def _is_number(data: Any) -> bool:
    return isinstance(data, int | float) and not isinstance(data, bool) and 0 <= data < LIMIT


_text: Final = _reader(lambda data: isinstance(data, str), "a text")
_number: Final = _reader(_is_number, "a number from 0 to 2^63")
_whole: Final = _reader(lambda data: not isinstance(data, float), "a whole number")
_positive: Final = _reader(
    lambda data: isinstance(data, int) and _is_number(data) and data > 0, "a whole number above 0 and below 2^63"
)


def _time(data: Any, place: str) -> datetime:
    try:
        found = datetime.fromisoformat(_text(data, place))
    except ValueError as error:
        raise _WrongError(f"has no time at {place}: {error}") from error
    if found.tzinfo is None:
        raise _WrongError(f"has a time without its zone at {place}")
    return found


def _shape(data: Any, place: str) -> AttentionShape:
    try:
        return AttentionShape(**_object(data, place))
    except (UsageError, TypeError) as error:
        raise _WrongError(f"has no shape of dense attention at {place}: {error}") from error


def _refuse(constant: str) -> Any:
    raise _WrongError(f"has {constant}, which is no number of JSON")


READERS: Final[Mapping[Any, Callable[[Any, str], Any]]] = {
    str: _text,
    float: _number,
    int: lambda data, place: _number(_whole(data, place), place),
    datetime: _time,
    AttentionShape: _shape,
}
