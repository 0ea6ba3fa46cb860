"""Less time in Triton's interpreter: its language is patched once a launch, not at every call of a device function.

A launch replaces the builtins of ``triton.language`` by those of the interpreter, and each call of a device function
looks through all of them again, to find them replaced: half of the time of a kernel of many small functions
(Triton 3.6.0, paged decode, 2026-11-26, cProfile).
"""

from collections.abc import Callable
from functools import cache
from typing import Any


def patch_once_a_launch() -> None:
    """Spare this process the patches that find nothing to replace; an interpreter without them stays as it is."""
    import triton.language as tl
    from triton.runtime import interpreter

    if not all(hasattr(interpreter, name) for name in ("_patch_lang", "_LangPatchScope", "GridExecutor")):
        return
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    launches: list[set[Any]] = []  # of those that run, the modules that are patched

    @cache
    def modules_of(function: Callable[..., Any]) -> frozenset[Any]:
        return frozenset(each for each in function.__globals__.values() if each is tl or each is tl.core)

    def patch_once(function: Callable[..., Any]) -> Any:
        modules = modules_of(function)
        if not launches or not modules:
            return patch(function)
        if modules <= launches[-1]:
            return interpreter._LangPatchScope()
        launches[-1].update(modules)
        return patch(function)

    def launch_tracked(self: Any, *arguments: Any, **named: Any) -> Any:
        launches.append(set())
        try:
            return launch(self, *arguments, **named)
        finally:
            launches.pop()

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch_tracked
