"""The time of the least search of a shape: a budget that cannot hold one is refused before the search begins."""

import math
from dataclasses import dataclass
from typing import Any, Final

from autotune.device import Device
from autotune.errors import SearchError
from autotune.executor import Executor
from autotune.executor.select import ExecutorInfo
from autotune.operation import Operation
from autotune.roofline import least_us, product_dtype
from autotune.search.pace import ASSUMED_COMPILE_SECONDS
from autotune.search.result import MIN_RACE_SECONDS, Limits
from autotune.shape import Shape
from autotune.timing import MIN_REPLAY_US, MIN_ROUNDS

# The shortest race of fourteen sweeps, of four entrants on an H200: 0.27 s from the last screening to its rows, nearly
# all of it before the first round (2026-11-22, the rows' `started_at`).
RACE_SETUP_SECONDS: Final = 0.25
BINARIES: Final = 2  # of a candidate: the one that is screened, and the one that computes every output, for the race


@dataclass(frozen=True, slots=True)
class LeastSearch:
    """Seconds to check, to screen and to race the defaults alone, where their binaries are cached and where not.

    ``warm`` is a bound that no search goes below: launches take no time of the host and run at the device's peak.
    """

    warm: float
    cold: float


def least_search(operation: Operation[Any], shape: Shape, device: Device, *, defaults: int) -> LeastSearch:
    """Return what the least search takes, with so many implementations' defaults and one baseline in its race.

    Compiling takes what is assumed without a recording: reading the recordings would take a second of the budget.
    """
    launch_us = least_us(operation.cost(shape), device, product_dtype(operation, shape))
    rounds = MIN_ROUNDS * (defaults + 1) * max(MIN_REPLAY_US, launch_us) / 1e6
    warm = RACE_SETUP_SECONDS + rounds
    return LeastSearch(warm, warm + BINARIES * ASSUMED_COMPILE_SECONDS)


def check_budget(limits: Limits, least: LeastSearch | None, elapsed: float) -> str:
    """Return what is to be known of a budget before its search begins; empty where it holds one.

    Args:
        least: None where times come from a recording: then only the race's own part counts.
        elapsed: seconds of the budget that are gone, as by starting up.

    Raises:
        SearchError: it cannot hold a race, whatever is cached.
    """
    if limits.seconds is None:
        return ""
    budget = f"the budget of {limits.seconds:g} s"
    if limits.seconds <= limits.race_seconds:
        enough = math.ceil(MIN_RACE_SECONDS + (1.0 if least is None else 2 * MIN_RACE_SECONDS + elapsed + least.cold))
        needs = f"{limits.race_seconds:g} s are kept for its race; give it at least {enough} s"
        raise SearchError(f"{budget} cannot hold a search: {needs}")
    left = limits.seconds - elapsed
    if least is None or left >= least.cold:
        return ""
    enough = math.ceil(elapsed + least.cold + MIN_RACE_SECONDS)
    takes = f"{least.warm:.1f} s at least, {least.cold:.1f} s where nothing is compiled yet"
    if left < least.warm:
        raise SearchError(
            f"{budget} cannot hold a race: {elapsed:.1f} s went to starting up, and to check and race what is served "
            f"takes {takes}; give it at least {enough} s"
        )
    return f"{left:.1f} s are left of {limits.seconds:g} s, and to check and race what is served takes {takes}"


def check_start(
    operation: Operation[Any],
    shape: Shape,
    executor: Executor | ExecutorInfo,
    limits: Limits,
    *,
    elapsed: float,
    defaults: int,
) -> str:
    """Return what ``check_budget`` says of a search of which nothing is known, before anything is measured.

    Raises:
        SearchError: as there.
    """
    is_measured = executor.name != "replay"
    least = least_search(operation, shape, executor.device, defaults=defaults) if is_measured else None
    return check_budget(limits, least, elapsed)
