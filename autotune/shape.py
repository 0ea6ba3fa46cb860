"""Shapes: frozen descriptions of the problem that is solved, the key of every table."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Final, Self

from autotune.dtypes import DENSE_DTYPES, KV_ITEM_BYTES, QUERY_DTYPES, parse_dense_dtype, parse_dtype, parse_kv_dtype
from autotune.errors import InvalidShapeError

MAX_HEAD_DIM: Final = 512  # of dense attention
MAX_LENGTH: Final = 2**31 - 1  # lengths are int32 in the kernels; offsets are not
MAX_CONTEXT: Final = 2**30  # tokens: capacities are rounded up to powers of two, and a tile's end must fit an int32
LAYOUTS: Final = ("NHD", "HND")
MASKS: Final = ("boolean", "additive")
# Widths of what a token has in a cache of latents, and of its first columns, which are its value: of DeepSeek V2, V3
# and those after them, of Mistral Small 4, and of MiniCPM3 (config.json, kv_lora_rank and qk_rope_head_dim).
LATENT_WIDTHS: Final = {576: 512, 320: 256, 288: 256}
# How far apart evenness 1, all lengths alike, and 0 lie, in units of a factor of two. From 1 to 1/2, lengths drawn
# uniformly, is then twice as far as a winner is served: winners of 64 even sequences took 16 to 18 % longer there than
# that batch's own (paged_decode, 32/8 and 8/1 heads, NVIDIA H200, 2026-11-22). Between the two nothing is recorded.
EVENNESS_WEIGHT: Final = 4

_FOLLOWS: Any = None  # the default of a field that follows another one; resolved at construction


def parse_layout(layout: str) -> str:
    """Return ``"NHD"`` or ``"HND"``, given in any case; InvalidShapeError for another."""
    if layout in LAYOUTS:
        return layout
    if str(layout).upper() not in LAYOUTS:
        raise InvalidShapeError(f"layout={layout!r} is not allowed; expected {' or '.join(map(repr, LAYOUTS))}")
    return str(layout).upper()


@cache
def _field_names(cls: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(cls))


@cache
def values_getter(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    """Return what reads these attributes of an object, faster than ``getattr`` for each."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda owner: tuple([getattr(owner, name) for name in names])


@cache
def _family_getter(shape_class: "type[Shape]") -> Callable[[object], tuple[Any, ...]]:
    return values_getter(shape_class.FAMILY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Base of all shapes: plain, hashable, its fields are table columns.

    ``FAMILY`` names the fields that a neighbour must share exactly for its config to be worth borrowing. Classes grow:
    ``ABSENT`` gives for a field that joined later the value that rows from before it had, ``REMOVED`` for a field that
    is gone the value that all shapes have now.
    """

    FAMILY: ClassVar[tuple[str, ...]]
    ABSENT: ClassVar[Mapping[str, "int | float | str | bool | None"]] = {}
    REMOVED: ClassVar[Mapping[str, "int | float | str | bool | None"]] = {}

    def __new__(cls, *_: object, **given: object) -> Self:
        """Refuse an unknown field by name; the generated ``__init__`` takes the values."""
        names = _field_names(cls)  # type: ignore[arg-type]  # a class can be hashed, whatever mypy says
        if not names.issuperset(given):
            name = next(name for name in given if name not in names)
            allowed = ", ".join(field.name for field in fields(cls))
            raise InvalidShapeError(f"{name} is not a field of {cls.__name__}; allowed: {allowed}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Validate the fields, and resolve those that follow others."""

    def as_dict(self) -> dict[str, int | float | str | bool | None]:
        """Return the fields by name, in declaration order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        """List the fields by name, but those that are false or None; a dtype names itself."""
        told = ((name, value) for name, value in self.as_dict().items() if value is not None and value is not False)
        named = ((name.replace("_", " "), value) for name, value in told)
        return ", ".join(
            name if value is True else str(value) if name == "dtype" else f"{name} {value}" for name, value in named
        )

    def family(self) -> tuple[object, ...]:
        """Return the values of ``FAMILY``, which a neighbour must share exactly."""
        return _family_getter(type(self))(self)  # type: ignore[arg-type]  # a class can be hashed

    def coordinates(self) -> tuple[float, ...]:
        """Place the shape among its family: log2 of the sizes that may differ, those of integers by default."""
        sizes = (value for name, value in self.as_dict().items() if type(value) is int and name not in self.FAMILY)
        return tuple(math.log2(max(1, size)) for size in sizes)

    def distance(self, other: "Shape") -> float:
        """Measure the Euclidean distance of coordinates, 1 for a factor of two in one size; infinite between families.

        Only of the very shape it is 0: where sizes make no difference, as of a table's capacity that no sequence can
        reach, it is the least number above.
        """
        if type(self) is not type(other) or self.family() != other.family():
            return math.inf
        apart = math.dist(self.coordinates(), other.coordinates())
        return apart if apart or self == other else math.ulp(0.0)

    def differences(self, other: "Shape") -> str:
        """List the fields of the family in which another shape differs, with its value and the one here.

        Example:
            >>> shape = PagedShape(batch=64, heads=32, max_context=8192, head_dim=128, layout="HND")
            >>> shape.differences(PagedShape(batch=1, heads=8, max_context=512, head_dim=128))
            'layout (NHD, not HND)'
        """
        pairs = zip(self.FAMILY, other.family(), self.family(), strict=True)
        return ", ".join(f"{name} ({theirs}, not {ours})" for name, theirs, ours in pairs if theirs != ours)

    def _follow(self, sources: Mapping[str, str]) -> None:
        """Give each field that was not given the value of the one that it follows."""
        for name, source in sources.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self, source))

    def _require_int(self, *names: str, low: int = 1, high: int = MAX_LENGTH) -> None:
        for name in names:
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise InvalidShapeError(f"{name}={value!r} is not allowed; expected an integer from {low} to {high}")

    def _require_bool(self, *names: str) -> None:
        for name in names:
            if type(getattr(self, name)) is not bool:
                raise InvalidShapeError(f"{name}={getattr(self, name)!r} is not allowed; expected True or False")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape(Shape):
    """A dense attention problem: queries ``[batch, seq_q, heads, head_dim]`` against keys and values.

    ``kv_heads``, ``seq_kv`` and ``head_dim_v`` follow ``heads``, ``seq_q`` and ``head_dim`` where they are not given.
    ``causal`` is bottom-right aligned: query i sees keys up to i + seq_kv - seq_q. A ``window`` of W leaves the keys
    closer than W positions to the query's own, which counts (``sliding_window`` in Hugging Face configs). A window that
    hides no key is dropped: the problem is the one without it.
    ``softcap`` and ``sinks`` say whether the feature is on; its values are given at the call. So is the operand that
    ``attn_mask`` says the kind of: ``"boolean"`` hides keys, ``"additive"`` is added to the scores. As a problem that
    is tuned the one is ``[batch, 1, seq_q, seq_kv]``, as of padding, the other ``[1, heads, seq_q, seq_kv]``, as a bias
    of positions; a call may broadcast otherwise. ``kv_ends`` says that each query of causal attention has an end of its
    own, up to which it sees keys beside those of its past. ``dtype`` may be torch's, or short: ``"bf16"``. That of
    ``"float8_e4m3fn"`` is of queries, keys and values; the output is then of 16 bits.

    Example:
        >>> AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True).seq_kv
        1024
        >>> print(AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True, window=1024).window)
        None

    Raises:
        InvalidShapeError: a field is out of range or is none; the message names it, its value and what is allowed.
        UnknownNameError: the dtype does not exist.
    """

    FAMILY: ClassVar[tuple[str, ...]] = (
        *("dtype", "head_dim", "head_dim_v"),
        *("causal", "window", "softcap", "attn_mask", "sinks", "kv_ends"),
    )
    ABSENT: ClassVar[Mapping[str, "int | float | str | bool | None"]] = {
        "attn_mask": None,
        "sinks": False,
        "kv_ends": False,
    }
    REMOVED: ClassVar[Mapping[str, "int | float | str | bool | None"]] = {"varlen": False}

    batch: int
    heads: int
    kv_heads: int = _FOLLOWS
    seq_q: int
    seq_kv: int = _FOLLOWS
    head_dim: int
    head_dim_v: int = _FOLLOWS
    dtype: str = "bfloat16"
    causal: bool = False
    window: int | None = None
    softcap: bool = False
    attn_mask: str | None = None
    sinks: bool = False
    kv_ends: bool = False

    def __post_init__(self) -> None:
        self._follow({"kv_heads": "heads", "seq_kv": "seq_q", "head_dim_v": "head_dim"})
        if type(self.dtype) is not str or self.dtype not in DENSE_DTYPES:
            object.__setattr__(self, "dtype", parse_dense_dtype(self.dtype))
        self._require_int("batch", "heads", "kv_heads", "seq_q", "seq_kv")
        for name in ("head_dim", "head_dim_v"):
            width = getattr(self, name)
            if type(width) is not int or width % 8 or not 8 <= width <= MAX_HEAD_DIM:
                raise InvalidShapeError(
                    f"{name}={width!r} is not allowed; expected a multiple of 8 from 8 to {MAX_HEAD_DIM}"
                )
        if self.heads % self.kv_heads:
            raise InvalidShapeError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        self._require_bool("causal", "softcap", "sinks", "kv_ends")
        if self.window is not None:
            self._require_int("window")
            self._drop_idle_window()
        if self.kv_ends and not self.causal:
            raise InvalidShapeError(
                "kv_ends=True with causal=False is not allowed; expected causal=True, which it widens"
            )
        if self.attn_mask is not None and self.attn_mask not in MASKS:
            allowed = ", ".join(map(repr, MASKS))
            raise InvalidShapeError(f"attn_mask={self.attn_mask!r} is not allowed; expected None, {allowed}")

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    def _drop_idle_window(self) -> None:
        """Have no window where every query would see the same keys without it."""
        farthest = self.seq_kv if self.causal else max(self.seq_q, self.seq_kv)
        if self.window is not None and self.window >= farthest:
            object.__setattr__(self, "window", None)

    def coordinates(self) -> tuple[float, ...]:
        sizes = (self.batch, self.heads // self.kv_heads, self.kv_heads, self.seq_q, self.seq_kv)
        return tuple(map(math.log2, sizes))

    def __str__(self) -> str:
        lengths = f"seq {self.seq_q}" if self.seq_q == self.seq_kv else f"seq {self.seq_q} x {self.seq_kv}"
        heads = f"{self.heads} heads" if self.group == 1 else f"{self.heads}/{self.kv_heads} heads"
        dims = f"{self.head_dim}" if self.head_dim == self.head_dim_v else f"{self.head_dim}/{self.head_dim_v}"
        mask = "causal" if self.causal else "full"
        window = f", window {self.window}" if self.window else ""
        operand = f", {self.attn_mask} mask" if self.attn_mask else ""
        flags = "".join(f", {name}" for name in ("softcap", "sinks", "kv_ends") if getattr(self, name))
        return f"batch {self.batch}, {heads} of {dims}, {lengths}, {self.dtype}, {mask}{window}{operand}{flags}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedShape(Shape):
    """Attention over a paged cache: ``seq_q`` new queries of each sequence against all its keys so far.

    A page is ``[page_size, kv_heads, head_dim]`` in the layout ``NHD``, ``[kv_heads, page_size, head_dim]`` in ``HND``.
    Only the GPU knows the lengths: ``max_context`` bounds every sequence's, ``mean_context`` is their mean, in tokens;
    both are hints of how the work is spread, never read from the device. ``kv_heads``, ``mean_context``, ``head_dim_v``
    and ``kv_dtype`` follow ``heads``, ``max_context``, ``head_dim`` and ``dtype`` where they are not given. Queries are
    a sequence's last ``seq_q`` positions (their mean, rounded up, where sequences have different numbers of them) and
    see the keys up to their own; a ``window`` of W leaves the last W of them. There may be more queries than keys, as
    in problems that prefill is checked on: those before the first key see none. Without ``causal``, as in the cross
    attention of a decoder to what an encoder has read, each query sees all keys of its sequence; a ``window`` then
    leaves the keys closer than W positions.
    ``softcap``, ``sinks`` and ``alibi`` say whether the feature is on; its values are given at the call. Dtypes may be
    torch's, or short: ``"bf16"``, ``"fp8"``.

    Example:
        >>> PagedShape(batch=64, heads=32, kv_heads=8, max_context=8192, head_dim=128, page_size=16).mean_context
        8192
        >>> PagedShape(batch=64, heads=128, max_context=8192, head_dim=576).head_dim_v
        512

    Raises:
        InvalidShapeError: a field is out of range or is none; the message names it, its value and what is allowed.
        UnknownNameError: a dtype does not exist.
    """

    FAMILY: ClassVar[tuple[str, ...]] = (
        *("dtype", "kv_dtype", "head_dim", "head_dim_v", "page_size", "layout"),
        *("window", "softcap", "sinks", "alibi", "causal"),
    )
    ABSENT: ClassVar[Mapping[str, "int | float | str | bool | None"]] = {"causal": True}

    batch: int
    heads: int
    kv_heads: int = _FOLLOWS
    seq_q: int = 1
    max_context: int
    mean_context: int = _FOLLOWS
    head_dim: int
    head_dim_v: int = _FOLLOWS
    page_size: int = 16
    dtype: str = "bfloat16"
    kv_dtype: str = _FOLLOWS
    window: int | None = None
    softcap: bool = False
    sinks: bool = False
    alibi: bool = False
    layout: str = "NHD"
    causal: bool = True

    def __post_init__(self) -> None:
        if type(self.dtype) is not str or self.dtype not in QUERY_DTYPES:
            object.__setattr__(self, "dtype", parse_dtype(self.dtype))
        if self.is_latent:
            self._follow_latent()
        self._follow(
            {"kv_heads": "heads", "mean_context": "max_context", "head_dim_v": "head_dim", "kv_dtype": "dtype"}
        )
        if type(self.kv_dtype) is not str or self.kv_dtype not in KV_ITEM_BYTES:
            object.__setattr__(self, "kv_dtype", parse_kv_dtype(self.kv_dtype))
        object.__setattr__(self, "layout", parse_layout(self.layout))
        self._require_int("batch", "heads", "kv_heads", "seq_q")
        self._require_int("max_context", high=MAX_CONTEXT)
        self._require_int("mean_context", high=self.max_context)
        self._require_int("page_size", high=1024)
        if not self.is_latent:
            self._require_widths()
        if self.heads % self.kv_heads:
            raise InvalidShapeError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if self.window is not None:
            self._require_int("window")
        self._require_bool("softcap", "sinks", "alibi", "causal")

    def _follow_latent(self) -> None:
        """Give a cache of latents its one head and the width of its values, and refuse others."""
        for name, expected in (("kv_heads", 1), ("head_dim_v", LATENT_WIDTHS[self.head_dim])):
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, expected)
            elif type(value) is not int or value != expected:
                raise InvalidShapeError(
                    f"{name}={value!r} is not allowed with head_dim={self.head_dim}, which is of a cache of latents; "
                    f"expected {expected}"
                )

    def _require_widths(self) -> None:
        for name in ("head_dim", "head_dim_v"):
            width = getattr(self, name)
            if type(width) is not int or width % 8 or not (8 <= width <= 256 or width == 512):
                latents = ", ".join(f"{keys}/{values}" for keys, values in LATENT_WIDTHS.items())
                raise InvalidShapeError(
                    f"{name}={width!r} is not allowed; expected a multiple of 8 from 8 to 256, or 512, or head_dim and "
                    f"head_dim_v of latents: {latents}"
                )

    @property
    def is_latent(self) -> bool:
        """True of a cache of latents: values are the first columns of the keys, and lie nowhere else."""
        return type(self.head_dim) is int and self.head_dim in LATENT_WIDTHS

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def evenness(self) -> float:
        """The evenness of lengths, from above 0 to 1: their mean over the longest, which has no more tokens than all
        sequences together. Where each has as many programs as another, these are busy for this share of the time."""
        return self.mean_context / min(self.max_context, self.batch * self.mean_context)

    def coordinates(self) -> tuple[float, ...]:
        """Place the shape among its family: log2 of batch, heads per KV head, KV heads and queries, evenness times
        ``EVENNESS_WEIGHT``, and log2 of the mean length.

        The schedule of a decode follows how uneven lengths are, and its share of the work their mean: the longest is
        the table's capacity at most, however short the sequences.
        """
        sizes = [math.log2(size) for size in (self.batch, self.group, self.kv_heads, self.seq_q)]
        return (*sizes, EVENNESS_WEIGHT * self.evenness, math.log2(self.mean_context))

    def __str__(self) -> str:
        heads = f"{self.heads} heads" if self.group == 1 else f"{self.heads}/{self.kv_heads} heads"
        dims = f"{self.head_dim}" if self.head_dim == self.head_dim_v else f"{self.head_dim}/{self.head_dim_v}"
        queries = f"{self.seq_q} queries, " if self.seq_q > 1 else ""
        context = f"context {self.max_context}"
        if self.mean_context != self.max_context:
            context += f" (mean {self.mean_context})"
        dtype = self.dtype if self.kv_dtype == self.dtype else f"{self.dtype} over {self.kv_dtype}"
        features = [] if self.causal else ["full"]
        features += [f"window {self.window}"] if self.window else []
        features += [name for name in ("softcap", "sinks", "alibi") if getattr(self, name)]
        extras = "".join(f", {item}" for item in features)
        return (
            f"batch {self.batch}, {heads} of {dims}, {queries}{context}, {self.layout} pages of {self.page_size}, "
            f"{dtype}{extras}"
        )
