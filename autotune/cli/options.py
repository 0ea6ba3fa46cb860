"""Options that several commands share, each said once, and what they describe: shapes, and how a GPU is used."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

import typer

from autotune.cli.output import make_console
from autotune.errors import UnknownNameError, UsageError
from autotune.executor.select import Settings
from autotune.models import ModelShape, find_model
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.shape import AttentionShape
from autotune.trial import Policy

TOKENS: Final = 16384  # batch x seq of the field's benchmarks (FlashAttention papers)
HEADS, HEAD_DIM = 16, 128
USUAL: Final = Settings()
MODES, CACHES = (get_args(hint) for hint in get_type_hints(Policy).values())

OperationName = Annotated[str, typer.Option("--operation", help="What is computed.")]
Seq = Annotated[str, typer.Option("--seq", help="Sequence lengths: 1024, 512,1024 or 512,...,16384 (doubling).")]
SeqKv = Annotated[int | None, typer.Option("--seq-kv", help="Key length, where it differs from --seq.")]
Batch = Annotated[int | None, typer.Option("--batch", help=f"Batch size [default: max(1, {TOKENS} // seq)].")]
Heads = Annotated[int | None, typer.Option("--heads", help=f"Query heads [default: {HEADS}].")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", help="KV heads [default: as many as --heads].")]
HeadDim = Annotated[int | None, typer.Option("--head-dim", help=f"Head dimension [default: {HEAD_DIM}].")]
Dtype = Annotated[str, typer.Option("--dtype", help="float16, bfloat16 or float32 (fp16, bf16, fp32).")]
Causal = Annotated[bool | None, typer.Option("--causal/--no-causal", help="Mask the future [default: causal].")]
Window = Annotated[int | None, typer.Option("--window", help="Sliding window in keys [default: none].")]
Softcap = Annotated[bool | None, typer.Option("--softcap/--no-softcap", help="Bound the scores [default: no].")]
Model = Annotated[
    str | None, typer.Option("--model", help="A model by name, or a config.json: other defaults for all of these.")
]
TensorParallel = Annotated[int, typer.Option("--tp", help="GPUs that --model's heads are split over.", min=1)]

PolicyMode = Annotated[str, typer.Option("--policy", help="Time by CUDA graph or launch from Python: graph, eager.")]
Cache = Annotated[str, typer.Option("--cache", help="Rotate over inputs beyond the L2, or repeat one: cold, warm.")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Compilers at once [default: as cores and memory allow].")
]
CompileTimeout = Annotated[
    float, typer.Option("--compile-timeout", metavar="SECONDS", min=1.0, help="For compiling a config.")
]
ScreenTimeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=1.0, help="For checking and screening it on the GPU.")
]

DeviceName = Annotated[str | None, typer.Option("--device", help="A device by name [default: the GPU here].")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]

Command = Callable[..., None]
T = TypeVar("T")


class Wanted(NamedTuple):
    """What the shape options describe: an operation, one shape for each length, and what is to be said of them."""

    operation: Operation[Any]
    shapes: tuple[AttentionShape, ...]
    notes: tuple[str, ...] = ()


def make_shapes(
    operation: OperationName = "flash_attention",
    seq: Seq = "1024",
    seq_kv: SeqKv = None,
    batch: Batch = None,
    heads: Heads = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    dtype: Dtype = "bfloat16",
    causal: Causal = None,
    window: Window = None,
    softcap: Softcap = None,
    model: Model = None,
    tp: TensorParallel = 1,
) -> Wanted:
    """The operation and one shape for each length; a model gives what is not said explicitly.

    Raises:
        UsageError: a value is out of range or unknown; the message names it.
    """
    found = get_operation(operation)
    if found.shape_class is not AttentionShape:
        kind = found.shape_class.__name__
        raise UsageError(f"operation={operation!r} takes a {kind}, which no option describes yet; use Python")
    if model is None and tp != 1:
        raise UsageError(f"tp={tp} splits a model's heads; name one with --model")
    if model is None:
        usual = HEADS if heads is None else heads
        base = ModelShape("", usual, usual, HEAD_DIM)
    else:
        base = find_model(model).tensor_parallel(tp)
        _require_fit(base, heads, kv_heads)
    width = _given(head_dim, base.head_dim)
    shapes = [
        AttentionShape(
            batch=_given(batch, max(1, TOKENS // max(1, length))),
            heads=_given(heads, base.heads),
            kv_heads=_given(kv_heads, base.kv_heads),
            seq_q=length,
            seq_kv=_given(seq_kv, length),
            head_dim=width,
            head_dim_v=base.head_dim_v if head_dim is None else width,
            dtype=dtype,
            causal=_given(causal, base.causal),
            window=base.window if window is None and not base.mixes_windows else window,
            softcap=_given(softcap, base.softcap is not None),
        )
        for length in parse_lengths(seq)
    ]
    notes = []
    if base.mixes_windows and window is None:
        notes = [
            f"only some layers of {base.name} have its window of {base.window} keys: "
            f"this is for the others; --window {base.window} names those"
        ]
    return Wanted(found, tuple(shapes), tuple(notes))


def make_settings(
    policy: PolicyMode = USUAL.policy.mode,
    cache: Cache = USUAL.policy.cache,
    jobs: Jobs = USUAL.jobs,
    compile_timeout: CompileTimeout = USUAL.compile_seconds,
    timeout: ScreenTimeout = USUAL.screen_seconds,
) -> Settings:
    """How a GPU is used.

    Raises:
        UsageError: a policy that does not exist.
    """
    return Settings(
        policy=Policy(_one_of("policy", policy, MODES), _one_of("cache", cache, CACHES)),
        jobs=jobs,
        compile_seconds=compile_timeout,
        screen_seconds=timeout,
    )


def takes_shapes(command: Command) -> Command:
    """Give a command the shape options in place of its parameter ``wanted``, and call it with what they describe."""

    @functools.wraps(command)
    def run(*, wanted: Wanted, **others: Any) -> None:
        for note in wanted.notes:
            make_console(others["as_json"]).print(note)
        command(wanted=wanted, **others)

    return _with_options(run, "wanted", make_shapes)


def takes_settings(command: Command) -> Command:
    """Give a command the options of measuring in place of its parameter ``settings``."""
    return _with_options(command, "settings", make_settings)


def _with_options(command: Command, name: str, make: Callable[..., Any]) -> Command:
    """A command that takes the parameters of ``make`` instead of one parameter, and passes on what ``make`` returns."""
    added = inspect.signature(make).parameters

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = make(**{option: values.pop(option) for option in added})
        command(**{name: made}, **values)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        parameters += added.values() if parameter.name == name else [parameter]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return run


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


def parse_seconds(text: str) -> float:
    """Seconds of ``90``, ``90s`` or ``2m``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h)?", text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"budget={text!r} is not a time; expected seconds (90), or 90s, 2m, 1h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def _require_fit(base: ModelShape, heads: int | None, kv_heads: int | None) -> None:
    """Refuse heads that do not share the KV heads of the model, or the other way round, by the model's name."""
    if heads is not None and kv_heads is None and heads % base.kv_heads:
        raise UsageError(
            f"heads={heads} is not a multiple of the {base.kv_heads} KV heads of {base.name}; "
            f"expected {base.kv_heads}, {2 * base.kv_heads}, ... or --kv-heads as well"
        )
    if kv_heads is not None and kv_heads > 0 and heads is None and base.heads % kv_heads:
        raise UsageError(
            f"kv_heads={kv_heads} does not divide the {base.heads} heads of {base.name}; "
            "expected one that does, or --heads as well"
        )


def _given(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


def _one_of(name: str, value: str, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise UnknownNameError(f"{name}={value!r} is unknown; allowed: {', '.join(allowed)}")
    return value


def _length(part: str, text: str) -> int:
    if not re.fullmatch(r"-?\d{1,12}", part):
        raise UsageError(f"seq={text!r} has {part!r}; expected lengths such as 1024, 512,1024 or 512,...,16384")
    return int(part)


def _doubling(first: int, last: int) -> Iterator[int]:
    """The lengths between two ends, doubling; the ends themselves are listed by the caller."""
    if first < 1:
        raise UsageError(f"seq={first} is not allowed; expected an integer from 1")
    if last < first:
        raise UsageError(f"seq={first},...,{last} ends below its start; expected {last},...,{first}")
    length = 2 * first
    while length < last:
        yield length
        length *= 2
