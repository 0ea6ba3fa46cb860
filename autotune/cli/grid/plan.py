"""``autotune grid plan``: the tasks of a grid file, what they would cost, and what is known without them."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from autotune.console.command import command, integer, option
from autotune.console.options import PATH, json_option
from autotune.console.output import make_console, print_json, print_sheet
from autotune.grid.grid_file import read_grid_file
from autotune.grid.planning import JOBS, NEAR, GridPlan, PlannedTask, plan_grid
from autotune.sheets import Sheet, number, text

MAX_LISTED: Final = 3


@command("plan")
@click.argument("grid", metavar="GRID.toml", type=PATH)
@option("--jobs", type=integer(1), default=JOBS, help="Compilers at once that each GPU's host has for it.")
@json_option
def plan(grid: Path, jobs: int, as_json: bool) -> None:
    """Show the tasks of a grid file, the GPU hours that they are expected to take, and what is known already.

    Hours are by the recorded sweeps of each kind of device, and of no more than the budgets. What is served already and
    is expected within 3 % of the best is counted as known: a task has little to gain there. Nothing is written or run,
    but modules that the file imports.
    """
    found = read_grid_file(grid)
    planned = plan_grid(found.tasks, jobs=jobs)
    if as_json:
        print_json(_data(planned, found.notes))
        return
    console = make_console()
    print_sheet(console, _sheet(planned, grid))
    notes = [*found.notes, *planned.notes, *_problems(planned)]
    if notes:
        console.print("", *notes, sep="\n")


def _sheet(planned: GridPlan, grid: Path) -> Sheet:
    columns = (
        text("device"),
        text("operation"),
        number("tasks"),
        number("unsupported"),
        number(f"known within {NEAR:.0%}"),
    )
    hours = (number("GPU hours", ",.1f"), number("without known", ",.1f"), number("assumed"))
    rows = tuple(
        (
            *(each.device or "any", each.operation, each.tasks, each.unsupported, each.known),
            *(each.hours, each.open_hours, each.assumed),
        )
        for each in planned.groups
    )
    total = f"{len(planned.tasks):,} tasks"
    hours_text = f"{sum(each.hours for each in planned.groups):,.1f} GPU hours"
    return Sheet(f"{grid}: {total}, {hours_text}", (*columns, *hours), rows)


def _problems(planned: GridPlan) -> list[str]:
    lines = [f"unsupported: {each.task}: {each.problem}" for each in planned.tasks if each.problem]
    others = len(lines) - MAX_LISTED
    return lines[:MAX_LISTED] + ([f"unsupported: {others} more; --json has all"] if others > 0 else [])


def _data(planned: GridPlan, notes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "gpu_hours": sum(each.hours for each in planned.groups),
        "gpu_hours_without_known": sum(each.open_hours for each in planned.groups),
        "groups": [
            {**asdict(each), "gpu_hours": each.hours, "gpu_hours_without_known": each.open_hours}
            for each in planned.groups
        ],
        "tasks": [_task_data(each) for each in planned.tasks],
        "notes": [*notes, *planned.notes],
    }


def _task_data(each: PlannedTask) -> dict[str, Any]:
    return {
        "key": each.task.key,
        **each.task.as_dict(),
        "seconds": each.seconds,
        "seconds_from": each.pace_from,
        "expected_regret": each.expected_regret,
        "rung": each.rung,
        "is_known": each.is_known,
        "problem": each.problem,
    }
