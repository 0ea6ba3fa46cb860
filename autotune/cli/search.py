"""``autotune search`` and ``autotune sweep``: fill the tables."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args, get_type_hints

from autotune import platforms
from autotune.console.command import collected, command, integer, number, option
from autotune.console.options import (
    PATH,
    device_option,
    implementation_option,
    json_option,
    parse_seconds,
    tables_option,
)
from autotune.console.output import make_console
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.console.shapes import Problem, Wanted, describe, describe_model, require_none
from autotune.errors import UnknownNameError
from autotune.executor.select import Settings
from autotune.table import read_misses
from autotune.trial import Policy

DEFAULT_TRIALS, DEFAULT_BUDGET = 120, "60s"
NO_MISSES: Final = "nothing to tune: no shape was noted by get_kernel(shape, on_miss='record')"

USUAL: Final = Settings()

# Imports of autotune.search stand inside the functions: it loads Optuna, which --help need not.


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


@command("search")
@option(
    "--trials",
    type=integer(1),
    help="Configs to measure at most, for each shape. A search that has converged ends earlier.",
    default_text=f"{DEFAULT_TRIALS}; all if exhaustive",
)
@option(
    "--budget",
    default=DEFAULT_BUDGET,
    help=(
        "Time for each shape: 60, 60s, 2m. The race is included: 30 % are kept for it, 2 to 12 s. "
        "Where there is no GPU, compiling and checking the winner come on top."
    ),
)
@option("--sampler", help="Proposes configs: gp, tpe, random or exhaustive.", default_text="gp")
@option("--seed", type=integer(0, 2**32 - 1), default=0, help="Seed of the study.")
@implementation_option()
@option("--target", help="Also compile the finalists for sm_80, gfx942, A100, ...")
@option("--from-misses", is_flag=True, help="Tune the shapes that get_kernel noted as missed.")
@option("--dry-run", is_flag=True, help="Only say what would be tried and how long it would take.")
@device_option()
@tables_option
@json_option
@settings_options
@shape_options()
def search(
    trials: int | None,
    budget: str,
    sampler: str | None,
    seed: int,
    implementations: tuple[str, ...],
    target: str | None,
    from_misses: bool,
    dry_run: bool,
    device: str | None,
    tables: Path | None,
    as_json: bool,
    settings: Settings,
    shape: ShapeOptions,
) -> None:
    """Search the fastest correct config for each shape and save it.

    A --model without an --operation is tuned for prefill and for decode.

    With a GPU every config is compiled, checked and timed here. Without one, a sweep that was recorded on the named
    device answers the times, the finalists are compiled for it, and the winner's numbers are checked in Triton's
    interpreter. Press Ctrl-C to stop: what was measured is kept, and the next run continues.
    """
    from autotune.cli.studies import SearchRequest, preview, run
    from autotune.search import DEFAULT_SAMPLER, SAMPLERS

    if sampler is not None and sampler not in SAMPLERS:
        raise UnknownNameError(f"sampler={sampler!r} is unknown; allowed: {', '.join(SAMPLERS)}")
    if from_misses:
        require_none(shape, beside="--from-misses")
        workloads = read_misses()
        if not workloads:
            print("[]" if as_json else NO_MISSES)
            return
    else:
        workloads = _noted(describe_model(shape), as_json)
    if target is not None:
        platforms.target_device(target)  # refuses an unknown one before a GPU is looked for
    chosen = next((name for name in SAMPLERS if name == sampler), DEFAULT_SAMPLER)
    if trials is None and chosen != "exhaustive":
        trials = DEFAULT_TRIALS
    request = SearchRequest(
        shapes=workloads,
        implementations=implementations,
        budget=parse_seconds(budget),
        trials=trials,
        sampler=chosen,
        seed=seed,
        device=device,
        settings=settings,
        target=target,
        tables=tables,
        as_json=as_json,
    )
    (preview if dry_run else run)(request)


@command("sweep")
@implementation_option()
@option("--results", metavar="FOLDER", type=PATH, help="Also write <device>/<operation>/sweeps here.")
@tables_option
@json_option
@settings_options
@shape_options()
def sweep(
    implementations: tuple[str, ...],
    results: Path | None,
    tables: Path | None,
    as_json: bool,
    settings: Settings,
    shape: ShapeOptions,
) -> None:
    """Measure every valid config of each shape on this GPU: the ground truth that searches are judged by."""
    from autotune.cli.studies import SearchRequest, run

    request = SearchRequest(
        shapes=_noted(describe(shape), as_json),
        implementations=implementations,
        budget=None,
        trials=None,
        sampler="exhaustive",
        settings=replace(settings, early_stop=False),
        must_measure=True,
        ship_to=results,
        tables=tables,
        as_json=as_json,
    )
    run(request)


def _noted(wanted: Wanted, as_json: bool) -> list[Problem]:
    """Print the notes on problems, and return the problems."""
    for note in wanted.notes:
        make_console(as_json).print(note)
    return list(wanted.problems)
