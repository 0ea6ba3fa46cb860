"""``autotune verify``: measure how near the best the served kernels are."""

from pathlib import Path

from autotune.cli.search import DEFAULT_TRIALS, settings_options
from autotune.console.command import command, integer, option
from autotune.console.options import (
    device_option,
    implementation_option,
    json_option,
    parse_seconds,
    tables_option,
)
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.executor.head_start import head_start
from autotune.executor.settings import Settings
from autotune.trial import LARGEST_SEED

SHAPES, BUDGET = 8, "30s"


@command("verify")
@option("--shapes", "count", type=integer(1), default=SHAPES, help="Shapes to measure at most.")
@option("--trials", type=integer(1), default=DEFAULT_TRIALS, help="Configs to measure at most, for each shape.")
@option("--budget", default=BUDGET, help="Time for each shape, as of search: 60, 60s, 2m.")
@option("--seed", type=integer(0, LARGEST_SEED), default=0, help="Seed of the shapes and of the studies.")
@implementation_option()
@device_option()
@tables_option
@json_option
@settings_options
@shape_options()
def verify(
    count: int,
    trials: int,
    budget: str,
    seed: int,
    implementations: tuple[str, ...],
    device: str | None,
    tables: Path | None,
    as_json: bool,
    settings: Settings,
    shape: ShapeOptions,
) -> None:
    """Measure how much longer the served kernel takes than the best of a short search, shape by shape.

    The shapes are those that sizes describe; else drawn by --seed of --model, prefill and decode, unless --operation
    names one (none are drawn of paged_prefill: those that a search would tune); without either those that get_kernel
    noted as missed, or drawn of the named models. At most --shapes of them are measured.

    All are looked up first, as get_kernel does today. Each is then searched, what is served is raced with the best, and
    winners are saved as search saves them, with what was served before. Without a GPU recorded sweeps answer: a
    shape that sizes describe or that was missed fails unless it is recorded itself, and of drawn ones the nearest
    recorded shapes are measured.
    """
    seconds = parse_seconds(budget)
    with head_start(settings) as begun:
        from autotune.cli.verified import VerifyRequest, run

        run(
            VerifyRequest(
                shape=shape,
                count=count,
                trials=trials,
                budget=seconds,
                seed=seed,
                implementations=implementations,
                device=device,
                settings=settings,
                tables=tables,
                as_json=as_json,
            ),
            begun,
        )
