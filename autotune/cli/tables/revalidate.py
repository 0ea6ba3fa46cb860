"""``autotune tables revalidate``: winners of an older toolchain, raced again."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.search import settings_options
from autotune.cli.tables.paths import own_store
from autotune.console.command import command, integer, number, option
from autotune.console.options import json_option, tables_option
from autotune.console.output import make_console, print_json
from autotune.console.winners import trial_data
from autotune.errors import AutotuneError
from autotune.executor.settings import Settings
from autotune.units import count_text, percent_text, time_text

if TYPE_CHECKING:
    from autotune.tuning.revalidation import Outdated, Revalidated


@command("revalidate")
@option("--operation", "operations", multiple=True, help="What is computed; may be repeated.", default_text="all")
@option("--top", type=integer(1), default=3, help="Configs of each implementation to race, the default beside.")
@option("--seconds", type=number(0.5), default=3.0, help="Of each race, once its configs are compiled.")
@option("--dry-run", is_flag=True, help="Only list what is of another toolchain or source.")
@tables_option
@json_option
@settings_options
def revalidate(
    operations: tuple[str, ...],
    top: int,
    seconds: float,
    dry_run: bool,
    tables: Path | None,
    as_json: bool,
    settings: Settings,
) -> None:
    """Race the winners of the GPU here that another toolchain or source measured, with the few stored behind them.

    The rows of each race are added to your tables, and the newest race decides: a winner that wins again has a row of
    today's toolchain then, one that loses is replaced, and nothing is dropped. Needs a GPU.
    """
    store = own_store(tables)
    from autotune.executor.select import open_gpu
    from autotune.registry import get_operation
    from autotune.tuning.revalidation import find_outdated
    from autotune.tuning.revalidation import revalidate as race_again

    names = [get_operation(name).name for name in operations]
    console = make_console(as_json)

    def title(each: "Outdated") -> str:
        return f"{each.operation.name}, {each.shape}"

    def tell(result: "Revalidated") -> None:
        console.print(f"{result.verdict}: {title(result.outdated)}: {_text(result)} ({result.seconds:.1f} s)")

    with closing(open_gpu(settings)) as gpu:
        found = find_outdated(gpu.device, gpu.policy, gpu.toolchain_of, store, names)
        if dry_run:
            console.print(*(f"outdated: {title(each)}: {each.differs}" for each in found), sep="\n")
            console.print(count_text(len(found), "outdated shape"))
            results = []
        else:
            results = race_again(found, gpu, store, top=top, seconds=seconds, on_result=tell)
    if as_json:
        print_json(list(map(_data, results)) if not dry_run else [_outdated_data(each) for each in found])
    if dry_run:
        return
    verdicts = [each.verdict for each in results]
    console.print(", ".join(f"{verdicts.count(name)} {name}" for name in ("stamped", "replaced", "kept")))
    if failed := [each for each in results if each.verdict == "kept"]:
        raise AutotuneError(f"{count_text(len(failed), 'race')} decided nothing: {failed[0].failure}")


def _text(result: "Revalidated") -> str:
    winner = result.winner
    if winner is None or winner.timing is None:
        return result.failure
    gain = "" if result.loss is None or result.verdict == "stamped" else f", {percent_text(result.loss)} faster"
    return f"{winner.candidate}, {time_text(winner.timing.median_us)}{gain}"


def _outdated_data(outdated: "Outdated") -> dict[str, Any]:
    return {
        "operation": outdated.operation.name,
        "shape": outdated.shape.as_dict(),
        "differs": outdated.differs,
        "winners": [trial_data(trial) for trial in outdated.winners],
    }


def _data(result: "Revalidated") -> dict[str, Any]:
    return {
        **_outdated_data(result.outdated),
        "verdict": result.verdict,
        "winner": None if result.winner is None else trial_data(result.winner),
        "loss": result.loss,
        "failure": result.failure,
        "seconds": result.seconds,
    }
