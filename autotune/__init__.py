"""Tune Triton attention kernels on your device, keep what was learned in Parquet, serve the best kernel for a shape.

``get_kernel(shape)`` reads the tables; ``attention``, ``attention_varlen``, ``paged_decode`` and ``paged_prefill`` pick
by their tensors; ``append_kv`` and ``PagedKVCache`` fill paged caches; ``tune``, or ``autotune search`` on the command
line, fills the tables; ``warm`` compiles ahead, ``stats`` and the logger ``autotune`` tell what a process is served.
``pull_tables`` and ``tables_digest`` keep the servers of a fleet alike.
"""

try:
    from autotune.console import interrupts as _interrupts

    if _interrupts.is_command():
        _interrupts.leave_at_once()  # Ctrl-C while it imports what follows is no traceback
except KeyboardInterrupt:  # nor in the milliseconds before
    from autotune.console import interrupts as _interrupts

    if _interrupts.is_command():
        _interrupts.stop_at_once()
    raise

import importlib
from typing import TYPE_CHECKING, Any

from autotune import platforms as _platforms  # noqa: F401 (adds the vendors' architectures, which devices ask for)
from autotune.errors import AutotuneError, OutOfPagesError, SealedError
from autotune.registry import register, register_implementation
from autotune.shape import AttentionShape, PagedShape
from autotune.varlen_shape import VarlenShape
from autotune.version import VERSION as __version__  # noqa: N811 - the name that everyone asks for

if TYPE_CHECKING:
    from autotune.decorated import DecoratedKernel, tuned
    from autotune.dispatch import Provenance, Stats, TunedKernel, get_kernel, reload, seal, stats, unseal
    from autotune.functional import attention, merge_attention
    from autotune.paged import append_kv, paged_decode, paged_prefill
    from autotune.paged_cache import PagedKVCache
    from autotune.table.digest import TablesDigest, tables_digest
    from autotune.table.pull import Pulled, pull_tables
    from autotune.tuning import TunedShape, Tuning, tune
    from autotune.varlen import attention_varlen
    from autotune.warming import WarmedShape, warm

__all__ = [
    "AttentionShape",
    "AutotuneError",
    "DecoratedKernel",
    "OutOfPagesError",
    "PagedKVCache",
    "PagedShape",
    "Provenance",
    "Pulled",
    "SealedError",
    "Stats",
    "TablesDigest",
    "TunedKernel",
    "TunedShape",
    "Tuning",
    "VarlenShape",
    "WarmedShape",
    "__version__",
    "append_kv",
    "attention",
    "attention_varlen",
    "get_kernel",
    "merge_attention",
    "paged_decode",
    "paged_prefill",
    "pull_tables",
    "register",
    "register_implementation",
    "reload",
    "seal",
    "stats",
    "tables_digest",
    "tune",
    "tuned",
    "unseal",
    "warm",
]

# By their modules, which are imported on first use. A serving process does without Optuna and the compile server, and
# what starts a search without what serves: every process of it imports this package before torch.
_LATER = {
    **dict.fromkeys(
        ("Provenance", "Stats", "TunedKernel", "get_kernel", "reload", "seal", "stats", "unseal"), "autotune.dispatch"
    ),
    **dict.fromkeys(("DecoratedKernel", "tuned"), "autotune.decorated"),
    **dict.fromkeys(("attention", "merge_attention"), "autotune.functional"),
    **dict.fromkeys(("append_kv", "paged_decode", "paged_prefill"), "autotune.paged"),
    "PagedKVCache": "autotune.paged_cache",
    **dict.fromkeys(("Pulled", "pull_tables"), "autotune.table.pull"),
    **dict.fromkeys(("TablesDigest", "tables_digest"), "autotune.table.digest"),
    **dict.fromkeys(("TunedShape", "Tuning", "tune"), "autotune.tuning"),
    "attention_varlen": "autotune.varlen",
    **dict.fromkeys(("WarmedShape", "warm"), "autotune.warming"),
}


def __getattr__(name: str) -> Any:
    """Import what serves, tunes or compiles ahead on first use, and keep it: a later use costs no call."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
