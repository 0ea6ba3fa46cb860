"""Triton's hash of its own files, which stands in the key of every compile: taken once, beside a child's imports.

Reading and hashing them takes 0.40 s (Triton 3.6.0 under cProfile, 2 cores of a Xeon, 2026-11-23), and a forked
compiler is always at its first compile: of the 1.0 s that the median config of a sweep took on an H200 host, 0.36.
"""

import contextlib
import importlib
import threading
from typing import Any, Final

_lock: Final = threading.Lock()


def begin_hashing() -> None:
    """Call ``hash_compiler`` in a thread: the hash leaves the interpreter to what else is imported meanwhile."""
    _import_compiler()  # here, so that two threads never import one package
    threading.Thread(target=hash_compiler, name="hash of Triton", daemon=True).start()


def hash_compiler() -> None:
    """Make Triton hash its files, and load what a first compile loads; a later call costs nothing.

    It waits for one that is under way in another thread, so that a process may fork afterwards.
    """
    with _lock, contextlib.suppress(AttributeError, OSError):  # met again, and told, by a compile
        if (cache := _import_compiler()) is not None:
            cache.triton_key()  # Triton 3.6 to 3.9, which keeps the answer


def _import_compiler() -> Any:
    """Return the module that knows the hash; None where Triton is not installed, or too old."""
    with contextlib.suppress(ImportError):
        importlib.import_module("triton.experimental.gluon.nvidia.hopper")  # by the first tensor descriptor
        return importlib.import_module("triton.runtime.cache")
    return None
