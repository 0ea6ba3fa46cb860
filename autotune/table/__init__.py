"""Tables: trials as Parquet, the user's store, the shipped tables, and the winners among them."""

from autotune.table.comparisons import write_comparisons
from autotune.table.export import export, to_t4
from autotune.table.merge import Merged, merge
from autotune.table.outsiders import Outsider
from autotune.table.parts import raise_damaged
from autotune.table.portfolios import Assignment, shipped_portfolios, write_portfolio
from autotune.table.served import Served, served_winners
from autotune.table.shipped import Sweep, is_shipped, shipped_outsiders, shipped_sweeps, shipped_winners, write_shipped
from autotune.table.store import Store, home, read_misses, record_miss, warn_damaged
from autotune.table.winners import ranked, tie_set, winners

__all__ = [
    "Assignment",
    "Merged",
    "Outsider",
    "Served",
    "Store",
    "Sweep",
    "export",
    "home",
    "is_shipped",
    "merge",
    "raise_damaged",
    "ranked",
    "read_misses",
    "record_miss",
    "served_winners",
    "shipped_outsiders",
    "shipped_portfolios",
    "shipped_sweeps",
    "shipped_winners",
    "tie_set",
    "to_t4",
    "warn_damaged",
    "winners",
    "write_comparisons",
    "write_portfolio",
    "write_shipped",
]
