"""A measured roofline as it is kept: what ``autotune analyze roofline --json`` printed, read back and checked."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from autotune.analysis.ceilings import Ceilings, Rate
from autotune.analysis.counters import CountedBeside
from autotune.analysis.dram import Dram
from autotune.analysis.ncu import Counted
from autotune.analysis.processor import KINDS, Processor
from autotune.analysis.roofline import Point
from autotune.errors import UsageError
from autotune.shape import AttentionShape
from autotune.trial import Timing, Toolchain

LIMIT: Final = 2**63  # of any number: bytes, FLOPs and rates lie far below it
MADE_BY: Final = "autotune analyze roofline --ncu --json > FILE"

ItemT = TypeVar("ItemT")
PlainT = TypeVar("PlainT", Counted, Dram, Processor, Rate, Timing, Toolchain)


@dataclass(frozen=True, slots=True)
class MeasuredRoofline:
    """One run: ceilings, points, and bytes by the model beside those that Nsight Compute counted.

    ``counted`` is None where nobody asked for counts; ``failures`` say why of a length there are none. ``measured_at``,
    which has its time zone, and ``toolchain`` are None where the document, an early one, does not say.
    """

    ceilings: Ceilings
    points: tuple[Point, ...]
    counted: tuple[CountedBeside, ...] | None
    failures: tuple[str, ...]
    measured_at: datetime | None
    toolchain: Toolchain | None


class _WrongError(Exception):
    """What is wrong with the document, and where in it."""


def read_roofline(path: Path) -> MeasuredRoofline:
    """What the command wrote to this file; what follows from its numbers is computed again, not read.

    Raises:
        UsageError: it cannot be read, or is something else; names the file, what was found and what writes one.

    Example:
        >>> read_roofline(Path("h200.json")).ceilings.ridge
        178.9
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        return _roofline(data)
    except OSError as error:
        wrong = f"cannot be read: {error.strerror}"
    except _WrongError as error:
        wrong = str(error)
    except (ValueError, RecursionError) as error:
        wrong = f"is no JSON: {' '.join(str(error).split())}"
    raise UsageError(f"roofline={str(path)!r} {wrong}; expected what `{MADE_BY}` writes")


def _roofline(data: Any) -> MeasuredRoofline:
    found = _object(data, "the document")
    if "ceilings" not in found and "works" in found:
        raise _WrongError("was derived and not measured (--no-measure)")
    ceilings = _object(_get(found, "ceilings", "the document"), "ceilings")
    counted, toolchain = found.get("ncu"), found.get("toolchain")
    return MeasuredRoofline(
        Ceilings(
            _processor(_get(ceilings, "machine", "ceilings")),
            _text(ceilings, "dtype", "ceilings"),
            *(_rates(_get(ceilings, name, "ceilings"), f"ceilings.{name}") for name in ("memory", "compute")),
        ),
        _each(_point, _get(found, "points", "the document"), "points"),
        None if counted is None else _each(_beside, counted, "ncu"),
        _each(_line, found.get("failures", []), "failures"),
        _time(found.get("measured_at"), "measured_at"),
        None if toolchain is None else _plain(Toolchain, toolchain, "toolchain"),
    )


def _processor(data: Any) -> Processor:
    found = _plain(Processor, data, "ceilings.machine")
    if found.kind not in KINDS:
        raise _WrongError(f"has {found.kind!r} at ceilings.machine.kind, allowed are {', '.join(KINDS)}")
    return found


def _rates(data: Any, place: str) -> tuple[Rate, ...]:
    found = _each(lambda item, at: _plain(Rate, item, at), data, place)
    if not found or min(rate.value for rate in found) <= 0:
        raise _WrongError(f"has no rates above 0 at {place}")
    return found


def _point(data: Any, place: str) -> Point:
    found = _object(data, place)
    timing = found.get("timing")
    return Point(
        _text(found, "name", place),
        _shape(found, place),
        _positive(_get(found, "flops", place), f"{place}.flops"),
        _positive(_get(found, "bytes", place), f"{place}.bytes"),
        None if timing is None else _timing(timing, f"{place}.timing"),
        _text(found, "reason", place),
    )


def _timing(data: Any, place: str) -> Timing:
    found = _plain(Timing, data, place)
    _positive(found.samples, f"{place}.samples")
    if not 0 < found.low_us <= found.median_us <= found.high_us:
        raise _WrongError(f"has no median within an interval above 0 at {place}")
    return found


def _beside(data: Any, place: str) -> CountedBeside:
    found = _object(data, place)
    counted = _plain(Counted, _get(found, "counted", place), f"{place}.counted")
    _positive(counted.total, f"{place}.counted")
    predicted = _plain(Dram, _get(found, "predicted", place), f"{place}.predicted")
    return CountedBeside(_text(found, "kernel", place), _shape(found, place), predicted, counted)


def _time(data: Any, place: str) -> datetime | None:
    if data is None:
        return None
    try:
        found = datetime.fromisoformat(_line(data, place))
    except ValueError as error:
        raise _WrongError(f"has no time at {place}: {error}") from error
    if found.tzinfo is None:
        raise _WrongError(f"has a time without its zone at {place}")
    return found


def _shape(found: Mapping[str, Any], place: str) -> AttentionShape:
    given = _object(_get(found, "shape", place), f"{place}.shape")
    try:
        return AttentionShape(**given)
    except (UsageError, TypeError) as error:
        raise _WrongError(f"has no shape of dense attention at {place}.shape: {error}") from error


def _plain(kind: type[PlainT], data: Any, place: str) -> PlainT:
    """A dataclass of texts and numbers, each of its type; further fields, such as those that follow, are ignored."""
    found, types = _object(data, place), get_type_hints(kind)
    values: dict[str, Any] = {}
    for name in (field.name for field in fields(kind)):
        value = _get(found, name, place)
        if types[name] in (int, float):
            is_right = isinstance(value, int if types[name] is int else int | float) and not isinstance(value, bool)
            if not is_right or not 0 <= value < LIMIT:
                raise _WrongError(f"has {value!r} at {place}.{name}, where a number from 0 to 2^63 stands")
        elif not isinstance(value, str):
            raise _WrongError(f"has {value!r} at {place}.{name}, where a text stands")
        values[name] = value
    return kind(**values)


def _each(read: Callable[[Any, str], ItemT], data: Any, place: str) -> tuple[ItemT, ...]:
    if not isinstance(data, list):
        raise _WrongError(f"has no list at {place}")
    return tuple(read(item, f"{place}[{index}]") for index, item in enumerate(data))


def _line(data: Any, place: str) -> str:
    if not isinstance(data, str):
        raise _WrongError(f"has {data!r} at {place}, where a text stands")
    return data


def _text(found: Mapping[str, Any], name: str, place: str) -> str:
    return _line(_get(found, name, place), f"{place}.{name}")


def _positive(value: Any, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < LIMIT:
        raise _WrongError(f"has {value!r} at {place}, where a whole number above 0 and below 2^63 stands")
    return value


def _object(data: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise _WrongError(f"has no object at {place}")
    return data


def _get(found: Mapping[str, Any], name: str, place: str) -> Any:
    if name not in found:
        raise _WrongError(f"has no {name!r} in {place}")
    return found[name]


def _refuse(constant: str) -> Any:
    raise _WrongError(f"has {constant}, which is no number of JSON")
