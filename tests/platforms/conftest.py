"""Each test reads the machine anew."""

from collections.abc import Iterator

import pytest

from autotune import platforms
from autotune.platforms import nvidia

CACHES = (platforms._read_device, platforms.toolchain, nvidia._nvml_handle)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(platforms, "_ask_index", None)
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()
