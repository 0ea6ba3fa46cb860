"""Runs of Kernel Tuner's strategies on a cache file: ``python kernel_tuner_script.py REQUEST``.

For the interpreter that has Kernel Tuner, so nothing of ours is imported. The request is the JSON of ``{cache,
strategy, seeds, budget, asks, timeout_seconds}``; printed is a list of ``{seed, batches, asking_seconds, stopped}``:
the configs in the order of their first evaluation, by their place in the cache file, those of one list asked for
together.
"""

import contextlib
import importlib
import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

kernel_tuner: Any = importlib.import_module("kernel_tuner")
simulation: Any = importlib.import_module("kernel_tuner.runners.simulation")


class Evaluations:
    """Notes the evaluations of the simulation runner, while entered, and ends a strategy that only repeats itself."""

    def __init__(self, places: dict[str, int], asks: int) -> None:
        self._places, self._asks_left = places, asks
        self._seen: set[int] = set()
        self.batches: list[list[int]] = []

    def __enter__(self) -> "Evaluations":
        self._run = run = simulation.SimulationRunner.run

        def noting_run(runner: Any, parameter_space: Any, tuning_options: Any) -> Any:
            elements = list(parameter_space)
            self._asks_left -= max(1, len(elements))
            if self._asks_left < 0:
                raise kernel_tuner.util.StopCriterionReached("asked for too many known configs")
            results = run(runner, elements, tuning_options)
            batch = []
            for element, result in zip(elements, results, strict=True):
                place = self._places.get(",".join(map(str, element)))
                if result is not None and place is not None and place not in self._seen:
                    self._seen.add(place)
                    batch.append(place)
            self.batches.append(batch)
            return results

        simulation.SimulationRunner.run = noting_run
        return self

    def __exit__(self, *_: object) -> None:
        simulation.SimulationRunner.run = self._run


def search(cache: dict[str, Any], request: dict[str, Any], seed: int) -> dict[str, Any]:
    """Run one seed of a strategy; an error or the timeout ends it, and the evaluations until then count.

    The space is every config of the cache, those that fail included: read as plain JSON, no entry is an error yet.
    """
    random.seed(seed)
    np.random.seed(seed)  # Kernel Tuner draws from the global generators
    signal.setitimer(signal.ITIMER_PROF, request["timeout_seconds"])  # of processor time
    start, stopped = time.perf_counter(), ""
    places = {key: place for place, key in enumerate(cache["cache"])}
    with Evaluations(places, request["asks"]) as evaluations:
        try:
            kernel_tuner.tune_kernel(
                cache["kernel_name"],
                "",
                tuple(cache["problem_size"]),
                [],
                cache["tune_params"],
                restrictions=[kernel_tuner.util.infer_restrictions_from_cache(cache)],
                strategy=request["strategy"],
                strategy_options={"max_fevals": request["budget"]},
                cache=request["cache"],
                simulation_mode=True,
                objective="time",
                quiet=True,
                seed=seed,
            )
        except Exception as error:
            stopped = f"{type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    batches = [batch for batch in evaluations.batches if batch]
    return {"seed": seed, "batches": batches, "asking_seconds": time.perf_counter() - start, "stopped": stopped}


def expire(*_: object) -> None:
    raise TimeoutError("took too long")


def main(text: str) -> None:
    request = json.loads(text)
    cache = json.loads(Path(request["cache"]).read_text())
    signal.signal(signal.SIGPROF, expire)
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        answer = [search(cache, request, seed) for seed in request["seeds"]]
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
