"""Options that several commands share, each said once; and how a command takes a set of options."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, get_args, get_type_hints

import typer

from autotune.errors import UnknownNameError, UsageError
from autotune.executor.select import Settings
from autotune.trial import Policy

USUAL: Final = Settings()
MODES, CACHES = (get_args(hint) for hint in get_type_hints(Policy).values())

OperationName = Annotated[str, typer.Option("--operation", help="What is computed.")]
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

DeviceName = Annotated[
    str | None, typer.Option("--device", help="A device by name [default: the GPU here, or NVIDIA H200].")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]

Command = Callable[..., None]


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


def takes_settings(command: Command) -> Command:
    """Give a command the options of measuring in place of its parameter ``settings``."""
    return with_options(command, "settings", make_settings)


def with_options(command: Command, name: str, make: Callable[..., Any]) -> Command:
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


def flag_of(name: str) -> str:
    """How an option is typed: ``"kv_heads"`` is ``--kv-heads``."""
    return f"--{name.replace('_', '-')}"


def parse_seconds(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``2m`` or ``1m30s``.

    Raises:
        UsageError: the text is no time, or none at all.
    """
    expected = "expected more than 0 seconds (90), or 90s, 2m, 1m30s, 1h"
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"(?:{number}\s*h)?\s*(?:{number}\s*m)?\s*(?:{number}\s*s?)?", text.strip())
    if match is None or not any(match.groups()):
        raise UsageError(f"budget={text!r} is not a time; {expected}")
    seconds = sum(float(part or 0) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True))
    if seconds == 0:
        raise UsageError(f"budget={text!r} is not allowed; {expected}")
    return seconds


def _one_of(name: str, value: str, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise UnknownNameError(f"{name}={value!r} is unknown; allowed: {', '.join(allowed)}")
    return value
