"""The options that describe problems, as they are given on the command line, and lists of sizes among them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

import typer

from autotune.errors import UsageError

OPERATION: Final = "flash_attention"
TOKENS: Final = 16384  # batch x seq of the field's benchmarks (FlashAttention papers)
SEQ, CONTEXT, BATCH, PAGE_SIZE = "1024", "8192", "64", 16

OperationName = Annotated[str | None, typer.Option("--operation", help=f"What is computed [default: {OPERATION}].")]
Seq = Annotated[
    str | None, typer.Option("--seq", help=f"Dense: lengths, 1024, 512,1024 or 512,...,16384 [default: {SEQ}].")
]
SeqKv = Annotated[int | None, typer.Option("--seq-kv", help="Dense: key length, where it differs from --seq.")]
Context = Annotated[
    str | None, typer.Option("--context", help=f"Paged: tokens of the longest sequence, as --seq [default: {CONTEXT}].")
]
MeanContext = Annotated[
    int | None, typer.Option("--mean-context", help="Paged: tokens of a sequence in the mean [default: --context].")
]
Ragged = Annotated[
    bool | None,
    typer.Option(
        "--ragged",
        help="Paged: lengths uniform from 1 to --context; of a prefill a mixed batch: one new token each, but the last "
        "sequence has all others, at most --context. A batch of 1 stays as it is.",
    ),
]
Queries = Annotated[
    int | None,
    typer.Option(
        "--queries",
        help="Paged: new tokens of a sequence, where ragged in the mean [default: 1; of a prefill 2048, at most "
        "--context].",
    ),
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch",
        help=f"Sequences, as --seq [default: max(1, {TOKENS} // seq); paged: {BATCH}, of a prefill 8].",
    ),
]
Heads = Annotated[int | None, typer.Option("--heads", help="Query heads [default: 16; paged: 32].")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", help="KV heads [default: as many as --heads; paged: 8].")]
HeadDim = Annotated[int | None, typer.Option("--head-dim", help="Head dimension [default: 128].")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="float16, bfloat16 or float32 (fp16, bf16, fp32) [default: bfloat16].")
]
KvDtype = Annotated[
    str | None,
    typer.Option(
        "--kv-dtype",
        help="Paged: dtype of the cache; also int8, float8_e4m3fn (fp8) or float8_e5m2 [default: --dtype].",
    ),
]
PageSize = Annotated[int | None, typer.Option("--page-size", help=f"Paged: tokens of a page [default: {PAGE_SIZE}].")]
Layout = Annotated[str | None, typer.Option("--layout", help="Paged: of the cache, NHD or HND [default: NHD].")]
Causal = Annotated[bool | None, typer.Option("--causal/--no-causal", help="Dense: mask the future [default: causal].")]
Window = Annotated[int | None, typer.Option("--window", help="Sliding window in keys [default: none].")]
Softcap = Annotated[bool | None, typer.Option("--softcap/--no-softcap", help="Bound the scores [default: no].")]
Sinks = Annotated[bool | None, typer.Option("--sinks/--no-sinks", help="Paged: a logit without a value [default: no].")]
Alibi = Annotated[bool | None, typer.Option("--alibi/--no-alibi", help="Paged: biases by distance [default: no].")]
Model = Annotated[
    str | None, typer.Option("--model", help="A model by name, or a config.json: other defaults for all of these.")
]
TensorParallel = Annotated[int, typer.Option("--tp", help="GPUs that --model's heads are split over.", min=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """The options as they were given, None where one was left out; in the order of the help.

    Dense ones are of ``AttentionShape``, paged ones of ``PagedShape``.
    """

    operation: OperationName = None
    seq: Seq = None
    seq_kv: SeqKv = None
    context: Context = None
    mean_context: MeanContext = None
    ragged: Ragged = None
    queries: Queries = None
    batch: Batch = None
    heads: Heads = None
    kv_heads: KvHeads = None
    head_dim: HeadDim = None
    dtype: Dtype = None
    kv_dtype: KvDtype = None
    page_size: PageSize = None
    layout: Layout = None
    causal: Causal = None
    window: Window = None
    softcap: Softcap = None
    sinks: Sinks = None
    alibi: Alibi = None
    model: Model = None
    tp: TensorParallel = 1

    def given(self) -> dict[str, Any]:
        """Those that were given, by name; of ``tp`` a default cannot be told apart."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def parse_sizes(text: str, name: str) -> list[int]:
    """The numbers of ``1024``, ``512,1024`` or ``512,...,16384``, the last doubling from one end to the other.

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
    """The sizes between two ends, doubling; the ends themselves are listed by the caller."""
    if first < 1:
        raise UsageError(f"{name}={first} is not allowed; expected an integer from 1")
    if last < first:
        raise UsageError(f"{name}={first},...,{last} ends below its start; expected {last},...,{first}")
    size = 2 * first
    while size < last:
        yield size
        size *= 2
