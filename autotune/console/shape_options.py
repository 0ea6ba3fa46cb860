"""The options that describe shapes, and lists of sizes among them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

from autotune.console.command import Decorator, Number, collected, flag_of, integer, option
from autotune.errors import UsageError

OPERATION: Final = "flash_attention"
TOKENS: Final = 16384  # batch x seq of the field's benchmarks (FlashAttention papers)
SEQ, CONTEXT, BATCH, PAGE_SIZE = "1024", "8192", "64", 16
SECTION: Final = "Shape"


class Declaration(NamedTuple):
    """A shape option in the help: its text, its defaults for dense attention and paged caches, and its type.

    An option without a ``paged`` default has one default for all, or none; packed sequences have those of dense
    attention. The text of one that not all classes of shapes have begins with those that do: "Dense, varlen: ".
    """

    help: str
    dense: str = ""
    paged: str = ""
    kind: Number | type[str] | type[bool] = str

    @property
    def default_text(self) -> str:
        return "; paged: ".join(filter(None, (self.dense, self.paged)))


def _declare(help: str, dense: str = "", paged: str = "", kind: Number | type[str] | type[bool] = str) -> Any:
    return field(default=None, metadata={"declaration": Declaration(help, dense, paged, kind)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """The shape options as they were given, None where one was left out; in the order of the help."""

    operation: str | None = _declare("What is computed.", OPERATION)
    kernel: str | None = _declare(
        "A kernel of your own under autotune.tuned, my_package.kernels:rmsnorm, instead of --operation; takes --shape."
    )
    shape: tuple[str, ...] | None = _declare(
        "Any shape by the fields of its class, rows=4096,width=4096, instead of the options below; rows=64,128 or "
        "rows=64,...,4096 are several, and it may be repeated. Without --operation the one that has these fields."
    )
    seq: str | None = _declare(
        "Dense, varlen: lengths, 1024, 512,1024 or 512,...,16384; varlen: of the longest sequence.", SEQ
    )
    seq_kv: int | None = _declare("Dense, varlen: key length, where it differs from --seq.", kind=integer())
    mean_seq: int | None = _declare("Varlen: mean queries of a sequence.", "--seq", kind=integer())
    mean_seq_kv: int | None = _declare("Varlen: mean keys of a sequence.", "--mean-seq, or --seq-kv", kind=integer())
    context: str | None = _declare("Paged: tokens of the longest sequence, as --seq.", CONTEXT)
    mean_context: int | None = _declare("Paged: mean tokens of a sequence.", "--context", kind=integer())
    ragged: bool | None = _declare(
        "Paged, varlen: lengths uniform from 1 to --context or --seq; of a prefill a mixed batch: one new token each, "
        "but the last sequence has all others, at most --context. A batch of 1 stays as it is.",
        kind=bool,
    )
    queries: int | None = _declare(
        "Paged: new tokens of a sequence, the mean where ragged.",
        "1; of a prefill 2048, at most --context",
        kind=integer(),
    )
    batch: str | None = _declare("Sequences, as --seq.", f"max(1, {TOKENS} // seq)", f"{BATCH}, of a prefill 8")
    heads: int | None = _declare("Query heads.", "16", "32", integer())
    kv_heads: int | None = _declare("KV heads.", "as many as --heads", "8", integer())
    head_dim: int | None = _declare("Head dimension.", "128", kind=integer())
    dtype: str | None = _declare(
        "float16, bfloat16, float32 or, of flash_attention, float8_e4m3fn (fp16, ...).", "bfloat16"
    )
    kv_dtype: str | None = _declare(
        "Paged: dtype of the cache; also int8, float8_e4m3fn (fp8) or float8_e5m2.", "--dtype"
    )
    page_size: int | None = _declare("Paged: tokens of a page.", str(PAGE_SIZE), kind=integer())
    layout: str | None = _declare("Paged: layout of the cache, NHD or HND.", "NHD")
    causal: bool | None = _declare("Mask the future.", "causal", kind=bool)
    window: int | None = _declare("Sliding window in keys.", "none", kind=integer())
    softcap: bool | None = _declare("Bound the scores.", "no", kind=bool)
    attn_mask: str | None = _declare("Dense: an operand that masks scores, boolean or additive.", "none")
    sinks: bool | None = _declare("A logit without a value.", "no", kind=bool)
    kv_ends: bool | None = _declare("Dense: an end of visible keys for each query.", "no", kind=bool)
    alibi: bool | None = _declare("Paged: biases by distance.", "no", kind=bool)
    model: str | None = _declare("A model by name, or a config.json: other defaults for all of these.")
    tp: int | None = _declare("GPUs that --model's heads are split over.", "1", kind=integer(1))

    def given(self) -> dict[str, Any]:
        return {name: value for name in DECLARATIONS if (value := getattr(self, name)) not in (None, ())}


DECLARATIONS: Final[Mapping[str, Declaration]] = {
    each.name: each.metadata["declaration"] for each in fields(ShapeOptions)
}


def own_options(kind: str) -> tuple[str, ...]:
    """Return the names of the options that "Dense", "Varlen" or "Paged" shapes have and not all others do."""
    heads = {name: declaration.help.partition(": ")[0] for name, declaration in DECLARATIONS.items()}
    return tuple(name for name, head in heads.items() if kind.lower() in head.lower().split(", "))


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
    if name == "shape":
        given = {"multiple": True, "metavar": "FIELDS"}
    if declaration.kind is bool:
        flag = flag if name == "ragged" else f"{flag}/{flag_of(f'no_{name}')}"
        given = {"is_flag": True, "default": None}
    return option(flag, name, section=SECTION, help=declaration.help, default_text=default_text, **given)


def parse_sizes(text: str, name: str) -> list[int]:
    """Parse ``1024``, ``512,1024`` or ``512,...,16384``, which doubles from one end to the other; else UsageError.

    Example:
        >>> parse_sizes("512,...,2048", "seq")
        [512, 1024, 2048]
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
