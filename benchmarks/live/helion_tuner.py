"""Helion's external tuner on the main shape: ``python -m benchmarks.live.helion_tuner SECONDS LOG``.

Prints one line of JSON: the best config it returns and the seconds it took, or why Helion cannot be imported.
``LOG.log`` gets Helion's own log, ``LOG.csv`` every config with its time as it is known.
"""

import importlib
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from autotune.kernels.flash_attention.triton import KERNEL
from autotune.space import Config, Space
from benchmarks.live.problem import IMPLEMENTATION, MAIN, from_plain, make_tensors, optimum

ALGORITHM: Final = "LFBOTreeSearch"  # Helion's default for its own kernels; "PatternSearch" needs no scikit-learn
FALLBACK: Final = "PatternSearch"
TOLERANCE: Final = 0.03  # of outputs near 1 in bf16: two right kernels differ by a few units in the last place


def tunables(helion: Any, space: Space[Any], default: Config) -> dict[str, Any]:
    """Return our parameters as Helion's fragments, each with our default; those of other backends are left out."""
    fragments: dict[str, Any] = {}
    for parameter in space.parameters:
        start, values = default[parameter.name], parameter.values
        if start is None:
            continue
        integers = [value for value in values if isinstance(value, int)]
        if len(integers) < len(values):
            fragments[parameter.name] = helion.EnumFragment((start, *(value for value in values if value != start)))
        elif all(value.bit_count() == 1 for value in integers):
            fragments[parameter.name] = helion.PowerOfTwoFragment(min(integers), max(integers), start)
        else:
            fragments[parameter.name] = helion.IntegerFragment(min(integers), max(integers), start)
    return fragments


def to_config(found: Any, default: Config) -> Config:
    """Return Helion's config as ours; it leaves out values that equal the default."""
    return from_plain({**default, **found.config})


def launch(config: Config, q: Any, k: Any, v: Any) -> Any:
    import torch

    from autotune.kernels.flash_attention.definition import Inputs

    out = torch.empty_like(q)
    scale = MAIN.head_dim**-0.5
    KERNEL.launch(config, Inputs(q, k, v, causal=MAIN.causal, window=None, softcap=None, scale=scale), (out,))
    return out


def tune(helion: Any, tensors: tuple[Any, ...], seconds: float, log: str, algorithm: str, **more: Any) -> Config:
    space, device = IMPLEMENTATION.space, optimum().device
    default = space.default(MAIN, device)

    def compile_config(found: Any) -> Callable[..., Any]:
        config = to_config(found, default)
        return lambda q, k, v: launch(config, q, k, v)

    def keep_valid(found: Any) -> Any:
        return found if space.why_invalid(to_config(found, default), MAIN, device) is None else None

    found = helion.autotune(
        tunables(helion, space, default),
        compile_config,
        tensors,
        algorithm=algorithm,
        autotune_budget_seconds=math.ceil(seconds),
        autotune_log=log,
        autotune_random_seed=0,
        autotune_progress_bar=False,
        autotune_ignore_errors=True,
        autotune_benchmark_subprocess=False,
        autotune_baseline_atol=TOLERANCE,
        autotune_baseline_rtol=TOLERANCE,
        autotune_config_filter=keep_valid,
        **more,
    )
    return to_config(found, default)


def main() -> None:
    seconds, log = float(sys.argv[1]), sys.argv[2]
    try:
        helion = importlib.import_module("helion.autotuner")
    except Exception as error:  # a torch that is too old shows itself in many ways
        print(json.dumps({"unavailable": f"{type(error).__name__}: {error}"}))
        return
    surrogate = importlib.import_module("helion.autotuner.surrogate_pattern_search")
    algorithm = ALGORITHM if surrogate.HAS_ML_DEPS else FALLBACK
    inputs, _ = make_tensors(MAIN)
    started = time.perf_counter()
    best = tune(helion, (inputs.q, inputs.k, inputs.v), seconds, log, algorithm)
    taken = time.perf_counter() - started
    print(json.dumps({"best": dict(best), "seconds": taken, "algorithm": algorithm}), flush=True)


if __name__ == "__main__":
    main()
