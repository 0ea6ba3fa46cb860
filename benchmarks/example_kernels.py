"""Tune the examples as a user would, and race each with its peer: ``python -m benchmarks.example_kernels``.

Each shape is searched by the command line in a process of its own, over empty tables and an empty Triton cache, against
the clock; then the decorated kernel, which launches the winner of the tables, and its peer (RMSNorm and SwiGLU:
``torch.compile`` of torch's formula; matmul: ``torch.matmul``, that is cuBLAS) are raced interleaved over random inputs
that rotate past the L2. ``--results`` gets ``example_kernels.json``, an export of each table, which a machine without a
GPU imports, and all tables in ``example_tables.tar.gz``.

Wanted: each search within 40 s, and 8 configs a second of the screening where a launch takes at most 60 us; of the
peer's time over ours at least 1 for RMSNorm, 0.95 for the matmul of 4,096 and 0.9 for its odd sizes. Exits with 1
beyond. On a GPU about five minutes.
"""

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from autotune import platforms
from autotune.dispatch import get_kernel
from autotune.errors import AutotuneError
from autotune.timing import Launch, Stopwatch, race
from autotune.trial import Policy
from benchmarks.console import print_head, print_row, require_gpu
from benchmarks.user_tables import tables_in

ROOT: Final = Path(__file__).resolve().parent.parent
SEARCH_SECONDS: Final = 40.0
CONFIGS_A_SECOND: Final = 8.0
SHORT_US: Final = 60.0  # a launch that takes no longer leaves the rate to the search
RACE_SECONDS: Final = 4.0
MOST_SECONDS: Final = 120.0  # of a command: then it hangs
ROTATION: Final = 2.2  # times the L2 that the inputs take together
FARTHEST: Final = 2e-2  # of the largest value, from the peer's output: 16-bit outputs of sums in another order


@dataclass(frozen=True, slots=True)
class ExampleShape:
    """A shape of an example, and the least ratio wanted of the peer's time over ours; 0 where none is."""

    example: str
    sizes: Mapping[str, int]
    dtype: str
    wanted: float

    @property
    def kernel(self) -> str:
        return f"examples.{self.example}:{self.example}_kernel"

    @property
    def fields(self) -> str:
        """The shape as ``--shape`` takes it."""
        return ",".join([*(f"{name}={size}" for name, size in self.sizes.items()), f"dtype={self.dtype}"])


PROBLEMS: Final = (
    ExampleShape("rmsnorm", {"rows": 8192, "width": 4096}, "bfloat16", 1.0),
    ExampleShape("rmsnorm", {"rows": 8192, "width": 5003}, "bfloat16", 1.0),
    ExampleShape("matmul", {"m": 4096, "n": 4096, "k": 4096}, "float16", 0.95),
    ExampleShape("matmul", {"m": 4000, "n": 3000, "k": 5000}, "float16", 0.9),
    ExampleShape("matmul", {"m": 2047, "n": 1531, "k": 4099}, "float16", 0.9),
    ExampleShape("matmul", {"m": 4001, "n": 3001, "k": 2501}, "float16", 0.9),
    ExampleShape("matmul", {"m": 3001, "n": 4096, "k": 11008}, "float16", 0.9),
    ExampleShape("matmul", {"m": 4001, "n": 3584, "k": 2560}, "float16", 0.9),
    ExampleShape("matmul", {"m": 1777, "n": 5120, "k": 2880}, "float16", 0.9),
    ExampleShape("swiglu", {"m": 4096, "n": 11008, "k": 4096}, "bfloat16", 0.0),
)
EXAMPLES: Final = tuple(dict.fromkeys(problem.example for problem in PROBLEMS))
PEERS: Final = {"rmsnorm": "torch.compile", "matmul": "cuBLAS", "swiglu": "torch.compile"}


@dataclass(slots=True)
class ExampleRace:
    """The search of a problem and its race with the peer; ``problem`` says what went wrong."""

    example: str
    shape: str
    peer: str
    wanted: float
    search_seconds: float = math.nan
    configs: int = 0
    configs_a_second: float = math.nan
    config: str = ""
    rung: str = ""
    ours_us: float = math.nan
    peer_us: float = math.nan
    difference: float = math.nan  # of the outputs, over the largest value
    stages: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""

    @property
    def ratio(self) -> float:
        return self.peer_us / self.ours_us

    def beyond(self) -> Iterator[str]:
        """Yield what is not as wanted."""
        if self.problem:
            yield self.problem
            return
        if self.search_seconds > SEARCH_SECONDS:
            yield f"search took {self.search_seconds:.1f} s"
        if self.ours_us <= SHORT_US and self.configs_a_second < CONFIGS_A_SECOND:
            yield f"{self.configs_a_second:.1f} configs a second"
        if self.rung != "exact":
            yield f"served by the rung {self.rung!r}"
        if not self.difference <= FARTHEST:
            yield f"outputs differ by {self.difference:.1e}"
        if not self.ratio >= self.wanted:
            yield f"{self.ratio:.3f} of {self.peer}, wanted {self.wanted:g}"


def run_autotune(arguments: Sequence[str], home: Path, cache: Path) -> str:
    """Run a command over the tables in ``home``; return its output.

    Raises:
        AutotuneError: it failed; the message is the end of what it said.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNE")}
    environment |= {"AUTOTUNE_HOME": str(home), "TRITON_CACHE_DIR": str(cache)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "autotune", *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise AutotuneError(f"{' '.join(command[2:])}: took more than {MOST_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise AutotuneError(f"{' '.join(command[2:])}: exit code {done.returncode}: {done.stderr[-800:].strip()}")
    return done.stdout


def search(problem: ExampleShape, home: Path, cache: Path, found: ExampleRace) -> None:
    """Search a problem by the command line, and note its seconds and its configs."""
    command = ["search", "--kernel", problem.kernel, "--shape", problem.fields, "--json"]
    started = time.monotonic()
    printed = run_autotune(command, home, cache)
    found.search_seconds = time.monotonic() - started
    data = json.loads(printed)
    result = data[0] if isinstance(data, list) else data
    found.stages = result["stages"]
    found.configs = result["measured"]
    found.configs_a_second = found.configs / (found.stages["screened"] - found.stages["problem_opened"])


Arguments = dict[str, Any]


def rmsnorm_peer() -> Callable[[Arguments], object]:
    compiled = torch.compile(torch.nn.functional.rms_norm, dynamic=False)
    return lambda given: compiled(given["x_ptr"], given["x_ptr"].shape[1:], given["weight_ptr"], given["eps"])


def matmul_peer() -> Callable[[Arguments], object]:
    return lambda given: torch.matmul(given["a_ptr"], given["b_ptr"])


def swiglu_peer() -> Callable[[Arguments], object]:
    def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x @ gate) * (x @ up)

    compiled = torch.compile(swiglu, dynamic=False)
    return lambda given: compiled(given["x_ptr"], given["gate_ptr"], given["up_ptr"])


PEER_CALLS: Final = {"rmsnorm": rmsnorm_peer, "matmul": matmul_peer, "swiglu": swiglu_peer}


def rows_of(meta: Arguments) -> tuple[int, ...]:
    return (meta["rows"],)


def tiles_of(meta: Arguments) -> tuple[int, ...]:
    tiles = math.ceil(meta["m"] / meta["BM"]) * math.ceil(meta["n"] / meta["BN"])
    return (min(meta["PROGRAMS"], tiles),)


def rows_and_columns_of(meta: Arguments) -> tuple[int, ...]:
    return math.ceil(meta["m"] / meta["BM"]), math.ceil(meta["n"] / meta["BN"])


GRIDS: Final = {"rmsnorm": rows_of, "matmul": tiles_of, "swiglu": rows_and_columns_of}


def copies_past_the_l2(arguments: Arguments) -> int:
    """Return how many sets of such arguments exceed the L2 by the rotation."""
    held = sum(each.nbytes for each in arguments.values() if isinstance(each, torch.Tensor))
    cache = int(torch.cuda.get_device_properties(0).L2_cache_size)
    return max(2, math.ceil(ROTATION * cache / held))


def bind(call: Callable[[Arguments], object], sets: Sequence[Arguments]) -> list[Launch]:
    return [lambda given=given: call(given) for given in sets]  # type: ignore[misc]


def race_with_peer(problem: ExampleShape, found: ExampleRace) -> None:
    """Launch what the tables have as a user does, compare it with the peer's numbers, and race both."""
    kernel = getattr(importlib.import_module(f"examples.{problem.example}"), f"{problem.example}_kernel")
    shape = kernel.shape_class(**problem.sizes, dtype=problem.dtype)
    made = kernel.definition.make_inputs(shape, seed=0, device="cuda")
    first, (output,) = made.values, made.outputs
    seeds = range(1, copies_past_the_l2(first))
    sets = [first, *(kernel.definition.make_inputs(shape, seed=seed, device="cuda").values for seed in seeds)]
    grid = GRIDS[problem.example]
    ours: Callable[[Arguments], object] = lambda given: kernel[grid](**given)  # noqa: E731
    peer = PEER_CALLS[problem.example]()
    first[output].fill_(math.nan)
    ours(first)
    expected: Any = peer(first)
    scale = expected.abs().max().item()
    found.difference = (first[output].float() - expected.float()).abs().max().item() / scale
    found.config, found.rung = str(kernel.best_config), get_kernel(shape, operation=kernel.name).provenance.rung
    with ExitStack() as stack:
        watches = [stack.enter_context(Stopwatch(bind(call, sets), Policy())) for call in (ours, peer)]
        timings = race(watches, contenders=0, seconds=RACE_SECONDS)
    found.ours_us, found.peer_us = (timing.median_us for timing in timings)


def measure(problems: Sequence[ExampleShape], folder: Path) -> Iterator[ExampleRace]:
    """Search and race each problem; tables of each example are in a folder of its name."""
    for place, problem in enumerate(problems):
        found = ExampleRace(problem.example, problem.fields, PEERS[problem.example], problem.wanted)
        home = folder / problem.example
        try:
            search(problem, home, folder / f"triton-{place}", found)
            with tables_in(home), torch.no_grad():
                race_with_peer(problem, found)
        except (AutotuneError, RuntimeError, KeyError, ValueError) as error:  # one problem does not stop the others
            found.problem = f"{type(error).__name__}: {error}"
        torch.cuda.empty_cache()
        yield found


def export(examples: Sequence[str], folder: Path, results: Path) -> None:
    """Write each example's table as JSON, and the tables themselves as one archive."""
    for example in examples:
        command = ["export", "--kernel", f"examples.{example}:{example}_kernel"]
        target = ["--format", "json", "--output", str(results / f"{example}.json")]
        run_autotune([*command, *target], folder / example, folder / "triton-export")
    with tarfile.open(results / "example_tables.tar.gz", "w:gz") as archive:
        for example in examples:
            archive.add(folder / example, arcname=example)


def cells_of(found: ExampleRace) -> tuple[object, ...]:
    rates = (f"{found.search_seconds:.1f}", found.configs, f"{found.configs_a_second:.1f}")
    times = (f"{found.ours_us:.1f}", f"{found.peer_us:.1f}", f"{found.ratio:.3f}", f"{found.wanted:g}")
    verdict = "; ".join(found.beyond()) or "as wanted"
    return found.example, found.shape, *rates, found.peer, *times, found.config, verdict


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.example_kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, required=True, metavar="FOLDER", help="of the JSON and the tables")
    parser.add_argument("--only", default=",".join(EXAMPLES), metavar="NAMES", help="[default: %(default)s]")
    given = parser.parse_args(arguments)
    chosen = given.only.split(",")
    if strange := [name for name in chosen if name not in EXAMPLES]:
        parser.error(f"--only {strange[0]!r} is unknown; expected {', '.join(EXAMPLES)}")
    require_gpu("example_kernels")
    given.results.mkdir(parents=True, exist_ok=True)
    print(f"{platforms.current_device().name}, {platforms.toolchain()}\n")
    searched = ("example", "shape", "search s", "configs", "configs/s")
    print_head(*searched, "peer", "us", "peer us", "ratio", "wanted", "config", "verdict")
    every: list[ExampleRace] = []
    with tempfile.TemporaryDirectory() as folder:
        for found in measure([problem for problem in PROBLEMS if problem.example in chosen], Path(folder)):
            every.append(found)
            print_row(*cells_of(found))
            rows = [{**asdict(each), "ratio": each.ratio, "beyond": [*each.beyond()]} for each in every]
            text = json.dumps({"device": platforms.current_device().name, "rows": rows}, indent=1)
            (given.results / "example_kernels.json").write_text(text)
        export([name for name in EXAMPLES if name in chosen], Path(folder), given.results)
    for name in chosen:
        print(f"without a GPU: python -m autotune tables import {given.results / name}.json --import examples.{name}")
    return int(any([*each.beyond()] for each in every))


if __name__ == "__main__":
    sys.exit(main())
