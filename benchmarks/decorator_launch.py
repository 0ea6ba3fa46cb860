"""Host time of a launch: ``autotune.tuned`` beside ``triton.autotune``, each with a warm cache, without a GPU.

What Triton's own launcher does is the same under both, and is left out: the kernel's ``run`` does nothing. Counted are
the Python instructions of a launch, which no other load on the machine changes, and the least time of a launch in
repeats that alternate between the two.

    python -m benchmarks.decorator_launch
"""

import argparse
import json
import sys
import timeit
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.runtime.jit import KernelInterface

from autotune.decorated import tuned

CONFIGS: Final = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128, 256) for warps in (4, 8)]
REPEATS, LAUNCHES = 30, 2000


def rmsnorm(x_ptr: Any, weight_ptr: Any, out_ptr: Any, rows: int, width: int, eps: float, BLOCK: tl.constexpr) -> None:
    """An elementwise kernel's parameters: three tensors, two sizes in the key."""


def matmul(
    a_ptr: Any, b_ptr: Any, c_ptr: Any, m: int, n: int, k: int, am: int, ak: int, bk: int, bn: int, cm: int, cn: int,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The tutorial's matmul: three tensors, three sizes in the key, six strides."""


class Stub(KernelInterface[Any]):  # type: ignore[misc] # Triton has no types
    """A kernel whose launch does nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.arg_names = list(function.__code__.co_varnames[: function.__code__.co_argcount])

    def run(self, *args: Any, **named: Any) -> None:
        """Do nothing, in the place of Triton's launcher."""


def make_launches(function: Callable[..., Any], key: list[str], args: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """Return a launch by each decorator, with its cache warm."""
    decorate: Any = triton.autotune
    theirs = decorate(CONFIGS, key=key, do_bench=lambda call, quantiles: [1.0, 1.0, 1.0])(Stub(function))
    ours = tuned(CONFIGS, key=key, name=function.__name__)(Stub(function))
    assert not ours.reference  # no module has a name for it: the first config is launched, as a stored one would be
    grid = (1,)
    launches: dict[str, Callable[[], Any]] = {
        "triton.autotune": lambda: theirs[grid](*args),
        "autotune.tuned": lambda: ours[grid](*args),
    }
    for launch in launches.values():
        launch()
    return launches


def count_instructions(launch: Callable[[], Any]) -> int:
    """Count the Python instructions of a launch, in all functions that it calls."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        launch()
    finally:
        sys.settrace(before)
    return count


def least_us(launches: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the least microseconds of a launch, over repeats that alternate."""
    found = dict.fromkeys(launches, float("inf"))
    for _ in range(REPEATS):
        for name, launch in launches.items():
            found[name] = min(found[name], timeit.timeit(launch, number=LAUNCHES) / LAUNCHES * 1e6)
    return found


def measure() -> dict[str, dict[str, dict[str, float]]]:
    """Return instructions and microseconds by kernel and decorator."""
    a = torch.empty(64, 64, dtype=torch.float16)
    cases: dict[str, tuple[Callable[..., Any], list[str], tuple[Any, ...]]] = {
        "rmsnorm": (rmsnorm, ["rows", "width"], (a, a, a, 64, 64, 1e-6)),
        "matmul": (matmul, ["m", "n", "k"], (a, a, a, 64, 64, 64, 64, 1, 64, 1, 64, 1)),
    }
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, (function, key, args) in cases.items():
        launches = make_launches(function, key, args)
        times = least_us(launches)
        found[name] = {
            each: {"instructions": count_instructions(launch), "us": times[each]} for each, launch in launches.items()
        }
    return found


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args()
    found = measure()
    if options.json:
        print(json.dumps(found))
        return
    print(f"Triton {triton.__version__}, Python {sys.version.split()[0]}; without Triton's launcher")
    for kernel, rows in found.items():
        for name, row in rows.items():
            print(f"{kernel:8} {name:16} {row['instructions']:4.0f} instructions  {row['us']:.2f} us")


if __name__ == "__main__":
    main()
