"""``autotune search`` and ``autotune sweep``: fill the tables."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from autotune.cli import options, shapes
from autotune.device import architecture
from autotune.errors import UnknownNameError
from autotune.executor.select import Settings
from autotune.table import read_misses

DEFAULT_TRIALS, DEFAULT_BUDGET = 120, "60s"
NO_MISSES: Final = "nothing to tune: no shape was noted by get_kernel(shape, on_miss='record')"

Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        min=1,
        help=f"Configs to measure at most, for each shape [default: {DEFAULT_TRIALS}; all if exhaustive]. "
        "A search that has converged ends earlier.",
    ),
]
Budget = Annotated[
    str,
    typer.Option(
        "--budget", help="Time for each shape: 60, 60s, 2m. The race is included: 30 % are kept for it, 2 to 12 s."
    ),
]
Sampler = Annotated[
    str | None, typer.Option("--sampler", help="Who proposes: gp, tpe, random or exhaustive [default: gp].")
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the study.")]
Target = Annotated[str | None, typer.Option("--target", help="Also compile the finalists for sm_80, gfx942, ...")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the tables [default: $AUTOTUNE_HOME].")]
FromMisses = Annotated[bool, typer.Option("--from-misses", help="Tune the shapes that get_kernel noted as missed.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be tried and how long it would take.")]

# Imports of autotune.search stand inside the functions: it loads Optuna, which no other command should wait for.


@shapes.takes_models
@options.takes_settings
def search(
    *,
    wanted: shapes.Wanted,
    trials: Trials = None,
    budget: Budget = DEFAULT_BUDGET,
    sampler: Sampler = None,
    seed: Seed = 0,
    settings: Settings,
    device: options.DeviceName = None,
    target: Target = None,
    out: Out = None,
    from_misses: FromMisses = False,
    dry_run: DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Search the fastest correct config for each shape and save it.

    A --model without an --operation is tuned for prefill and for decode.

    With a GPU every config is compiled, checked and timed here. Without one, a sweep that was recorded on the named
    device answers the times, the finalists are compiled for it, and the winner's numbers are checked in Triton's
    interpreter. Press Ctrl-C to stop: what was measured is kept, and the next run continues.
    """
    from autotune.cli.studies import Task, preview, run
    from autotune.search import DEFAULT_SAMPLER, SAMPLERS, Limits

    if sampler is not None and sampler not in SAMPLERS:
        raise UnknownNameError(f"sampler={sampler!r} is unknown; allowed: {', '.join(SAMPLERS)}")
    problems = list(wanted.problems)
    if from_misses:
        problems = read_misses()
        if not problems:
            print("[]" if as_json else NO_MISSES)
            return
    if target is not None:
        architecture(target)  # refuses an unknown one before anything is searched
    chosen = next((name for name in SAMPLERS if name == sampler), DEFAULT_SAMPLER)
    if trials is None and chosen != "exhaustive":
        trials = DEFAULT_TRIALS
    task = Task(
        problems=problems,
        limits=Limits(trials, options.parse_seconds(budget), converge=chosen != "exhaustive"),
        settings=settings,
        sampler=chosen,
        seed=seed,
        device=device,
        target=target,
        out=out,
        as_json=as_json,
    )
    if dry_run:
        preview(task)
    else:
        run(task)


@shapes.takes_shapes
@options.takes_settings
def sweep(
    *,
    wanted: shapes.Wanted,
    settings: Settings,
    out: Out = None,
    results: Annotated[Path | None, typer.Option("--results", help="Also write results/<device>/sweeps here.")] = None,
    as_json: options.Json = False,
) -> None:
    """Measure every valid config of each shape on this GPU: the ground truth that searches are judged by."""
    from autotune.cli.studies import Task, run
    from autotune.search import Limits, SearchResult
    from autotune.search.sweeps import ship_sweep

    def ship(result: SearchResult) -> None:
        if results is not None:
            ship_sweep(result, results)

    task = Task(
        problems=list(wanted.problems),
        limits=Limits(),
        settings=replace(settings, early_stop=False),
        sampler="exhaustive",
        must_measure=True,
        ship=ship,
        out=out,
        as_json=as_json,
    )
    run(task)
