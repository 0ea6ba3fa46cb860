"""Options that several commands share, and the shapes that they describe."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from autotune.errors import UsageError
from autotune.models import ModelShape, find_model
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.shape import AttentionShape

TOKENS = 16384  # batch x seq of the field's benchmarks (FlashAttention papers)
HEADS, HEAD_DIM = 16, 128

OperationName = Annotated[str, typer.Option("--operation", help="What is computed.")]
Seq = Annotated[str, typer.Option("--seq", help="Sequence lengths: 1024, 512,1024 or 512,...,16384 (doubling).")]
SeqKv = Annotated[int | None, typer.Option("--seq-kv", help="Key length, where it differs from --seq.")]
Batch = Annotated[int | None, typer.Option("--batch", help=f"Batch size [default: max(1, {TOKENS} // seq)].")]
Heads = Annotated[int | None, typer.Option("--heads", help=f"Query heads [default: {HEADS}].")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", help="KV heads [default: as many as --heads].")]
HeadDim = Annotated[int | None, typer.Option("--head-dim", help=f"Head dimension [default: {HEAD_DIM}].")]
Dtype = Annotated[str, typer.Option("--dtype", help="float16, bfloat16 or float32 (fp16, bf16, fp32).")]
Causal = Annotated[bool | None, typer.Option("--causal/--no-causal", help="Mask the future [default: causal].")]
Window = Annotated[int | None, typer.Option("--window", help="Sliding window in keys.")]
Model = Annotated[str | None, typer.Option("--model", help="A model's name, or the path of a config.json.")]
TensorParallel = Annotated[int, typer.Option("--tp", help="GPUs that --model's heads are split over.", min=1)]
DeviceName = Annotated[str | None, typer.Option("--device", help="A device by name [default: the GPU here].")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def parse_lengths(text: str) -> list[int]:
    """Sequence lengths of ``1024``, ``512,1024`` or ``512,...,16384``, the last doubling from one end to the other.

    Example:
        >>> parse_lengths("512,...,2048")
        [512, 1024, 2048]
    """
    lengths: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for index, part in enumerate(parts):
        if part == "..." and 0 < index < len(parts) - 1:
            lengths += _doubling(lengths[-1], _length(parts[index + 1], text))
        else:
            lengths.append(_length(part, text))
    return list(dict.fromkeys(lengths))


def make_shapes(
    operation: str,
    *,
    seq: str,
    seq_kv: int | None = None,
    batch: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    dtype: str = "bfloat16",
    causal: bool | None = None,
    window: int | None = None,
    model: str | None = None,
    tp: int = 1,
) -> tuple[Operation[Any], list[AttentionShape]]:
    """The operation and one shape for each length; a model gives what is not said explicitly.

    Raises:
        UsageError: a value is out of range or unknown; the message names it.
    """
    found = get_operation(operation)
    base = _model(model, tp)
    heads = heads if heads is not None else (base.heads if base else HEADS)
    width = head_dim if head_dim is not None else (base.head_dim if base else HEAD_DIM)
    if base is None and tp != 1:
        raise UsageError(f"tp={tp} splits a model's heads; name one with --model")
    shapes = [
        AttentionShape(
            batch=max(1, TOKENS // max(1, length)) if batch is None else batch,
            heads=heads,
            kv_heads=kv_heads if kv_heads is not None else (base.kv_heads if base else heads),
            seq_q=length,
            seq_kv=length if seq_kv is None else seq_kv,
            head_dim=width,
            head_dim_v=base.head_dim_v if base and head_dim is None else width,
            dtype=dtype,
            causal=causal if causal is not None else (base.causal if base else True),
            window=window,
        )
        for length in parse_lengths(seq)
    ]
    return found, shapes


def parse_seconds(text: str) -> float:
    """Seconds of ``90``, ``90s`` or ``2m``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h)?", text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"budget={text!r} is not a time; expected seconds (90), or 90s, 2m, 1h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def _model(name: str | None, tp: int) -> ModelShape | None:
    return None if name is None else find_model(name).tensor_parallel(tp)


def _length(part: str, text: str) -> int:
    if not re.fullmatch(r"-?\d{1,12}", part):
        raise UsageError(f"seq={text!r} has {part!r}; expected lengths such as 1024, 512,1024 or 512,...,16384")
    return int(part)


def _doubling(first: int, last: int) -> Iterator[int]:
    """The lengths between two ends, doubling; the ends themselves are listed by the caller."""
    if first < 1:
        raise UsageError(f"seq={first} is not allowed; expected an integer from 1")
    length = 2 * first
    while length < last:
        yield length
        length *= 2
