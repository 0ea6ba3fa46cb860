"""Compile shipped rows with the tree whose ``autotune`` is imported; ``benchmarks.carry_over`` runs this in two trees.

Read a JSON list of rows from standard input (``carry_over.as_request`` writes them) and print the hash of the tree's
source and one result for each row, null where compiling failed. With an argument, print progress to standard error
behind it.

A winner is compiled to machine code, and compared by it: instructions with their encodings, registers, shared memory
and launch attributes. Addresses of instructions and debug information are left out. A kernel parameter that is read
from constant bank 0 is named by the order in which the code first reads it and by what the launch passes there, so a
parameter that only moved in the signature changes nothing. Places on the
stack have no names: where registers spill, ptxas gives one source other places from run to run. Lines of the source
are not compiled in: with them, ptxas and LLVM allocate other registers where only a comment has moved. The digest
``exact`` keeps all offsets. Compiling all rows of the sweeps takes hours, so those are compared by Triton's
intermediate code after its first passes, where functions are inlined and names are gone.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction

from autotune import registry
from autotune.device import Device
from autotune.executor.compiler import use_target
from autotune.space import Config

PROGRESS_SECONDS: Final = 10.0
RUN: Final = JITFunction.run
COMPILE: Final = JITFunction._do_compile
DISASSEMBLER: Final = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
INSTRUCTION: Final = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?;)\s*/\* 0x([0-9a-f]{16}) \*/\s+/\* 0x([0-9a-f]{16}) \*/")
PARAMETER: Final = re.compile(r"Ordinal : (0x[0-9a-f]+)\s+Offset\s+: (0x[0-9a-f]+)\s+Size\s+: (0x[0-9a-f]+)")
PARAMETER_BANK: Final = re.compile(
    r"EIATTR_PARAM_CBANK\s.*?\s.*?Value:\s+0x[0-9a-f]+ 0x[0-9a-f]+?([0-9a-f]{4})\s", re.S
)
CONSTANT: Final = re.compile(r"c\[0x0\]\[(0x[0-9a-f]+)\]")
SPILL: Final = re.compile(r"\[R1(?:\+0x[0-9a-f]+)?\]")
# Of a constant's offset in bytes, and of a place on the stack, in the first half of an instruction (sm_80, sm_90).
CONSTANT_BITS: Final = 0xFFFF << 38
SPILL_BITS: Final = 0xFFFFFF << 40
DEFINED: Final = re.compile(r"^ *(%[\w#]+) = arith\.constant (.*)\n", re.M)
NAME: Final = re.compile(r"%[\w#]+")
AND: Final = re.compile(r"arith\.andi (\S+), (\S+) :")
# Attributes of a compiled kernel that change how it runs, or whether it fits.
LAUNCHED_WITH: Final = ("num_warps", "num_ctas", "cluster_dims", "shared", "launch_pdl", "launch_cooperative_grid")
# Digests by kernel, key and target: rows whose shapes differ in lengths alone share one.
INTERMEDIATE: Final[dict[tuple[Any, str, Any], str]] = {}


class Binary(NamedTuple):
    """One compiled kernel: its digests, and the numbers that a difference is reported by."""

    digest: str
    exact: str
    instructions: int
    registers: int
    stack_bytes: int
    shared_bytes: int


class LaunchRecorder:
    """Stands in for ``JITFunction.run``: compiles what would be launched, notes it, launches nothing."""

    def __init__(self, *, machine_code: bool) -> None:
        self._machine_code = machine_code
        self._digest = hashlib.sha256()
        self._is_empty = True
        self.binaries: list[Binary] = []

    def note(self, *facts: object) -> None:
        self._digest.update(f"{facts}\n".encode())

    def hexdigest(self) -> str:
        """Return the digest of all that was noted; raise LookupError if nothing was compiled."""
        if self._is_empty:
            raise LookupError("nothing was compiled; is TRITON_INTERPRET set?")
        return self._digest.hexdigest()

    def launch(self, function: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        """Replace ``JITFunction.run`` (Triton 3.6)."""
        bound = function.signature.bind(*arguments, **{k: v for k, v in named.items() if k in function.arg_names})
        bound.apply_defaults()
        self._bound, self._grid = dict(bound.arguments), grid
        if not self._machine_code:
            function.device_caches.clear()  # what a winner left there would not be compiled again
        kernel = RUN(function, *arguments, grid=grid, warmup=True, **named)
        if self._machine_code:
            passed = list(_passed(self._bound, kernel.src.signature))
            self.binaries.append(read_binary(kernel, passed))
            self.note(grid, self.binaries[-1].digest)
            self._is_empty = False
        return kernel

    def compile(
        self, function: Any, key: str, signature: Any, device: Any, constants: Any, options: Any, attrs: Any, *rest: Any
    ) -> None:
        """Replace ``JITFunction._do_compile`` (Triton 3.6) where intermediate code is enough."""
        target = function.device_caches[device][2]
        known = (function, key, target)  # the key holds types, constants, attributes and options
        if known not in INTERMEDIATE:
            language = getattr(function, "ASTSource", ASTSource)  # of Gluon another
            source = language(function, signature, constants, attrs)
            code = intermediate_code(source, target, options)
            INTERMEDIATE[known] = hashlib.sha256(code.encode()).hexdigest()
        passed = list(_passed(self._bound, signature))
        self.note(self._grid, passed, target, sorted(options.__dict__.items()), INTERMEDIATE[known])
        self._is_empty = False


def intermediate_code(source: ASTSource, target: Any, options: Any) -> str:
    """Return Triton's intermediate code after its first passes, as text without names."""
    backend, context = make_backend(target), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    generators, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    module = source.make_ir(target, options, generators, modules, context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    first = next(iter(stages.values()))  # of Gluon all passes but those of LLVM
    return name_constants(first(module, {}).str_nodebug())


def name_constants(text: str) -> str:
    """Name constants of intermediate code by their values, and order the operands of ``and``: neither order counts."""
    constants = {found[1]: f"<{found[2]}>" for found in DEFINED.finditer(text)}
    named = NAME.sub(lambda found: constants.get(found[0], found[0]), DEFINED.sub("", text))
    return AND.sub(lambda found: f"arith.andi {', '.join(sorted((found[1], found[2])))} :", named)


def _passed(arguments: dict[str, Any], signature: dict[str, Any]) -> Iterator[str]:
    """Describe the parameters of the compiled kernel in order: what a launch passes, without constants."""

    def leaves(value: Any, kind: Any) -> Iterator[str]:
        if isinstance(kind, tuple):
            for each, kind_of_each in zip(value, kind, strict=True):
                yield from leaves(each, kind_of_each)
        elif kind.startswith("tensordesc"):
            yield f"descriptor {value.base.dtype} {value.shape} {value.strides} {value.block_shape}"
            yield from (f"size {size}" for size in value.shape)
            yield from (f"stride {stride}" for stride in value.strides)
        elif kind.startswith("*"):
            yield f"pointer {kind} {tuple(value.shape)} {value.stride()}"
        elif kind != "constexpr":
            yield f"{kind} {value}"

    for name, kind in signature.items():
        yield from leaves(arguments[name], kind)


def read_binary(kernel: Any, passed: list[str]) -> Binary:
    """Read a kernel for NVIDIA's GPUs; raise LookupError for another vendor's, or if its parameters are others."""
    if "cubin" not in kernel.asm:
        raise LookupError(f"no machine code to compare for {kernel.metadata.target}")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        code, layout, usage = (_dump(option, file.name) for option in ("-sass", "-elf", "-res-usage"))
    instructions = INSTRUCTION.findall(code)
    names = _parameter_names(layout, passed)
    order: dict[int, int] = {}  # of parameters, as the code first reads them

    def name_constant(found: re.Match[str]) -> str:
        if (parameter := names.get(int(found[1], 16))) is None:
            return found[0]
        number, description = parameter
        return f"parameter {order.setdefault(number, len(order))} ({description})"

    lines = []
    for text, first, second in instructions:
        bits = int(first, 16)
        if CONSTANT.search(text):
            bits &= ~CONSTANT_BITS
        elif SPILL.search(text):
            bits &= ~SPILL_BITS
        lines.append(f"{CONSTANT.sub(name_constant, SPILL.sub('[place]', text))} {bits:016x} {second}")
    facts = {name: str(getattr(kernel.metadata, name, None)) for name in LAUNCHED_WITH}
    registers, stack = (int(re.findall(rf"{name}:(\d+)", usage)[-1]) for name in ("REG", "STACK"))
    normalised = "\n".join([str(facts), f"{registers} registers, {stack} bytes of stack", *lines])
    digest, exact = (hashlib.sha256(text.encode()).hexdigest() for text in (normalised, f"{facts} {instructions}"))
    return Binary(digest, exact, len(lines), registers, stack, kernel.metadata.shared)


def _dump(option: str, path: str) -> str:
    return subprocess.run([DISASSEMBLER, option, path], capture_output=True, text=True, check=True).stdout


def _parameter_names(layout: str, passed: list[str]) -> dict[int, tuple[int, str]]:
    """Return the parameter that each word of constant bank 0 holds: its number, and what the launch passes there."""
    bank = PARAMETER_BANK.search(layout)
    parameters = [tuple(int(number, 16) for number in found) for found in PARAMETER.findall(layout)]
    scratch = len(parameters) - len(passed)  # Triton appends its own pointers
    if bank is None or not 0 <= scratch <= 2:
        raise LookupError(f"{len(parameters)} parameters of a kernel that is passed {len(passed)}")
    base = int(bank[1], 16)
    described = [*passed, *(f"scratch {number}" for number in range(scratch))]
    return {
        base + offset + word: (ordinal, f"{described[ordinal]} + {word}")
        for ordinal, offset, size in parameters
        for word in range(0, size, 4)
    }


def _find(operation: str, implementation: str) -> tuple[Any, Any]:
    """Return what owns the space and the source, and the kernel; in a tree before implementations, of the operation."""
    load_kernel: Any = registry.load_kernel
    if hasattr(registry, "get_implementation"):
        return registry.get_implementation(operation, implementation), load_kernel(operation, implementation)
    return registry.get_operation(operation), load_kernel(operation)


def compile_row(row: dict[str, Any]) -> dict[str, Any] | None:
    """Compile one row; an error is reported on standard error and gives None."""
    recorder = LaunchRecorder(machine_code=row["machine_code"])
    JITFunction.run = lambda function, *arguments, **named: recorder.launch(function, *arguments, **named)
    JITFunction._do_compile = COMPILE if row["machine_code"] else lambda *arguments: recorder.compile(*arguments)
    try:
        owner, kernel = _find(row["operation"], row["implementation"])
        space = owner.space
        device = Device(**row["device"])
        use_target(device.architecture)
        shape = registry.get_operation(row["operation"]).shape_class(**row["shape"])
        named = {parameter.name for parameter in space.parameters}
        if row["has_default"]:
            recorder.note(space.default(shape, device))
        config = Config({name: value for name, value in row["config"].items() if name in named})
        kernel.warmup(config, shape)
        digest = recorder.hexdigest()
    except Exception:
        print(f"{row['shape']}, {row['config']}:\n{traceback.format_exc()}", file=sys.stderr)
        return None
    return {"digest": digest, "binaries": [binary._asdict() for binary in recorder.binaries]}


def compile_rows(rows: list[dict[str, Any]], title: str) -> list[dict[str, Any] | None]:
    """Compile all rows; with a title, say on standard error now and then how many are done."""
    compiled, said = [], time.monotonic()
    for row in rows:
        compiled.append(compile_row(row))
        if title and time.monotonic() - said >= PROGRESS_SECONDS:
            said = time.monotonic()
            print(f"{title}: {len(compiled)} of {len(rows)} rows compiled", file=sys.stderr, flush=True)
    return compiled


def main() -> None:
    knobs.compilation.disable_line_info = True
    rows = json.load(sys.stdin)
    owner, _ = _find(rows[0]["operation"], rows[0]["implementation"])
    compiled = compile_rows(rows, "".join(sys.argv[1:]))
    print(json.dumps({"source_hash": owner.source_hash, "rows": compiled}))


if __name__ == "__main__":
    main()
