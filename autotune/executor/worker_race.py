"""In the worker: finalists and baselines measured interleaved on the full shape."""

import time
from collections.abc import Sequence
from contextlib import ExitStack

import torch

from autotune.executor import Baselines, Race, is_comparison
from autotune.executor.admission import Admission
from autotune.executor.harness import Announce, Harness
from autotune.executor.messages import Entrant
from autotune.timing import race
from autotune.trial import Candidate


def race_entrants(
    harness: Harness,
    candidates: Sequence[Candidate],
    *,
    seconds: float,
    baselines: Baselines,
    announce: Announce,
    without: Sequence[str] = (),
) -> Race:
    """Check finalists on the full shape, then measure those that pass and the baselines interleaved.

    Baselines whose names are in ``without`` are left out. The seconds begin with the call; in a comparison when all are
    ready, since there compilers and planners may take any time.

    Raises:
        UnopenedError: the reference of the full shape cannot be made.
    """
    deadline = time.monotonic() + seconds
    # Graphs take turns and are not read, so they share memory; torch takes no pool again whose last graph is gone.
    harness.pool = torch.cuda.graph_pool_handle()
    announce(None)
    with ExitStack() as stack:
        admission = Admission(harness, stack, announce, with_memory=is_comparison(baselines))
        verdicts, entrants, memory = admission.admit_candidates(candidates)
        if not entrants:
            return Race(tuple(verdicts))
        opened, results = admission.admit_baselines(baselines, without)
        if is_comparison(baselines):
            deadline = time.monotonic() + seconds
        announce(None)
        order: list[Entrant] = [*entrants, *opened]
        watch = harness.watch()
        timings = race(
            [*entrants.values(), *opened.values()],
            contenders=len(entrants),
            seconds=deadline - time.monotonic(),
            on_turn=lambda place: announce(order[place]),
        )
        announce(None)
        conditions = watch.end()
    for entrant, timing in zip(order, timings, strict=True):
        if isinstance(entrant, int):
            verdicts[entrant] = harness.judge_time(verdicts[entrant], timing, conditions)
        elif entrant is not None:
            results[entrant] = harness.judge_baseline(results[entrant], timing)
    return Race(tuple(verdicts), tuple(results.values()), memory)
