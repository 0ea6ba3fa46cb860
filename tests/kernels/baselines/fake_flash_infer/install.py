"""A stand-in for FlashInfer 0.5.3 on the CPU: its signatures, its checks, and attention in fp64 from what it is given.

It refuses what the library, its bindings or its kernels refuse; where they define no result, its own is NaN.
"""

import sys
from types import ModuleType

import pytest

from tests.kernels.baselines.fake_flash_infer.library import Library
from tests.kernels.baselines.fake_flash_infer.paged import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
)
from tests.kernels.baselines.fake_flash_infer.unpaged import BatchPrefillWithRaggedKVCacheWrapper, run_function


def install(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Let ``import flashinfer`` find the stand-in, until the test ends."""
    library = Library()
    module = ModuleType("flashinfer")
    wrappers = (
        *(BatchPrefillWithRaggedKVCacheWrapper, BatchDecodeWithPagedKVCacheWrapper),
        BatchPrefillWithPagedKVCacheWrapper,
    )
    for wrapper in wrappers:
        vars(module)[wrapper.__name__] = type(wrapper.__name__, (wrapper,), {"library": library})
    vars(module)["single_prefill_with_kv_cache"] = run_function(library)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    return library
