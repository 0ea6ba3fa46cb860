"""Shapes of any class as text, ``rows=4096,width=4096``: read by the names and the types of the class's fields."""

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from autotune.console.shape_options import parse_sizes
from autotune.errors import UsageError
from autotune.operation import Operation
from autotune.registry import loadable_operations
from autotune.shape import Shape

NONE: Final = "none"
BOOLEANS: Final = {"true": True, "false": False}
WORDS: Final = {int: "an integer", float: "a number", str: "a text", bool: "true or false", NoneType: NONE}
METAVARS: Final = {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: "true|false", NoneType: NONE}
FORM: Final = "expected fields and values such as rows=4096,width=4096"


def parse_shapes(text: str, operation: Operation[Any]) -> list[Shape]:
    """Parse the shapes of an operation from fields and values; parts without a name are more values of the last field.

    Each value is combined with each. Integers may double from one end to the other: ``rows=512,...,4096``. A field
    that has a default may be left out.

    Raises:
        UsageError: the text has another form, or a field is unknown, missing, or of another type; the message names
            the field, its value and what is allowed.
        InvalidShapeError: the class refuses a value.

    Example:
        >>> [shape.rows for shape in parse_shapes("rows=64,128,width=4096", get_operation("rmsnorm"))]
        [64, 128]
    """
    shape_class, given = operation.shape_class, split_fields(text)
    if problem := _mismatch(given, shape_class):
        raise UsageError(f"shape={text!r}: {problem}; {operation.name} takes {fields_text(shape_class)}")
    hints = get_type_hints(shape_class)
    columns = [[(name, value) for value in _values(name, parts, hints[name], text)] for name, parts in given.items()]
    return [_make(shape_class, dict(row), text) for row in itertools.product(*columns)]


def operation_of(text: str) -> Operation[Any]:
    """Return the one operation that the names of the fields fit; UsageError for none, and for several."""
    given = split_fields(text)
    known = loadable_operations()
    fitting = [each for each in known if _mismatch(given, each.shape_class) is None]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = " and ".join(each.name for each in fitting)
        raise UsageError(f"shape={text!r} fits {names}; name one with --operation")
    shared = {each.name: len(given.keys() & set(_names(each.shape_class))) for each in known}
    nearest = next(each for each in known if shared[each.name] == max(shared.values()))
    if shared[nearest.name]:
        problem = _mismatch(given, nearest.shape_class)
        raise UsageError(f"shape={text!r}: {problem}; {nearest.name} takes {fields_text(nearest.shape_class)}")
    names = ", ".join(each.name for each in known)
    raise UsageError(
        f"shape={text!r}: no operation has these fields; known: {names}; --import MODULE imports what registers others"
    )


def split_fields(text: str) -> Mapping[str, Sequence[str]]:
    """Split ``rows=64,128,width=4096`` into the values of each field, as text; UsageError for another form."""
    found: dict[str, list[str]] = {}
    for part in text.split(","):
        name, sign, value = (each.strip() for each in part.partition("="))
        if sign and name in found:
            raise UsageError(f"shape={text!r} has {name} twice; expected its values together: {name}=64,128")
        if not (value if sign else name) or (sign and not name.isidentifier()) or not (sign or found):
            raise UsageError(f"shape={text!r} has {part.strip()!r}; {FORM}")
        if sign:
            found[name] = [value]
        else:
            found[next(reversed(found))].append(name)
    return found


def fields_text(shape_class: type[Shape]) -> str:
    """Describe the fields of a class: their types, and the defaults of those that may be left out.

    Example:
        >>> fields_text(RowShape)
        'rows=INTEGER, width=INTEGER, dtype=TEXT (float16 by default)'
    """
    hints = get_type_hints(shape_class)
    return ", ".join(
        f"{each.name}={_metavar(hints[each.name])}{_default_text(each)}" for each in _init_fields(shape_class)
    )


def placeholder(shape_class: type[Shape]) -> str:
    """Return the form of a shape, with the fields that have no default: ``rows=INTEGER,width=INTEGER``."""
    hints = get_type_hints(shape_class)
    required = [each.name for each in _init_fields(shape_class) if _is_required(each)] or _names(shape_class)
    return ",".join(f"{name}={_metavar(hints[name])}" for name in required)


def _init_fields(shape_class: type[Shape]) -> list[Field[Any]]:
    return [each for each in fields(shape_class) if each.init]


def _names(shape_class: type[Shape]) -> list[str]:
    return [each.name for each in _init_fields(shape_class)]


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _default_text(field: Field[Any]) -> str:
    if _is_required(field):
        return ""
    return " (may be left out)" if field.default in (None, MISSING) else f" ({_as_text(field.default)} by default)"


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _mismatch(given: Mapping[str, object], shape_class: type[Shape]) -> str | None:
    """Return the reason why fields of these names do not make a shape, or None."""
    names = _names(shape_class)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            return f"{name} is not a field{f', did you mean {near[0]}?' if near else ''}"
    missing = [each.name for each in _init_fields(shape_class) if _is_required(each) and each.name not in given]
    return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing" if missing else None


def _kinds(hint: Any) -> list[Any]:
    """Return the types of a field: the members of a union, or the one that it has."""
    return list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]


def _words(hint: Any, named: Mapping[Any, str], separator: str) -> str:
    """Return the values that a type allows, its members ``named`` so."""
    words: list[str] = []
    for kind in _kinds(hint):
        if get_origin(kind) is Literal:
            words.extend(map(_as_text, get_args(kind)))
        else:
            words.append(named.get(kind, f"a {getattr(kind, '__name__', kind)}, which no option can give"))
    return separator.join(words)


def _metavar(hint: Any) -> str:
    return _words(hint, METAVARS, "|")


def _values(name: str, parts: Sequence[str], hint: Any, text: str) -> list[Any]:
    if "..." in parts and int in _kinds(hint):
        try:
            return list(parse_sizes(",".join(parts), name))
        except UsageError as error:
            raise UsageError(f"shape={text!r}: {error}") from None
    return list(dict.fromkeys(_value(name, part, hint, text) for part in parts))


def _value(name: str, part: str, hint: Any, text: str) -> Any:
    for kind in sorted(_kinds(hint), key=lambda kind: kind is str):  # last, as any text is one
        read = _read(part, kind)
        if read is not None:
            return read[0]
    raise UsageError(f"shape={text!r}: {name}={part!r} is not allowed; expected {_words(hint, WORDS, ' or ')}")


def _read(part: str, kind: Any) -> tuple[Any] | None:
    """Read a value of a type; None where the text is of another."""
    if kind is NoneType:
        return (None,) if part.lower() == NONE else None
    if kind is bool:
        return (BOOLEANS[part.lower()],) if part.lower() in BOOLEANS else None
    if kind is int:
        return (int(part),) if re.fullmatch(r"[+-]?\d{1,18}", part) else None
    if kind is float:
        return (float(part),) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", part, re.IGNORECASE) else None
    if get_origin(kind) is Literal:
        return next(((value,) for value in get_args(kind) if _as_text(value) == part), None)
    return (part,) if kind is str else None


def _make(shape_class: type[Shape], given: Mapping[str, Any], text: str) -> Shape:
    try:
        return shape_class(**given)
    except UsageError as error:
        raise type(error)(f"shape={text!r}: {error}") from None
    except (TypeError, ValueError, ArithmeticError) as error:  # of a class of somebody else's
        raise UsageError(f"shape={text!r} is refused by {shape_class.__name__}: {error}") from error
