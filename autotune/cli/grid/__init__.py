"""``autotune grid``: grids of tasks, each command imported when it is run."""

from typing import Final

from autotune.console.command import Group, Reference

HERE: Final = "autotune.cli.grid"

grid: Final = Group(
    name="grid",
    help="Plan a grid of tasks, and look at it while a fleet runs it.",
    references={
        "plan": Reference(f"{HERE}.plan:plan", "Show the tasks, their GPU hours, and what is known.", is_reader=True),
        "status": Reference(f"{HERE}.status:status", "Show how far the tasks of a place are.", is_reader=True),
    },
)
