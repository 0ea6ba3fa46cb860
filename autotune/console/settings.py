"""Options for the use of a GPU: policy, caches, compilers and time limits."""

import functools
from typing import Final, get_args, get_type_hints

from autotune.console.command import collected, integer, number, option
from autotune.errors import UnknownNameError
from autotune.executor.select import Settings
from autotune.trial import Policy

USUAL: Final = Settings()


def _make_settings(policy: str, cache: str, jobs: int | None, compile_timeout: float, timeout: float) -> Settings:
    modes, caches = (get_args(hint) for hint in get_type_hints(Policy).values())
    for name, value, allowed in (("policy", policy, modes), ("cache", cache, caches)):
        if value not in allowed:
            raise UnknownNameError(f"{name}={value!r} is unknown; allowed: {', '.join(allowed)}")
    chosen = Policy(policy, cache)  # type: ignore[arg-type]
    return Settings(policy=chosen, jobs=jobs, compile_seconds=compile_timeout, screen_seconds=timeout)


_option: Final = functools.partial(option, section="Measuring")
_seconds: Final = functools.partial(_option, metavar="SECONDS", type=number(1.0))

settings_options: Final = collected(
    "settings",
    _make_settings,
    {
        "policy": _option(
            "--policy", default=USUAL.policy.mode, help="Time by CUDA graph, or launch from Python: graph, eager."
        ),
        "cache": _option(
            "--cache", default=USUAL.policy.cache, help="Rotate over inputs beyond the L2, or repeat one: cold, warm."
        ),
        "jobs": _option("--jobs", type=integer(1), help="Compilers at once.", default_text="as cores and memory allow"),
        "compile_timeout": _seconds(
            "--compile-timeout", default=USUAL.compile_seconds, help="Limit to compile a config."
        ),
        "timeout": _seconds("--timeout", default=USUAL.screen_seconds, help="Limit to screen one on the GPU."),
    },
)
