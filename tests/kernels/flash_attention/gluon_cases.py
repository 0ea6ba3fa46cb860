"""Schedules of the Gluon kernel: what its tests compile and simulate."""

from typing import Any, Final

from autotune.kernels.flash_attention.gluon_hopper.schedule import WarpSchedule

PLAIN: Final = WarpSchedule(
    consumers=2,
    block_k=128,
    slots=2,
    registers=240,
    ping_pong="off",
    values_early=False,
    rows_first=True,
    row_order="natural",
    out_in_queries=False,
)
CAUSAL: Final = PLAIN._replace(row_order="reversed", ping_pong="issue")
# By name: the heads' width, features beside none, and a schedule that is compiled for it.
SCHEDULES: Final[dict[str, tuple[int, dict[str, Any], WarpSchedule]]] = {
    "64": (64, {}, PLAIN),
    "128": (128, {}, PLAIN),
    "128 causal": (128, {"causal": True}, CAUSAL),
    "128 window and softcap": (
        128,
        {"causal": True, "window": 512, "softcap": 20.0},
        CAUSAL._replace(values_early=True),
    ),
    "256": (256, {}, PLAIN._replace(block_k=64, out_in_queries=True)),
    "three consumers": (64, {"causal": True}, CAUSAL._replace(consumers=3, block_k=64, registers=160, slots=3)),
    "one consumer": (128, {}, PLAIN._replace(consumers=1, values_early=True, rows_first=False)),
}
