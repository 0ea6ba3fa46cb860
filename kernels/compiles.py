"""Triton's compiles in this process: who is told of them, and their keys in its cache."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from triton import knobs
from triton.runtime.jit import DependenciesFinder

Begin = Callable[[str], None]
End = Callable[[str, float, bool], None]

_packages: Final[set[str]] = set()
_hooks: Final[set[Any]] = set()  # ours, which call those that they were set around
_started: Final[dict[tuple[int, str], float]] = {}  # compiles, by thread and kernel
_lock: Final = threading.Lock()


def watch(package: str, begin: Begin, end: End) -> None:
    """Call ``begin`` before and ``end`` after each compile of the kernels of a package, or module, in this process.

    A binary that Triton finds in its cache on disk counts as a compile that takes milliseconds; one that this process
    holds already is none. ``begin`` takes the kernel's name and is not called for what is compiled ahead (``warmup``);
    what it raises ends the call that would compile. ``end`` takes the name, the seconds, and if it was ahead. Others'
    hooks are called as before.
    """
    if package in _packages:
        return
    with _lock:
        if not _packages:
            settle_cache_keys()  # so that what another process compiled ahead is found
            _install(begin, end)
        _packages.add(package)


def watch_again(begin: Begin, end: End) -> None:
    """Set the hooks of ``watch`` anew, around others that somebody has set in their place since."""
    with _lock:
        if _packages and not {knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook} <= _hooks:
            _install(begin, end)


def _install(begin: Begin, end: End) -> None:
    """Set hooks; where the others call older ones of ours, a compile is still told once."""
    others_before, others_after = knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook

    def before(*, fn: Any, is_manual_warmup: bool, **details: Any) -> Any:
        stops = others_before(fn=fn, is_manual_warmup=is_manual_warmup, **details) if others_before else None
        if not stops and _is_watched(fn.module):
            if not is_manual_warmup:
                begin(fn.name)
            _started[threading.get_ident(), fn.name] = time.perf_counter()
        return stops

    def after(*, fn: Any, is_manual_warmup: bool, **details: Any) -> Any:
        since = _started.pop((threading.get_ident(), fn.name), None)
        if since is not None:
            end(fn.name, time.perf_counter() - since, is_manual_warmup)
        return others_after(fn=fn, is_manual_warmup=is_manual_warmup, **details) if others_after else None

    knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook = before, after
    _hooks.update((before, after))


def _is_watched(module: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in _packages)


def settle_cache_keys() -> None:
    """Make the key of a binary in Triton's cache the same whatever this process compiled before it.

    Triton 3.6 takes the globals of a called function into the caller's key before it has collected them, so the key of
    a kernel depends on which others were compiled earlier: of a worker and its compilers each would miss what the other
    left in the cache. Here they are collected first.
    """
    update = getattr(DependenciesFinder, "_update_hash", None)
    if update is None or getattr(update, "is_settled", False):
        return

    def settled(finder: Any, function: Any) -> None:
        _ = function.cache_key  # fills its ``used_global_vals``
        update(finder, function)

    settled.is_settled = True  # type: ignore[attr-defined]
    DependenciesFinder._update_hash = settled
