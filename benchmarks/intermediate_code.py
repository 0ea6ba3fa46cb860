"""The intermediate code of every row that ships, as one tree compiles it; ``benchmarks.carry_over`` runs it.

The tree is the one whose ``autotune`` is imported. Prints JSON: the hash of the tree's source, and a digest a row, null
where nothing could be compiled.
"""

import hashlib
import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from triton._C.libtriton import ir
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction

from autotune.executor.compiler import use_target
from autotune.registry import get_operation, load_kernel
from autotune.table import shipped_sweeps, shipped_winners
from autotune.trial import Trial

RUN: Final = JITFunction.run


class Recorder:
    """Takes the place of Triton's compiler: notes what would be compiled and launched, and does neither."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._compiled = 0

    def note(self, *facts: object) -> None:
        """Adds facts to what the digest names."""
        self._digest.update(f"{facts}\n".encode())

    def hexdigest(self) -> str:
        """Of all that was noted.

        Raises:
            LookupError: nothing was compiled, so nothing is known.
        """
        if not self._compiled:
            raise LookupError("nothing was compiled; is TRITON_INTERPRET set?")
        return self._digest.hexdigest()

    def launch(self, function: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        """What ``JITFunction.run`` is called with (Triton 3.6)."""
        self.note(grid, [_describe(argument) for argument in arguments], sorted(constants.items()))
        return RUN(function, *arguments, grid=grid, warmup=warmup, **constants)

    def compile(
        self, function: Any, key: str, signature: Any, device: Any, constants: Any, options: Any, attrs: Any, *rest: Any
    ) -> None:
        """What ``JITFunction._do_compile`` is called with (Triton 3.6); nothing is kept in its cache."""
        target = function.device_caches[device][2]
        backend, context = make_backend(target), ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        source = ASTSource(function, signature, constants, attrs)
        generators, modules = backend.get_codegen_implementation(options), backend.get_module_map()
        module = source.make_ir(target, options, generators, modules, context)
        self.note(target, sorted(options.__dict__.items()), module.str_nodebug())
        self._compiled += 1


def _describe(argument: Any) -> object:
    """A tensor by its sizes, anything else by its value."""
    if hasattr(argument, "shape"):  # a tensor descriptor has no method ``stride``, but what it was made of
        base = getattr(argument, "base", argument)
        return base.dtype, base.shape, base.stride(), getattr(argument, "block_shape", None)
    return argument


def digest_of(trial: Trial) -> str | None:
    """Names what Triton's passes and assembler are given for a row, its launches, and the default it was raced with.

    What raises has no digest, and says so on standard error.
    """
    recorder = Recorder()
    JITFunction.run = lambda function, *arguments, **named: recorder.launch(function, *arguments, **named)
    JITFunction._do_compile = lambda *arguments: recorder.compile(*arguments)
    use_target(trial.device.architecture)
    if trial.default_timing is not None:
        recorder.note(get_operation(trial.operation).space.default(trial.shape, trial.device))
    try:
        load_kernel(trial.operation).warmup(trial.config, trial.shape)
        return recorder.hexdigest()
    except Exception:
        print(f"{trial.shape}, {trial.config}:\n{traceback.format_exc()}", file=sys.stderr)
        return None


def shipped_rows(operation: str, results: Path) -> Iterator[Trial]:
    """Every winner of an operation and every row of its sweeps, in one order."""
    yield from shipped_winners(operation, results=results)
    for sweep in shipped_sweeps(operation, results=results):
        yield from sweep.trials()


def main() -> None:
    """Entry of the script: the operation, and the folder of results."""
    operation, results = sys.argv[1], Path(sys.argv[2])
    digests = [digest_of(trial) for trial in shipped_rows(operation, results)]
    print(json.dumps({"source_hash": get_operation(operation).source_hash, "digests": digests}))


if __name__ == "__main__":
    main()
