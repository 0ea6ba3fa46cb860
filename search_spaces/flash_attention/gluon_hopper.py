"""The space of flash attention in Gluon for Hopper: parameters, validity and default."""

from pathlib import Path
from typing import Final

from autotune.implementation import Implementation
from autotune.search_spaces.flash_attention.gluon_hopper_bounds import reject, supports
from autotune.search_spaces.flash_attention.gluon_hopper_default import default, estimate
from autotune.search_spaces.flash_attention.hopper_ranking import is_ranked
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.space import Parameter, Space

PARAMETERS: Final = (
    Parameter("consumers", (1, 2, 3)),  # groups of four warps, of 64 rows of queries each
    Parameter("BLOCK_K", (64, 128)),
    Parameter("slots", (2, 3, 4)),  # of the rings of keys and of values
    Parameter("query_slots", (1, 2)),  # tiles whose queries are held at once
    Parameter("ping_pong", ("off", "issue")),  # whether consumers take turns to issue their scores
    Parameter("values", ("late", "early")),
    Parameter("results", ("own", "queries")),  # the memory that they leave through
    Parameter("workers", ("tiles", "sm", "sm-1", "sm-3", "2sm")),  # programs: one a tile, or so many in all
    Parameter("section", (1, 4, 16)),  # heads whose tiles of the same rows come one after the other
    Parameter("row_order", ("natural", "reversed", "alternating")),
)

IMPLEMENTATION: Final = Implementation(
    name="gluon_hopper",
    operation="flash_attention",
    space=Space(PARAMETERS, reject, default, estimate=estimate, is_learned=is_ranked),
    kernel="autotune.kernels.flash_attention.gluon_hopper:KERNEL",
    sources=(
        *kernel_files("flash_attention/gluon_hopper", "forward", "launch", "rings", "schedule", "turns", "weights"),
        *kernel_files("", "gluon"),
        Path(__file__).with_name("warp_groups.py"),
        *SHARED,
    ),
    entry=("launch",),
    supports=supports,
    can_interpret=False,
)
