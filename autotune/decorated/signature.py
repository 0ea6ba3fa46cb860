"""A kernel's parameters, and what its source says of them: which it writes, which it masks, which are texts."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Final

from autotune.errors import UsageError

LOADS: Final = ("load", "gather")
STORES: Final = ("store", "scatter", "async_copy_shared_to_global")


@dataclass(frozen=True)
class Signature:
    """The parameters of a kernel in their order; ``heuristics`` are those that ``triton.heuristics`` below fills in."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    constants: frozenset[str]
    heuristics: frozenset[str]
    is_gluon: bool

    @cached_property
    def source(self) -> "KernelSource":
        return read_source(self.function)

    def field_type(self, name: str) -> type:
        """Return the type of a key's values: as annotated, as its default is, or text where it is compared with one."""
        annotation, default = self.function.__annotations__.get(name), self.defaults.get(name)
        if annotation in (str, "str") or isinstance(default, str) or name in self.source.texts:
            return str
        return int


def read_signature(kernel: Any) -> Signature:
    """Read the parameters of what ``triton.jit`` or ``triton.heuristics`` returned.

    Raises:
        UsageError: it is neither.
    """
    function, heuristics, is_gluon = kernel, set[str](), False
    while not inspect.isfunction(function):
        if type(function).__name__ == "Autotuner":
            name = getattr(function, "__name__", "the kernel")
            raise UsageError(f"{name} is under triton.autotune; put @autotune.tuned(...) in place of that decorator")
        heuristics |= set(getattr(function, "values", ()))
        is_gluon |= ".gluon." in f"{type(function).__module__}."
        function = getattr(function, "fn", None)
        if function is None:
            break
    if function is None or function is kernel:
        raise UsageError(f"kernel={kernel!r} is no kernel of Triton's; put @autotune.tuned(...) above @triton.jit")
    parameters = inspect.signature(function).parameters
    return Signature(
        function,
        tuple(parameters),
        {name: each.default for name, each in parameters.items() if each.default is not inspect.Parameter.empty},
        frozenset(name for name, each in parameters.items() if "constexpr" in str(each.annotation)),
        frozenset(heuristics),
        is_gluon,
    )


@dataclass
class KernelSource:
    """The uses of a kernel's parameters in its source and in the functions that it calls."""

    written: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    has_masks: bool = False
    has_atomics: bool = False
    has_dots: bool = False
    is_ieee: bool = False  # asks for products of fp32 in fp32, which Triton rounds to TF32 by itself


@cache
def read_source(function: Callable[..., Any]) -> KernelSource:
    """Follow pointers from a kernel's parameters to what it stores and loads.

    A pointer's base is a parameter that its expression reaches by assignments, offsets and descriptors; what was loaded
    from memory is no base. So ``c_ptr`` is found behind ``c_ptrs = c_ptr + stride_cm * offs[:, None]``, together with
    ``stride_cm``, which is no tensor when the kernel is called; a pointer that is itself loaded has no base.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return _Reader(tree, getattr(function, "__globals__", {})).read()


class _Reader:
    """Reads one function."""

    def __init__(self, tree: ast.FunctionDef, names: Mapping[str, Any]) -> None:
        self._body = [node for statement in tree.body for node in ast.walk(statement)]
        self._names = names
        self._parameters = [each.arg for each in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
        self._assigned: dict[str, list[ast.expr]] = {}
        for node in self._body:
            for target, value in _assignments(node):
                self._assigned.setdefault(target, []).append(value)

    def read(self) -> KernelSource:
        found = KernelSource()
        for node in self._body:
            if isinstance(node, ast.Call):
                self._read_call(node, found)
            elif isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in sides):
                    found.texts |= {each.id for each in sides if isinstance(each, ast.Name)}
        found.written = [name for name in self._parameters if name in found.written]
        return found

    def _read_call(self, call: ast.Call, found: KernelSource) -> None:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        is_atomic = name.startswith("atomic_")
        if name in STORES or is_atomic:
            found.written += self._bases_of_access(call)
            found.has_masks |= _is_masked(call, 2)
            found.has_atomics |= is_atomic
        if name in LOADS or is_atomic:
            found.read |= set(self._bases_of_access(call))
            found.has_masks |= _is_masked(call, 1)
        if name == "dot":
            found.has_dots = True
            found.is_ieee |= any(
                isinstance(each.value, ast.Constant)
                and (each.arg, each.value.value) in (("input_precision", "ieee"), ("allow_tf32", False))
                for each in call.keywords
            )
        called = self._names.get(name) if isinstance(call.func, ast.Name) else None
        function = getattr(called, "fn", None)
        if inspect.isfunction(function):
            self._read_helper(call, function, found)

    def _read_helper(self, call: ast.Call, function: Callable[..., Any], found: KernelSource) -> None:
        """Take what a function of Triton's that is called does with its arguments for what this one does."""
        inner, names = read_source(function), list(inspect.signature(function).parameters)
        given = dict(zip(names, call.args, strict=False))
        given |= {each.arg: each.value for each in call.keywords if each.arg is not None}
        for name, value in given.items():
            if name in inner.written:
                found.written += self._bases(value)
            if name in inner.read:
                found.read |= set(self._bases(value))
        found.has_masks |= inner.has_masks
        found.has_atomics |= inner.has_atomics
        found.has_dots |= inner.has_dots
        found.is_ieee |= inner.is_ieee

    def _bases_of_access(self, call: ast.Call) -> list[str]:
        """Return the bases of ``descriptor.store(...)``, or of the first argument of ``tl.store(...)``."""
        owner = self._bases(call.func.value) if isinstance(call.func, ast.Attribute) else []
        return owner or (self._bases(call.args[0]) if call.args else [])

    def _bases(self, value: ast.AST, seen: frozenset[str] = frozenset()) -> list[str]:
        if isinstance(value, ast.Call) and getattr(value.func, "attr", "") in LOADS:
            return []
        if isinstance(value, ast.Name):
            if value.id in seen:
                return []
            found = [value.id] if value.id in self._parameters else []
            for each in self._assigned.get(value.id, ()):
                found += self._bases(each, seen | {value.id})
            return found
        return [name for child in ast.iter_child_nodes(value) for name in self._bases(child, seen)]


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a node binds, each with the expression that it is bound to."""
    value = getattr(node, "iter", None) if isinstance(node, ast.For) else getattr(node, "value", None)
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For) and value is not None:
        for target in targets:
            for each in ast.walk(target) if target is not None else ():
                if isinstance(each, ast.Name):
                    yield each.id, value


def _is_masked(call: ast.Call, place: int) -> bool:
    return len(call.args) > place or any(each.arg in ("mask", "boundary_check") for each in call.keywords)
