"""Compiles winners with the Triton that this process finds; ``python -m benchmarks.toolchain_drift`` runs it.

Standard input holds a JSON list of rows, each by ``request_of``. Printed is the version of Triton, and then a JSON
object for each row, in their order: its outcome, and the spills in its steady loops.
"""

import json
import sys
from typing import Any

from autotune.device import Architecture, Device
from autotune.errors import MissingDependencyError
from autotune.executor.child import send, take_standard_output
from autotune.executor.compile_pool import COMPILE_SECONDS, SERVER_SECONDS, CompilePool
from autotune.executor.messages import from_plain, to_plain
from autotune.implementation import installed_version
from autotune.platforms.nvidia_machine_code import disassembled, steady_spills
from autotune.registry import get_operation, load_kernel
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Status, Trial


def request_of(trial: Trial) -> dict[str, Any]:
    """Describe what is to be compiled for a row, as JSON."""
    return {
        "operation": trial.operation,
        "shape": trial.shape.as_dict(),
        "candidate": to_plain(trial.candidate),
        "device": to_plain(trial.device),
    }


def compile_row(pool: CompilePool, row: dict[str, Any]) -> dict[str, Any]:
    """Compile one row in a process of its own: an abort of the compiler is an outcome, too."""
    operation, device = get_operation(row["operation"]), from_plain(Device, row["device"])
    shape = operation.shape_class(**row["shape"])
    given = row["candidate"]
    candidate = Candidate(given["implementation"], Config(given["config"]))
    pool.use(device)
    pool.open(operation, shape)
    pool.submit(candidate)
    outcome: Outcome | None = pool.receive(2 * COMPILE_SECONDS + SERVER_SECONDS)
    if outcome is None:
        raise MissingDependencyError(f"no compiler answered for {candidate}; run `autotune doctor`")
    spills = outcome.resources.spill_bytes if outcome.status is Status.OK else None  # of no spill none is in a loop
    if spills:
        spills = _spills_of(operation.name, candidate, shape, device.architecture)
    return {"outcome": to_plain(outcome), "loop_spills": spills}


def _spills_of(operation: str, candidate: Candidate, shape: Shape, architecture: Architecture) -> int | None:
    """Count the spills in the steady loops of the binaries, which Triton's cache holds by now."""
    from autotune.executor.compiler import use_target

    use_target(architecture)
    binaries = load_kernel(operation, candidate.implementation).warmup(candidate.config, shape)
    codes = [binary.asm.get("cubin") for binary in binaries]
    return None if None in codes else sum(steady_spills(disassembled(code)) for code in codes)


def main() -> None:
    messages = take_standard_output()
    send(messages, {"triton": installed_version("triton")})
    pool = CompilePool(None, jobs=1, timeout=COMPILE_SECONDS)
    try:
        for row in json.load(sys.stdin):
            send(messages, compile_row(pool, row))
    finally:
        pool.close()


if __name__ == "__main__":
    main()
