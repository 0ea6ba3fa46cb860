"""Tables: trials as Parquet, the user's store, the shipped tables, and the winners among them."""

from autotune.table.comparisons import write_comparisons
from autotune.table.compilations import Compilation, shipped_compilations, write_compilations
from autotune.table.export import export
from autotune.table.merge import Merged, merge
from autotune.table.outsiders import Outsider
from autotune.table.parts import raise_damaged
from autotune.table.portfolios import Assignment, shipped_portfolios, write_portfolio
from autotune.table.regrets import (
    AS_EXPECTED,
    AS_EXPECTED_SHARE,
    ServedRegret,
    as_expected,
    races_of,
    regret_of,
    served_regrets,
    undisturbed_times,
)
from autotune.table.schema import table_schema
from autotune.table.served import Served, is_valid, served_of, served_winners, stored_winners
from autotune.table.shipped import (
    Sweep,
    grid_path,
    is_shipped,
    shipped_grid,
    shipped_outsiders,
    shipped_sweeps,
    shipped_winners,
    write_shipped,
)
from autotune.table.store import Store, home, read_misses, record_miss, warn_damaged, warn_open, why_open
from autotune.table.t4 import to_t4
from autotune.table.winners import ranked, tie_set, winners

__all__ = [
    "AS_EXPECTED",
    "AS_EXPECTED_SHARE",
    "Assignment",
    "Compilation",
    "Merged",
    "Outsider",
    "Served",
    "ServedRegret",
    "Store",
    "Sweep",
    "as_expected",
    "export",
    "grid_path",
    "home",
    "is_shipped",
    "is_valid",
    "merge",
    "races_of",
    "raise_damaged",
    "ranked",
    "read_misses",
    "record_miss",
    "regret_of",
    "served_of",
    "served_regrets",
    "served_winners",
    "shipped_compilations",
    "shipped_grid",
    "shipped_outsiders",
    "shipped_portfolios",
    "shipped_sweeps",
    "shipped_winners",
    "stored_winners",
    "table_schema",
    "tie_set",
    "to_t4",
    "undisturbed_times",
    "warn_damaged",
    "warn_open",
    "why_open",
    "winners",
    "write_comparisons",
    "write_compilations",
    "write_portfolio",
    "write_shipped",
]
