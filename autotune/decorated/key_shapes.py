"""Shape classes of decorated kernels, made from the key: its arguments and the dtypes of the tensors."""

import math
import reprlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Any, ClassVar, Final

from autotune.dtypes import DTYPE_ALIASES, KV_DTYPE_ALIASES
from autotune.errors import InvalidShapeError, UsageError
from autotune.shape import Shape

DTYPES: Final = (
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"),
    *("float8_e5m2fnuz", "int8", "uint8", "int16", "int32", "int64", "bool"),
)
ALIASES: Final = DTYPE_ALIASES | KV_DTYPE_ALIASES
LARGEST: Final = 2**63 - 1
JOINT: Final = "+"  # of several dtypes, which ``--shape`` can hold
OWN_FIELDS: Final = ("dtype", "dtypes")


def dtype_name(dtype: object) -> str:
    """Return torch's name of a dtype, given that name, a short form or torch's own; InvalidShapeError for another."""
    spelled = str(dtype).removeprefix("torch.").lower()
    name = ALIASES.get(spelled, spelled)
    if name not in DTYPES:
        raise InvalidShapeError(f"dtype={dtype!r} is not allowed; expected one of {', '.join(DTYPES)}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShape(Shape):
    """Base of the shapes of decorated kernels.

    A field of the key is an integer, or a text. Then come ``dtype`` and ``dtypes``, those of all tensors in their
    order, once where they are alike; it follows what the inputs say of ``dtype`` where it is not given. ``dtype`` is
    that of the first floating-point tensor, or of the first from which the inputs make these very ``dtypes``: so a
    search and a launch are of one shape where the first tensor is always fp32. Compile-time constants, texts and dtypes
    must agree for a neighbour's config to be borrowed; other arguments are sizes.
    """

    SIZES: ClassVar[tuple[str, ...]] = ()
    COUNTS: ClassVar[Mapping[str, str]] = {}  # of elements, each with the tensor that has them
    FOLLOW: ClassVar[Callable[[Any], str] | None] = None

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name not in OWN_FIELDS:
                value = _read(each.name, getattr(self, each.name), each.type)
                if each.name in self.COUNTS and value < 0:  # type: ignore[operator]  # it is no text
                    expected = f"expected 0 or more, as it is a size of {self.COUNTS[each.name]}"
                    raise InvalidShapeError(f"{each.name}={value} is not allowed; {expected}")
                object.__setattr__(self, each.name, value)
        dtype, given = (getattr(self, name) for name in OWN_FIELDS)
        object.__setattr__(self, "dtype", dtype_name(dtype))
        follow = type(self).FOLLOW
        if given is not None or follow is None:
            object.__setattr__(self, "dtypes", _joined(str(given or dtype)))
        else:
            object.__setattr__(self, "dtypes", _joined(follow(self)))
            object.__setattr__(self, "dtype", self.settled_dtype())

    def settled_dtype(self) -> str:
        """Return the dtype that the inputs make these dtypes from, the first one of a floating-point tensor."""
        dtype, dtypes = (str(getattr(self, name)) for name in OWN_FIELDS)
        if (follow := type(self).FOLLOW) is None:
            return dtype
        words = dtypes.split(JOINT)
        for word in dict.fromkeys((*(each for each in words if "float" in each), *words)):
            with suppress(Exception):  # of the user's function, which need not take every dtype
                if _joined(follow(replace(self, dtype=word))) == dtypes:  # type: ignore[call-arg]
                    return word
        return dtype

    def coordinates(self) -> tuple[float, ...]:
        return tuple(math.log2(max(1, abs(getattr(self, name)))) for name in self.SIZES)

    def __str__(self) -> str:
        values = " ".join(f"{each.name}={getattr(self, each.name)}" for each in fields(self)[: -len(OWN_FIELDS)])
        dtypes = str(getattr(self, "dtypes") or getattr(self, "dtype"))  # noqa: B009
        return f"{values}, {dtypes}" if values else dtypes


def _joined(dtypes: str) -> str:
    names = [dtype_name(each) for each in dtypes.split(JOINT)]
    return JOINT.join(names if len(set(names)) > 1 else names[:1])


def _read(name: str, value: object, kind: object) -> int | str:
    if kind is str:
        return str(value)
    if isinstance(value, int) and abs(value) <= LARGEST:  # True is 1
        return int(value)
    if isinstance(value, int):
        raise InvalidShapeError(f"{name}={value} is not allowed; expected an integer from -2**63 + 1 to 2**63 - 1")
    text = "a text, such as of a float or None, needs key={..., " + repr(name) + ": str}"
    raise InvalidShapeError(f"{name}={reprlib.repr(value)} is not allowed; expected an integer; {text}")


def check_key(key: Collection[str]) -> None:
    """Refuse a name that a shape has of its own."""
    for each in key:
        if each in OWN_FIELDS or hasattr(KernelShape, each):
            raise UsageError(f"key={list(key)} has {each!r}, which every shape has; rename the parameter")


def make_shape_class(
    name: str,
    module: str,
    key: Mapping[str, type],
    constants: frozenset[str],
    follow: Callable[[Any], str] | None,
    counts: Mapping[str, str],
) -> type[KernelShape]:
    """Make the shape class of a kernel; ``follow`` returns the dtypes of all tensors of a shape that gives one dtype,
    and ``counts`` has the fields that are sizes of tensors, each with one.
    """
    family = [each for each, kind in key.items() if each in constants or kind is str]
    return make_dataclass(
        name,
        [
            *key.items(),
            ("dtype", str, field(default="float16")),
            ("dtypes", str, field(default=None)),  # resolved at construction
        ],
        bases=(KernelShape,),
        namespace={
            "__module__": module,
            "FAMILY": (*family, *OWN_FIELDS),
            "SIZES": tuple(each for each in key if each not in family),
            "COUNTS": counts,
            "FOLLOW": None if follow is None else staticmethod(follow),
        },
        frozen=True,
        slots=True,
        kw_only=True,
    )
