"""Kernel Tuner in simulation mode on our recordings: its cache files, and a subprocess that runs its strategies."""

import json
import math
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from autotune.trial import Outcome, Status
from benchmarks.search_efficiency.recordings import Recording
from benchmarks.search_efficiency.samplers import ASKS_PER_EVALUATION, Run

PREFIX: Final = "kt-"
STRATEGIES: Final = (
    *("random_sample", "bayes_opt", "genetic_algorithm", "diff_evo", "pso", "firefly_algorithm"),
    *("simulated_annealing", "dual_annealing", "basinhopping", "mls", "greedy_mls", "ordered_greedy_mls"),
    *("greedy_ils", "hybrid_vndx", "adaptive_tabu_greywolf", "minimize", "pyatf_strategies", "skopt"),
)
TIMEOUT_SECONDS: Final = 60  # of processor time, a run; the slowest needs two
SCRIPT: Final = Path(__file__).with_name("kernel_tuner_script.py")
COMPILE_FAILURES: Final = (Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT)


class KernelTunerError(Exception):
    """Kernel Tuner's subprocess failed."""


def is_usable(python: Path) -> bool:
    if not python.is_file():
        return False
    return subprocess.run([python, "-c", "import kernel_tuner"], capture_output=True, check=False).returncode == 0


def run_strategy(python: Path, strategy: str, recording: Recording, seeds: list[int]) -> list[Run]:
    """Run all seeds of a strategy; raise KernelTunerError if the subprocess ended without an answer."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as cache:
        json.dump(cache_file(recording), cache)
        cache.flush()
        request = {
            "cache": cache.name,
            "strategy": strategy,
            "seeds": seeds,
            "budget": recording.budget,
            "asks": ASKS_PER_EVALUATION * recording.budget,
            "timeout_seconds": TIMEOUT_SECONDS,
        }
        # Isolated: the script's own folder would be searched first, where this module has Kernel Tuner's name.
        command = [str(python), "-I", str(SCRIPT), json.dumps(request)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise KernelTunerError((ended.stderr.strip() or f"exit {ended.returncode}").splitlines()[-1])
    return [Run(PREFIX + strategy, recording.name, **run) for run in json.loads(ended.stdout.splitlines()[-1])]


def cache_file(recording: Recording) -> dict[str, Any]:
    """Return a sweep in Kernel Tuner's cache format, in its milliseconds and in the order of the recording.

    Values that are no numbers become their index: several of its strategies compute with them.
    """
    choices = {
        parameter.name: parameter.choices(recording.device)
        for parameter in recording.implementation.space.parameters
        if len(parameter.choices(recording.device)) > 1
    }
    values = {
        name: list(options) if all(isinstance(option, int) for option in options) else list(range(len(options)))
        for name, options in choices.items()
    }
    entries: dict[str, dict[str, Any]] = {}
    for index, outcome in enumerate(recording.outcomes):
        config = {name: values[name][options.index(outcome.config[name])] for name, options in choices.items()}
        entries[",".join(map(str, config.values()))] = {
            **config,
            "time": _time_or_error(outcome, recording.times_us[index]),
            "compile_time": 1000 * recording.compile_seconds[index],
            "verification_time": 0.0,
            "benchmark_time": 1000 * recording.judge_seconds[index],
            "strategy_time": 0.0,
            "framework_time": 0.0,
        }
    return {
        "device_name": recording.device.name,
        "kernel_name": recording.implementation.operation,
        "problem_size": [recording.shape.seq_q, recording.shape.heads, recording.shape.batch],
        "tune_params_keys": list(values),
        "tune_params": values,
        "objective": "time",
        "cache": entries,
    }


def _time_or_error(outcome: Outcome, time_us: float) -> float | str:
    if not math.isnan(time_us):
        return float(time_us / 1000)
    return "CompilationFailedConfig" if outcome.status in COMPILE_FAILURES else "RuntimeFailedConfig"
