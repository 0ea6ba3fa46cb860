"""Tables: trials as Parquet, the user's store, the shipped tables, and the winners among them."""

from autotune.table.audit import Audit, Fault, audit
from autotune.table.comparisons import write_comparisons
from autotune.table.difference import Difference, differences
from autotune.table.engine_files import engine_files
from autotune.table.exchange import from_json
from autotune.table.export import export
from autotune.table.inventory import FileSummary, RootSummary, all_roots, take_inventory
from autotune.table.merge import Merged, merge
from autotune.table.outsiders import Outsider
from autotune.table.parts import raise_damaged
from autotune.table.portfolios import Assignment, shipped_portfolios, write_portfolio
from autotune.table.pruning import Going, Rules, compact_store, prune
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
from autotune.table.roots import Origin, Root, extra_roots
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
from autotune.table.store import Store, home, read_misses, record_miss, warn_damaged
from autotune.table.t4 import to_t4
from autotune.table.vouched import TableFile, read_files, trials_of
from autotune.table.winners import ranked, tie_set, winners

__all__ = [
    "AS_EXPECTED",
    "AS_EXPECTED_SHARE",
    "Assignment",
    "Audit",
    "Difference",
    "Fault",
    "FileSummary",
    "Going",
    "Merged",
    "Origin",
    "Outsider",
    "Root",
    "RootSummary",
    "Rules",
    "Served",
    "ServedRegret",
    "Store",
    "Sweep",
    "TableFile",
    "all_roots",
    "as_expected",
    "audit",
    "compact_store",
    "differences",
    "engine_files",
    "export",
    "extra_roots",
    "from_json",
    "grid_path",
    "home",
    "is_shipped",
    "is_valid",
    "merge",
    "prune",
    "races_of",
    "raise_damaged",
    "ranked",
    "read_files",
    "read_misses",
    "record_miss",
    "regret_of",
    "served_of",
    "served_regrets",
    "served_winners",
    "shipped_grid",
    "shipped_outsiders",
    "shipped_portfolios",
    "shipped_sweeps",
    "shipped_winners",
    "stored_winners",
    "take_inventory",
    "tie_set",
    "to_t4",
    "trials_of",
    "undisturbed_times",
    "warn_damaged",
    "winners",
    "write_comparisons",
    "write_portfolio",
    "write_shipped",
]
