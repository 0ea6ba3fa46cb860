"""What is remembered: trials as Parquet, the user's store, the shipped tables, and the winners among them."""

from autotune.table.comparisons import write_comparisons
from autotune.table.export import export, read_csv, read_json
from autotune.table.merge import Merged, merge
from autotune.table.misses import read_misses, record_miss
from autotune.table.served import Served, served_winners
from autotune.table.shipped import Sweep, shipped_sweeps, shipped_winners, write_shipped
from autotune.table.store import Store, home, raise_damaged, warn_damaged
from autotune.table.t4 import to_t4
from autotune.table.winners import tie_set, winners

__all__ = [
    "Merged",
    "Served",
    "Store",
    "Sweep",
    "export",
    "home",
    "merge",
    "raise_damaged",
    "read_csv",
    "read_json",
    "read_misses",
    "record_miss",
    "served_winners",
    "shipped_sweeps",
    "shipped_winners",
    "tie_set",
    "to_t4",
    "warn_damaged",
    "winners",
    "write_comparisons",
    "write_shipped",
]
