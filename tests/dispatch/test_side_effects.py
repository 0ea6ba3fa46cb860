"""Side effects that a lookup must never have: write, make folders, load heavy libraries."""

from pathlib import Path
from typing import Final

import pytest

from autotune.dispatch import get_kernel
from autotune.errors import NoTunedKernelError
from tests import sample
from tests.dispatch.tables import H200, Tables, in_fresh_process


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder, with the moments and the bytes of the files."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *sorted(folder.rglob("*"))]
        if path.exists()
    }


def test_a_home_that_does_not_exist_is_not_made(tables: Tables) -> None:
    tables.ship(sample.trial())
    assert get_kernel(sample.shape(), device=H200).provenance.rung == "exact"
    assert not tables.home.exists()


def test_a_lookup_writes_nothing(tables: Tables) -> None:
    tables.tune(sample.trial())
    before = snapshot(tables.home)
    for batch in (16, 10, 1):
        get_kernel(sample.shape(batch=batch), device=H200)
    with pytest.raises(NoTunedKernelError):
        get_kernel(sample.shape(batch=1), device=H200, on_miss="error")
    assert snapshot(tables.home) == before


LOADED: Final = """
import sys, autotune
from autotune import platforms
platforms.has_driver = lambda: False
shape = autotune.AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
rung = autotune.get_kernel(shape, device={device!r}).provenance.rung
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(rung, *(loaded & {{"optuna", "sqlalchemy", "triton", "torch", "rich"}}))
"""


@pytest.mark.parametrize(
    ("device", "rung"),
    [(H200, "exact"), ("A100", "default"), ("RTX 4090", "default"), ("MI300X", "default"), ("sm_100", "default")],
)
def test_a_lookup_loads_no_heavy_library(tables: Tables, device: str, rung: str) -> None:
    """Nor does one for a GPU of which no row is: without a driver there is none here that could have its name."""
    tables.tune(sample.trial())
    assert in_fresh_process(LOADED.format(device=device), tables.home).split() == [rung]
