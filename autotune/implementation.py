"""Implementations: an ``Implementation`` (triton-free data), its ``Kernel``, and its source's hash."""

import ast
import hashlib
import importlib.metadata
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from autotune.device import Device
from autotune.errors import UsageError
from autotune.package_files import package_files
from autotune.process_lock import ProcessLock
from autotune.shape import Shape
from autotune.space import Config, Space
from autotune.trial import Toolchain, Trial

if TYPE_CHECKING:
    import torch

ShapeT = TypeVar("ShapeT", bound=Shape)


def _supports_all(shape: Any, device: Device) -> str | None:
    return None


def _is_deterministic(config: Config) -> bool:
    return True


def _is_never_batch_invariant(config: Config, shape: Any) -> Config | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation(Generic[ShapeT]):
    """One way to compute an operation, with a space, a table of trials and a study of its own.

    An implementation is ours, compiled from ``sources`` of this package or of the user's, or foreign: then ``library``
    names the installed distribution that brings its kernel, whose version stands for the source.

    Attributes:
        name: unique within its operation, such as ``"triton"``.
        operation: the name of what it computes.
        space: its parameters, their validity and the default.
        kernel: its ``Kernel``, or a ``"module:attribute"`` reference to it or to a class of it that takes no arguments;
            loading it imports torch and triton.
        sources: the files that the launch reaches, and ``entry`` the names of what it starts from. Without both, that
            is all in the file of ``kernel`` and in those of its package that this imports: a change of any counts.
        counts_decorators: False where decorators say what is tried, and nothing of what a config computes.
        library: the distribution of a foreign kernel.
        supports: returns why it cannot compute a shape on a device, or None.
        check_shapes: returns the problems that configs are checked on, for a kernel that is compiled for exact lengths;
            those of the operation's definition by default.
        compiles_ahead: False where only the process that launches it can compile it.
        can_interpret: False where Triton's interpreter cannot run it.
        is_deterministic: False for a config whose runs may differ in their last bits.
        batch_invariant: returns a config with which the results of a sequence are the same to the bit in every batch of
            a shape's family: the one that it is given, or one that is like it; None where there is none, the default.
        export_options: returns a config as the options that a user passes to the library's own function, for the
            export ``flex``; None where there are none.
    """

    name: str
    operation: str
    space: Space[ShapeT]
    kernel: "str | Kernel"
    sources: tuple[Path, ...] = ()
    entry: tuple[str, ...] = ()
    counts_decorators: bool = True
    library: str | None = None
    supports: Callable[[ShapeT, Device], str | None] = _supports_all
    check_shapes: Callable[[ShapeT], Sequence[ShapeT]] | None = None
    compiles_ahead: bool = True
    can_interpret: bool = True
    is_deterministic: Callable[[Config], bool] = _is_deterministic
    batch_invariant: Callable[[Config, ShapeT], Config | None] = _is_never_batch_invariant
    export_options: Callable[[Config], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if self.library is None and bool(self.sources) != bool(self.entry):
            given = f"sources={self.sources} and entry={self.entry}"
            expected = "expected the files of its kernel and the functions that a launch starts from, or neither"
            raise UsageError(f"{self.title}: {given} say nothing of its source; {expected}")

    @property
    def is_ours(self) -> bool:
        """True for a kernel that this process compiles from its own sources."""
        return self.library is None

    @property
    def title(self) -> str:
        """Its operation and its name: ``"flash_attention/triton"``."""
        return f"{self.operation}/{self.name}"

    @property
    def module(self) -> str:
        """The name of the module that its kernel is in."""
        return self.kernel.partition(":")[0] if isinstance(self.kernel, str) else self.kernel.__module__

    @property
    def library_version(self) -> str:
        """The version of its library that is installed; empty where it is absent, and for one that is ours."""
        return installed_version(self.library or "")

    @property
    def source_hash(self) -> str:
        """SHA-256 of the source that the launch can reach; docstrings, comments and layout do not count."""
        if self.library is not None:
            return library_hash(self.library, self.library_version)
        if not self.sources:
            return module_hash(self.module, counts_decorators=self.counts_decorators)
        return source_hash(self.sources, self.entry, counts_decorators=self.counts_decorators)

    def source_hash_under(self, toolchain: Toolchain) -> str:
        """Return the hash of what a toolchain measures: this tree's source, or that toolchain's version of a library.

        A library that toolchains do not name counts as the installed one.
        """
        version = self.library_version_of(toolchain)
        return library_hash(self.library, version) if self.library and version else self.source_hash

    def library_version_of(self, toolchain: Toolchain) -> str:
        """Return the version of its library that a toolchain has; empty where it names none, and without a library."""
        return "" if self.library is None else getattr(toolchain, self.library, "")

    def is_source_of(self, trial: Trial) -> bool:
        """Return True if a row is of this tree's source, or of the library version that the row itself names."""
        return trial.source_hash == self.source_hash_under(trial.toolchain)

    def is_current(self, trial: Trial, toolchain: Toolchain) -> bool:
        """Return True if a row is of the kernel that a toolchain compiles now: of its source, Triton and ptxas."""
        found = (trial.source_hash, trial.toolchain.triton, trial.toolchain.ptxas)
        return found == (self.source_hash_under(toolchain), toolchain.triton, toolchain.ptxas)


class Kernel(Protocol):
    """The kernel of an implementation. Loaded lazily; nothing here touches tables, studies or timing.

    ``inputs`` and ``outputs`` are those of the operation's ``Definition``; ``outputs`` may be the first alone, as most
    callers want it and as it is timed, or all of them.
    """

    def launch(self, config: Config, inputs: Any, outputs: "tuple[torch.Tensor, ...]") -> None:
        """Compute ``outputs`` on the current stream; allocate nothing that a CUDA graph cannot hold."""

    def warmup(self, config: Config, shape: Any, *, every_output: bool = False) -> Sequence[Any]:
        """Compile ahead, without a launch or a GPU, every binary that ``launch`` looks up.

        Returns Triton's compiled kernels in the order of their launches: those for the first output alone, or with
        ``every_output`` those for all outputs.
        """

    def bind(self, config: Config, shape: Any) -> Callable[..., Any]:
        """Return the callable that a user gets: it checks that tensors fit ``shape``, and launches.

        It takes the tensors and options of the operation's function, such as ``softcap=None`` of ``attention``; among
        these is ``out=`` only if the caller gave one.

        Raises (the callable):
            UnsupportedCallError: it cannot compute tensors of these types, sizes, strides and alignment, or these
                options; the next candidate takes this call and all that are alike in them.
        """


def library_hash(library: str, version: str) -> str:
    """Return the SHA-256 of a library's name and version, without the local part, as of a build (``+cu130``).

    Example:
        >>> library_hash("torch", "2.11.0+cu130") == library_hash("torch", "2.11.0")
        True
    """
    return hashlib.sha256(f"{library} {version.partition('+')[0]}".encode()).hexdigest()


@lru_cache(maxsize=64)
def installed_version(library: str) -> str:
    """Return a distribution's version without importing it; empty where it is absent, and for no name."""
    try:
        if not library:
            return ""
        found = importlib.metadata.distribution(library)
    except importlib.metadata.PackageNotFoundError:
        return ""
    # ``found.version`` parses all of the metadata as an e-mail, for a millisecond of a process's first look-up.
    head = (found.read_text("METADATA") or "").partition("\n\n")[0]
    stated = re.search(r"^Version: *(\S+)$", head, re.MULTILINE)
    return stated[1] if stated else found.version


@lru_cache(maxsize=64)
def source_hash(sources: tuple[Path, ...], entry: tuple[str, ...], *, counts_decorators: bool = True) -> str:
    """Hash the top-level definitions of ``sources`` that ``entry`` reaches by name; no Python version changes it.

    Without ``counts_decorators`` those of functions are left out, and what only they reach.

    Raises:
        KeyError: an entry is not defined in the sources.
    """
    definitions: dict[str, list[ast.stmt]] = {}
    for name, statement in _definitions(sources):
        if isinstance(statement, ast.FunctionDef) and not counts_decorators:
            statement.decorator_list.clear()  # of a tree that was parsed for this alone
        definitions.setdefault(name, []).append(statement)  # two files may define one name: both count
    reached, pending = set[str](), set(entry)
    while pending:
        reached.add(name := pending.pop())
        nodes = itertools.chain.from_iterable(map(ast.walk, definitions[name]))
        pending |= {node.id for node in nodes if isinstance(node, ast.Name)} & definitions.keys() - reached
    text = "\n".join(f"{name} {_canonical(definitions[name])}" for name in sorted(reached))
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=64)
def module_hash(module: str, *, counts_decorators: bool = True) -> str:
    """Hash all top-level definitions of a module and of what it imports of its package (``package_files``)."""
    sources = package_files(module)
    entry = tuple(dict.fromkeys(name for name, _ in _definitions(sources)))
    return source_hash(sources, entry, counts_decorators=counts_decorators)


def forget_sources() -> None:
    """Read sources again when they are next asked for: a process reads each once."""
    source_hash.cache_clear()
    module_hash.cache_clear()


# CPython 3.11 counts the depth of a syntax tree for all threads together, and may end the parses of two with a
# SystemError (python/cpython#106905); searches on several GPUs hash sources side by side.
_parsing: Final = ProcessLock()


def _definitions(sources: Iterable[Path]) -> Iterator[tuple[str, ast.stmt]]:
    for path in sources:
        with _parsing:
            module = ast.parse(path.read_text(encoding="utf-8"))
        for statement in module.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                yield statement.name, statement
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                yield from ((target.id, statement) for target in targets if isinstance(target, ast.Name))


def _canonical(node: object) -> str:
    """Dump a syntax tree without positions, docstrings and empty fields, which differ between Python versions."""
    if isinstance(node, ast.AST):
        parts = []
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(value, list):
                value = [statement for statement in value if not _is_docstring(statement)]
            if value is None or value == [] or name in {"kind", "type_comment"}:
                continue
            parts.append(f"{name}={_canonical(value)}")
        return f"{type(node).__name__}({','.join(parts)})"
    if isinstance(node, list):
        return f"[{','.join(map(_canonical, node))}]"
    return repr(node)


def _is_docstring(statement: object) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
