"""``autotune tables``: tables as artefacts, each command imported when it is run."""

from typing import Final

from autotune.console.command import Group, Reference

HERE: Final = "autotune.cli.tables"

tables: Final = Group(
    name="tables",
    help="List, compare, merge, check and tidy tables of trials.",
    references={
        "list": Reference(f"{HERE}.listing:list_tables", "List every file of the tables that are served from."),
        "diff": Reference(f"{HERE}.diff:diff", "Compare the winners of two tables."),
        "merge": Reference(f"{HERE}.merging:merge", "Add tables from anywhere to a folder of tables."),
        "pull": Reference(f"{HERE}.pulling:pull", "Copy a fleet's tables to this machine, to be served."),
        "digest": Reference(f"{HERE}.digesting:digest", "Print one digest of all that is served."),
        "import": Reference(f"{HERE}.importing:import_tables", "Check tables of others here, and add what holds."),
        "check": Reference(f"{HERE}.check:check", "Fail on damaged, stale or slower winners, for CI."),
        "prune": Reference(f"{HERE}.prune:prune", "Drop rows of your tables by rule."),
        "revalidate": Reference(f"{HERE}.revalidate:revalidate", "Race winners of an older toolchain again."),
        "compact": Reference(f"{HERE}.compact:compact", "Merge small files of your tables."),
    },
)
