"""``triton.autotune`` over configs of the main shape: ``python -m benchmarks.live.triton_tuner CHOSEN.json``.

Prints one line of JSON: the seconds of tuning, of each config, and the configs with their medians (None: failed).
"""

import importlib
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock, patch

import triton
from triton.runtime import driver

from autotune.kernels.flash_attention.triton import KERNEL
from autotune.kernels.flash_attention.triton.forward import flash_attention_forward
from autotune.space import Config
from benchmarks.live.problem import MAIN, from_plain, make_tensors

DESCRIPTORS: Final = {"q": "BLOCK_Q", "k": "BLOCK_K", "v": "BLOCK_K"}  # the argument, and the block of its rows
OPTIONS: Final = ("num_warps", "num_stages")

Bench = Callable[..., Any]


def choose(configs: Sequence[Config], *, share: float = 0.1, seed: int = 0) -> list[Config]:
    """Draw a random share of the configs, the same for the same seed."""
    return random.Random(seed).sample(list(configs), max(1, round(share * len(configs))))


def shape_descriptors(arguments: dict[str, Any]) -> None:
    for name, rows in DESCRIPTORS.items():
        blocks = arguments[name].block_shape
        arguments[name].block_shape = [1, arguments[rows], 1, blocks[3]]


def triton_config(config: Config) -> triton.Config:
    values = {name: value for name, value in config.items() if value is not None}
    loads = values.pop("loads")
    options = {name: values.pop(name) for name in OPTIONS}
    return triton.Config(values, **options, pre_hook=shape_descriptors if loads == "descriptor" else None)


def by_kind(configs: Iterable[Config]) -> dict[str, dict[triton.Config, Config]]:
    """Return, for each kind of loads, which take different arguments, Triton's configs with ours."""
    kinds: dict[str, dict[triton.Config, Config]] = {}
    for config in configs:
        kinds.setdefault(str(config["loads"]), {})[triton_config(config)] = config
    return kinds


def capture_launch(config: Config, inputs: Any, outputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and constants that our launch gives the kernel, without those of the config."""
    module, kernel = importlib.import_module("autotune.kernels.flash_attention.triton.launch"), MagicMock()
    with patch.object(module, "flash_attention_forward", kernel):
        KERNEL.launch(config, inputs, outputs)
    arguments, constants = kernel.__getitem__.return_value.call_args
    return arguments, {name: value for name, value in constants.items() if name not in config}


class Clock:
    """Triton's own benchmark, or the given one, with the wall seconds of each config in it: compiling and timing."""

    def __init__(self, bench: Bench | None = None) -> None:
        self._bench = bench or driver.active.get_benchmarker()
        self.seconds: list[float] = []

    def __call__(self, call: Callable[[], object], quantiles: Sequence[float]) -> Any:
        started = time.perf_counter()
        try:
            return self._bench(call, quantiles=quantiles)
        finally:
            self.seconds.append(time.perf_counter() - started)


def grid(constants: dict[str, Any]) -> tuple[int]:
    """Return the grid of our launch: one program for each tile of queries of each head."""
    tiles: int = triton.cdiv(MAIN.seq_q, constants["BLOCK_Q"])
    return (tiles * MAIN.batch * MAIN.heads,)


def tune(configs: Iterable[Config], inputs: Any, outputs: Any, clock: Clock) -> dict[Config, float | None]:
    """Return medians in microseconds by ``triton.autotune``, one tuner for each kind of loads; None where it failed."""
    medians: dict[Config, float | None] = {}
    for named in by_kind(configs).values():
        arguments, constants = capture_launch(next(iter(named.values())), inputs, outputs)
        tuner = triton.autotune(configs=list(named), key=[], do_bench=clock)(flash_attention_forward)
        tuner[grid](*arguments, **constants)
        timings = getattr(tuner, "configs_timings", {})  # a lone config is not timed
        for key, config in named.items():
            median = timings.get(key, [math.inf])[0]
            medians[config] = 1000.0 * median if math.isfinite(median) else None
    return medians


def main() -> None:
    import torch

    chosen = [from_plain(values) for values in json.loads(Path(sys.argv[1]).read_text())]
    inputs, outputs = make_tensors(MAIN)
    torch.cuda.synchronize()
    clock = Clock()
    started = time.perf_counter()
    medians = tune(chosen, inputs, outputs, clock)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    rows = [{"config": dict(config), "median_us": median} for config, median in medians.items()]
    print(json.dumps({"seconds": seconds, "each": clock.seconds, "rows": rows}), flush=True)


if __name__ == "__main__":
    main()
