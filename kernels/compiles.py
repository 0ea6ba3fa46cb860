"""Triton's compiles in this process: who is told before and after each of a kernel that is served."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from triton import knobs

_packages: Final[set[str]] = set()
_lock: Final = threading.Lock()


def watch(package: str, begin: Callable[[str], None], end: Callable[[str, float, bool], None]) -> None:
    """Call ``begin`` before and ``end`` after each compile of the kernels of a package, or module, in this process.

    A binary that Triton finds in its cache on disk counts as a compile that takes milliseconds; one that this process
    holds already is none. ``begin`` takes the kernel's name and is not called for what is compiled ahead (``warmup``);
    what it raises ends the call that would compile. ``end`` takes the name, the seconds, and if it was ahead. Others'
    hooks are called as before.
    """
    with _lock:
        if not _packages:
            _install(begin, end)
        _packages.add(package)


def _install(begin: Callable[[str], None], end: Callable[[str, float, bool], None]) -> None:
    others_before, others_after = knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook
    started: dict[tuple[int, str], float] = {}  # by thread and kernel

    def before(*, fn: Any, is_manual_warmup: bool, **details: Any) -> Any:
        stops = others_before(fn=fn, is_manual_warmup=is_manual_warmup, **details) if others_before else None
        if not stops and _is_watched(fn.module):
            if not is_manual_warmup:
                begin(fn.name)
            started[threading.get_ident(), fn.name] = time.perf_counter()
        return stops

    def after(*, fn: Any, is_manual_warmup: bool, **details: Any) -> Any:
        since = started.pop((threading.get_ident(), fn.name), None)
        if since is not None:
            end(fn.name, time.perf_counter() - since, is_manual_warmup)
        return others_after(fn=fn, is_manual_warmup=is_manual_warmup, **details) if others_after else None

    knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook = before, after


def _is_watched(module: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in _packages)
