"""The contracts of a tunable kernel: an ``Operation`` (triton-free data) and its ``Kernel`` (how it is computed)."""

import ast
import hashlib
import importlib.metadata
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from autotune.shape import Shape
from autotune.space import Config, Space
from autotune.trial import Toolchain, Trial

if TYPE_CHECKING:
    import torch

ShapeT = TypeVar("ShapeT", bound=Shape)


@dataclass(frozen=True, slots=True)
class Cost:
    """What an operation must do for a shape, by formula: floating-point operations, and bytes moved once each."""

    flops: int
    bytes: int


def _supports_all(shape: Any) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[ShapeT]):
    """What is computed, without triton: name, shape class, space, cost, and where its kernel's source lies.

    ``sources`` are the files that the launch reaches; ``entry`` names the functions it starts from. A kernel that is
    not ours has neither: ``library`` names the installed distribution that brings it, whose version stands for the
    source. Where it does not compile ahead, the worker that measures it compiles it at its first launch, and what it
    takes of the device stays unknown.
    ``unsupported(shape)`` says what of a shape it cannot compute, or returns None: of several operations that take the
    same shapes, the first that supports one solves it.
    """

    name: str
    shape_class: type[ShapeT]
    space: Space[ShapeT]
    cost: Callable[[ShapeT], Cost]
    sources: tuple[Path, ...] = ()
    entry: tuple[str, ...] = ()
    library: str | None = None
    compiles_ahead: bool = True
    unsupported: Callable[[ShapeT], str | None] = _supports_all

    @property
    def source_hash(self) -> str:
        """SHA-256 of what the launch can reach here; docstrings, comments and layout do not count."""
        if self.library is not None:
            return library_hash(self.library, _installed_version(self.library))
        return source_hash(self.sources, self.entry)

    def source_hash_under(self, toolchain: Toolchain) -> str:
        """The hash of what is measured with a toolchain: this tree's source, or that toolchain's version of a library.

        A library that toolchains do not name counts as the installed one.
        """
        version = "" if self.library is None else getattr(toolchain, self.library, "")
        return library_hash(self.library, version) if self.library and version else self.source_hash

    def is_source_of(self, trial: Trial) -> bool:
        """Whether a row is of this source: this tree's, or the version of a library that the row itself names.

        Whether that version is the installed one is another question: ``trial.source_hash == source_hash``.
        """
        return trial.source_hash == self.source_hash_under(trial.toolchain)


class Kernel(Protocol):
    """How an operation is computed. Nothing here touches tables, studies or timing.

    ``inputs`` is whatever ``make_inputs`` returns; ``out`` whatever ``empty_output`` returns, a tuple of tensors.
    """

    def make_inputs(self, shape: Any, *, seed: int, device: str, data: str = "normal") -> Any:
        """Random inputs of that shape; ``data`` is one of ``normal``, ``large``, ``tails``."""

    def check_shapes(self, shape: Any) -> Sequence[Any]:
        """Small problems that run the very binaries of ``shape``, one of them off every tile's multiple."""

    def empty_output(self, inputs: Any) -> "tuple[torch.Tensor, ...]":
        """Outputs filled with NaN, so that an element nobody wrote is seen."""

    def launch(self, config: Config, inputs: Any, out: "tuple[torch.Tensor, ...]") -> None:
        """Compute ``out`` from ``inputs`` on the current stream; allocates nothing that a CUDA graph cannot hold."""

    def reference(self, inputs: Any, *, dtype: "torch.dtype | None" = None) -> "tuple[torch.Tensor, ...]":
        """The definition of correct, from torch alone: in fp64, or as eager torch computes it in ``dtype``."""

    def warmup(self, config: Config, shape: Any) -> Any:
        """Compile, without a launch or a GPU, what ``launch`` will look up; returns Triton's compiled kernel."""

    def bind(self, config: Config, shape: Any) -> Callable[..., Any]:
        """The callable that a user gets: takes the operation's tensors, checks that they fit ``shape``, launches."""

    def baselines(self) -> "Sequence[Baseline]":
        """What is compared with this kernel, the usual ones first; importing them needs none of their libraries."""


class Baseline(Protocol):
    """One way to compute an operation that is compared, not tuned by us; it imports its library when it is asked."""

    @property
    def name(self) -> str:
        """As tables and ``--against`` call it."""

    @property
    def is_usual(self) -> bool:
        """Whether it is what users would run otherwise, and ready at once: a search races the fastest of these."""

    @property
    def verified_on_hardware(self) -> bool:
        """Whether it has ever run on the hardware that it is written for."""

    def available(self) -> str | None:
        """None where it can run, or what is missing here and how to install it; never raises."""

    def unsupported(self, shape: Any) -> str | None:
        """What of a shape it cannot compute, or None; needs neither its library nor a device."""

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """A call over the operation's inputs, with everything done that a user would do once, before the first step.

        What is timed is the call alone, so what compiles has been run once here. It returns the operation's first
        output, in its sizes.

        Raises:
            MissingDependencyError: ``available`` says why.
            BaselineUnavailableError: ``unsupported`` says why, or this device cannot do it.
        """


def library_hash(library: str, version: str) -> str:
    """SHA-256 of a library's name and version, without the local part, which says how it was built (``+cu130``).

    Example:
        >>> library_hash("torch", "2.11.0+cu130") == library_hash("torch", "2.11.0")
        True
    """
    return hashlib.sha256(f"{library} {version.partition('+')[0]}".encode()).hexdigest()


@lru_cache(maxsize=64)
def _installed_version(library: str) -> str:
    """Its version, found without importing it; empty where it is absent."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


@lru_cache(maxsize=64)
def source_hash(sources: tuple[Path, ...], entry: tuple[str, ...]) -> str:
    """Hash the top-level definitions of ``sources`` that ``entry`` reaches by name; no Python version changes it.

    Raises:
        KeyError: an entry is not defined in the sources.
    """
    definitions: dict[str, list[ast.stmt]] = {}
    for name, statement in _definitions(sources):
        definitions.setdefault(name, []).append(statement)  # two files may define one name: both count
    reached: set[str] = set()
    pending = list(entry)
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        reached.add(name)
        nodes = itertools.chain.from_iterable(map(ast.walk, definitions[name]))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        pending.extend(names & definitions.keys())
    text = "\n".join(f"{name} {_canonical(definitions[name])}" for name in sorted(reached))
    return hashlib.sha256(text.encode()).hexdigest()


def _definitions(sources: Iterable[Path]) -> Iterator[tuple[str, ast.stmt]]:
    for path in sources:
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                yield statement.name, statement
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield target.id, statement


def _canonical(node: object) -> str:
    """``ast.dump`` without positions, docstrings and empty fields, whose presence differs between Python versions."""
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
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
