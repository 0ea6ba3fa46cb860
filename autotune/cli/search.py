"""``autotune search`` and ``autotune sweep``: fill the tables."""

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args, get_type_hints

from autotune import platforms
from autotune.cli.grid_options import KEYS_OF_GRIDS, OF_GRIDS, GridOptions, grid_options
from autotune.console.command import collected, command, integer, number, option, typed_options
from autotune.console.options import (
    PATH,
    device_option,
    implementation_option,
    json_option,
    parse_seconds,
    parse_share,
    tables_option,
)
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.console.shapes import Problem, Wanted, describe, describe_model, require_none
from autotune.errors import UnknownNameError, UsageError
from autotune.executor.head_start import head_start
from autotune.executor.settings import GpuNames, Settings
from autotune.trial import LARGEST_SEED, Policy

if TYPE_CHECKING:
    pass

DEFAULT_TRIALS, DEFAULT_BUDGET = 120, "60s"
DENSIFY_BUDGET, ABOVE = "10m", "5%"
NO_MISSES: Final = "nothing to tune: no shape was noted by get_kernel(shape, on_miss='record')"

USUAL: Final = Settings()

# Imports of autotune.search, autotune.table and what prints stand inside the functions: they load Optuna, pyarrow and
# rich, which --help need not, and the GPU's children import torch meanwhile.


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
    help=(
        "Time for each shape: 60, 60s, 2m. The race is included: 30 % are kept for it, 2 to 12 s. "
        "Where there is no GPU, compiling and checking the winner come on top."
    ),
    default_text=f"{DEFAULT_BUDGET}; with --densify {DENSIFY_BUDGET} for all shapes",
)
@option("--sampler", help="Proposes configs: gp, tpe, random or exhaustive.", default_text="gp")
@option("--seed", type=integer(0, LARGEST_SEED), default=0, help="Seed of the study.")
@implementation_option()
@option(
    "--gpus",
    metavar="LIST",
    help=(
        "Search on several GPUs of one kind at once: all, or 0,1,... as torch counts them. Each takes a shape; where "
        "fewer are left they screen one together. With --json the parts of the GPUs are printed beside the results."
    ),
)
@option("--target", help="Also compile the finalists for sm_80, gfx942, A100, ...")
@option("--from-misses", is_flag=True, help="Tune the shapes that get_kernel noted as missed.")
@option("--densify", is_flag=True, help="Tune only what is served far from the best, or nobody knows how near.")
@option("--above", metavar="PERCENT", help="The regret that --densify tunes from, in percent.", default_text=ABOVE)
@option("--dry-run", is_flag=True, help="Only say what would be tried and how long it would take.")
@device_option()
@tables_option
@json_option
@settings_options
@grid_options
@shape_options()
def search(
    trials: int | None,
    budget: str | None,
    sampler: str | None,
    seed: int,
    implementations: tuple[str, ...],
    gpus: str | None,
    target: str | None,
    from_misses: bool,
    densify: bool,
    above: str | None,
    dry_run: bool,
    device: str | None,
    tables: Path | None,
    as_json: bool,
    settings: Settings,
    grid: GridOptions | None,
    shape: ShapeOptions,
) -> None:
    """Search the fastest correct config for each shape and save it.

    A --model without an --operation is tuned for prefill and for decode.

    With a GPU every config is compiled, checked and timed here. Without one, a sweep that was recorded on the named
    device answers the times, the finalists are compiled for it, and the winner's numbers are checked in Triton's
    interpreter. Press Ctrl-C to stop: what was measured is kept, and the next run continues.

    With --densify the shapes, or without any the missed ones, are looked up first. Those whose expected regret, or that
    of the same config in a race of a shape near by, is above --above are tuned, the largest first, then those of which
    nothing is known, as many as --budget has a minute for.

    With --grid the tasks of a file are searched on a Ray cluster, each on a GPU of its device kind.
    """
    if grid is not None:
        _search_grid(grid, shape, as_json)
        return
    if above is not None and not densify:
        raise UsageError(f"above={above!r} is the bound of --densify; name both or neither")
    bound = parse_share(ABOVE if above is None else above, "above")
    if from_misses:
        require_none(shape, beside="--from-misses")
    is_missed = from_misses or (densify and not shape.given())
    workloads = _read_misses() if is_missed else _noted(describe_model(shape), as_json)
    if not workloads:
        print("[]" if as_json else NO_MISSES)
        return
    if target is not None:
        platforms.target_device(target)  # refuses an unknown one before a GPU is looked for
    usual = DENSIFY_BUDGET if densify else DEFAULT_BUDGET
    seconds, wanted = parse_seconds(usual if budget is None else budget), parse_gpus(gpus)
    is_one = wanted is None and not (dry_run or densify)  # --densify first looks all shapes up
    with head_start(settings, on_gpu=is_one) as begun:
        from autotune.cli.studies import SearchRequest, preview, run
        from autotune.search import DEFAULT_SAMPLER, read_sampler

        chosen = DEFAULT_SAMPLER if sampler is None else read_sampler(sampler)
        request = SearchRequest(
            shapes=workloads,
            implementations=implementations,
            budget=seconds,
            trials=DEFAULT_TRIALS if trials is None and chosen != "exhaustive" else trials,
            sampler=chosen,
            seed=seed,
            device=device,
            gpus=wanted,
            settings=settings,
            target=target,
            tables=tables,
            as_json=as_json,
        )
        if densify:
            from autotune.cli.densify import choose_sparse

            request = choose_sparse(request, bound)
            if not request.shapes:
                if as_json:
                    print("[]")
                return
        if dry_run:
            preview(request)
        else:
            run(request, begun)


def parse_gpus(text: str | None) -> GpuNames | None:
    """Return the GPUs that ``--gpus`` names.

    Example:
        >>> parse_gpus("0,2"), parse_gpus("all"), parse_gpus(None)
        ((0, 2), 'all', None)
    """
    if text is None:
        return None
    if text == "all":
        return "all"
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UsageError(f"gpus={text!r} is not allowed; expected all, or indices as torch counts them, such as 0,1")
    return tuple(map(int, text.split(",")))


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
    shapes, settings = _noted(describe(shape), as_json), replace(settings, early_stop=False)
    with head_start(settings) as begun:
        from autotune.cli.studies import SearchRequest, run

        request = SearchRequest(
            shapes=shapes,
            implementations=implementations,
            budget=None,
            trials=None,
            sampler="exhaustive",
            settings=settings,
            must_measure=True,
            ship_to=results,
            tables=tables,
            as_json=as_json,
        )
        run(request, begun)


def _search_grid(grid: GridOptions, shape: ShapeOptions, as_json: bool) -> None:
    """Search the tasks of a grid; UsageError for an option that is none of grids."""
    require_none(shape, beside="--grid")
    _require_no_others(typed_options())
    from autotune.cli.grid_run import run_grid

    run_grid(grid, as_json=as_json)


def _read_misses() -> list[Problem]:
    from autotune.table import read_misses

    return read_misses()


def _require_no_others(typed: Mapping[str, object]) -> None:
    """Raise UsageError for an option beside ``--grid`` that is none of grids."""
    for name, value in typed.items():
        if name not in OF_GRIDS:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            key = KEYS_OF_GRIDS.get(name)
            where = (
                "leave it out: nodes measure in the usual way, and `autotune grid plan FILE` shows what they will"
                if key is None
                else f"write {key} into the file"
            )
            raise UsageError(f"{name}={shown!r} and --grid exclude each other; {where}")


def _noted(wanted: Wanted, as_json: bool) -> list[Problem]:
    """Print the notes on problems, and return the problems."""
    if wanted.notes:
        from autotune.console.output import make_console

        make_console(as_json).print(*wanted.notes, sep="\n")
    return list(wanted.problems)
