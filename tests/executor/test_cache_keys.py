"""A process finds in the cache what another compiled, whatever either compiled before."""

import subprocess
import sys

import pytest

PRINT_KEY = """
from autotune.kernels.compiles import settle_cache_keys
from autotune.kernels.paged_decode.triton import forward
settle_cache_keys()
for name in {before}:
    getattr(forward, name).cache_key
print(forward.paged_decode_flat.cache_key)
"""


def key(before: list[str]) -> str:
    """The key of a kernel's source in a fresh process that asked for those of others before."""
    script = PRINT_KEY.format(before=before)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_the_key_of_a_kernel_does_not_depend_on_what_was_compiled_before() -> None:
    assert key([]) == key(["paged_decode_split"]) == key(["merge_partials", "fold_tile"])
