"""The options that describe shapes, and lists of sizes among them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from autotune.console.command import Decorator, Number, collected, flag_of, integer, option
from autotune.errors import UsageError

OPERATION: Final = "flash_attention"
TOKENS: Final = 16384  # batch x seq of the field's benchmarks (FlashAttention papers)
SEQ, CONTEXT, BATCH, PAGE_SIZE = "1024", "8192", "64", 16
SECTION: Final = "Shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """The shape options as they were given, None where one was left out; in the order of the help.

    Dense ones describe an ``AttentionShape``, paged ones a ``PagedShape``.
    """

    operation: str | None = None
    seq: str | None = None
    seq_kv: int | None = None
    context: str | None = None
    mean_context: int | None = None
    ragged: bool | None = None
    queries: int | None = None
    batch: str | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    page_size: int | None = None
    layout: str | None = None
    causal: bool | None = None
    window: int | None = None
    softcap: bool | None = None
    sinks: bool | None = None
    alibi: bool | None = None
    model: str | None = None
    tp: int | None = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class Declaration(NamedTuple):
    """A shape option in the help: its text, its defaults for dense attention and paged caches, and its type.

    An option without a ``paged`` default has one default for both, or none.
    """

    help: str
    dense: str = ""
    paged: str = ""
    kind: Number | type[str] | type[bool] = str

    @property
    def default_text(self) -> str:
        """The default, or both defaults."""
        return "; paged: ".join(filter(None, (self.dense, self.paged)))


DECLARATIONS: Final[Mapping[str, Declaration]] = {
    "operation": Declaration("What is computed.", OPERATION),
    "seq": Declaration("Dense: lengths, 1024, 512,1024 or 512,...,16384.", SEQ),
    "seq_kv": Declaration("Dense: key length, where it differs from --seq.", kind=integer()),
    "context": Declaration("Paged: tokens of the longest sequence, as --seq.", CONTEXT),
    "mean_context": Declaration("Paged: mean tokens of a sequence.", "--context", kind=integer()),
    "ragged": Declaration(
        "Paged: lengths uniform from 1 to --context; of a prefill a mixed batch: one new token each, but the last "
        "sequence has all others, at most --context. A batch of 1 stays as it is.",
        kind=bool,
    ),
    "queries": Declaration(
        "Paged: new tokens of a sequence, the mean where ragged.",
        "1; of a prefill 2048, at most --context",
        kind=integer(),
    ),
    "batch": Declaration("Sequences, as --seq.", f"max(1, {TOKENS} // seq)", f"{BATCH}, of a prefill 8"),
    "heads": Declaration("Query heads.", "16", "32", kind=integer()),
    "kv_heads": Declaration("KV heads.", "as many as --heads", "8", kind=integer()),
    "head_dim": Declaration("Head dimension.", "128", kind=integer()),
    "dtype": Declaration("float16, bfloat16 or float32 (fp16, bf16, fp32).", "bfloat16"),
    "kv_dtype": Declaration("Paged: dtype of the cache; also int8, float8_e4m3fn (fp8) or float8_e5m2.", "--dtype"),
    "page_size": Declaration("Paged: tokens of a page.", str(PAGE_SIZE), kind=integer()),
    "layout": Declaration("Paged: layout of the cache, NHD or HND.", "NHD"),
    "causal": Declaration("Dense: mask the future.", "causal", kind=bool),
    "window": Declaration("Sliding window in keys.", "none", kind=integer()),
    "softcap": Declaration("Bound the scores.", "no", kind=bool),
    "sinks": Declaration("Paged: a logit without a value.", "no", kind=bool),
    "alibi": Declaration("Paged: biases by distance.", "no", kind=bool),
    "model": Declaration("A model by name, or a config.json: other defaults for all of these."),
    "tp": Declaration("GPUs that --model's heads are split over.", "1", kind=integer(1)),
}


def shape_options(defaults: Mapping[str, str] | None = None, *, only: Sequence[str] = tuple(DECLARATIONS)) -> Decorator:
    """Add the shape options to a command, which takes them as one ``shape``.

    Args:
        defaults: other defaults for the help, by name; the command itself fills them in.
        only: the names of the options, where a command takes some alone.
    """
    texts = {name: DECLARATIONS[name].default_text for name in only} | dict(defaults or {})
    return collected("shape", ShapeOptions, {name: _declared(name, texts[name]) for name in only})


def _declared(name: str, default_text: str) -> Decorator:
    declaration, flag = DECLARATIONS[name], flag_of(name)
    given: dict[str, Any] = {"type": declaration.kind}
    if declaration.kind is bool:
        flag = flag if name == "ragged" else f"{flag}/{flag_of(f'no_{name}')}"
        given = {"is_flag": True, "default": None}
    return option(flag, name, section=SECTION, help=declaration.help, default_text=default_text, **given)


def parse_sizes(text: str, name: str) -> list[int]:
    """Parse ``1024``, ``512,1024`` or ``512,...,16384``, which doubles from one end to the other.

    Example:
        >>> parse_sizes("512,...,2048", "seq")
        [512, 1024, 2048]

    Raises:
        UsageError: the text has another form; the message begins with the option's name.
    """
    sizes: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for index, part in enumerate(parts):
        if part == "..." and 0 < index < len(parts) - 1:
            sizes += _doubling(sizes[-1], _size(parts[index + 1], text, name), name)
        else:
            sizes.append(_size(part, text, name))
    return list(dict.fromkeys(sizes))


def _size(part: str, text: str, name: str) -> int:
    if not re.fullmatch(r"-?\d{1,12}", part):
        raise UsageError(f"{name}={text!r} has {part!r}; expected sizes such as 1024, 512,1024 or 512,...,16384")
    return int(part)


def _doubling(first: int, last: int, name: str) -> Iterator[int]:
    """Return the sizes between two ends, doubling; the ends themselves are listed by the caller."""
    if first < 1:
        raise UsageError(f"{name}={first} is not allowed; expected an integer from 1")
    if last < first:
        raise UsageError(f"{name}={first},...,{last} ends below its start; expected {last},...,{first}")
    size = 2 * first
    while size < last:
        yield size
        size *= 2
