"""Whose table is read, and when; a damaged or forbidden one is warned of, and the shipped one serves."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from autotune.dispatch import get_kernel, reload
from autotune.table import Store
from tests import sample
from tests.dispatch.tables import H200, SLOWER, Tables, served_from

NOBODY: Final = 65534


def test_the_users_row_beats_the_shipped_one_of_the_same_shape_only(tables: Tables) -> None:
    tables.ship(sample.trial(sample.shape(1024)), sample.trial(sample.shape(4096)))
    tables.tune(sample.trial(sample.shape(1024), SLOWER))
    users, shipped = (get_kernel(sample.shape(seq), device=H200) for seq in (1024, 4096))
    assert (users.config, users.provenance.origin) == (SLOWER, "user")
    assert (shipped.config, shipped.provenance.origin) == (sample.FAST, "shipped")


def test_only_reload_sees_a_changed_table(tables: Tables) -> None:
    tables.ship(sample.trial())
    first = get_kernel(sample.shape(), device=H200)
    Store(tables.home).append([sample.trial(chosen=SLOWER)])
    assert get_kernel(sample.shape(), device=H200) is first
    assert get_kernel(sample.shape(batch=15), device=H200).config == sample.FAST
    reload()
    assert get_kernel(sample.shape(), device=H200).config == SLOWER


def test_a_repeated_lookup_is_the_same_object(tables: Tables) -> None:
    assert get_kernel(sample.shape(), device=H200) is get_kernel(sample.shape(), device=H200)


def test_a_damaged_users_table_is_warned_of_once_and_the_shipped_one_serves(tables: Tables) -> None:
    tables.ship(sample.trial())
    part = tables.home / "nvidia_h200" / "flash_attention" / f"{'0' * 64}.parquet"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"PAR1")
    with pytest.warns(RuntimeWarning) as caught:
        assert get_kernel(sample.shape(), device=H200).provenance.origin == "shipped"
    assert len(caught) == 1
    assert f"`mv {part.parent}/000000000000*.parquet " in str(caught[0].message)
    reload()
    with warnings.catch_warnings(action="error"):
        assert get_kernel(sample.shape(), device=H200).provenance.origin == "shipped"


@pytest.mark.parametrize("device", [H200, "h200", None])
def test_tables_of_other_devices_are_not_read(tables: Tables, device: str | None) -> None:
    tables.tune(sample.trial())
    part = tables.home / "nvidia_l40s" / "flash_attention" / "triton" / f"{'0' * 64}.parquet"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"PAR1")
    with warnings.catch_warnings(action="error"):
        assert get_kernel(sample.shape(), device=device).provenance.rung == "exact"
    with pytest.warns(RuntimeWarning, match="nvidia_l40s"):
        get_kernel(sample.shape(), device="NVIDIA L40S")


@pytest.fixture
def unprivileged() -> Iterator[Tables]:
    """Tables in a folder that anyone may enter, read by one for whom permissions count, even in root's tests."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-test-"))
    folder.chmod(0o755)
    is_root = os.geteuid() == 0
    try:
        with served_from(Tables(folder)) as tables:
            yield tables
    finally:
        if is_root:
            os.seteuid(0)
        tables.home.chmod(0o755)
        shutil.rmtree(folder)


def step_down() -> None:
    if os.geteuid() == 0:
        os.seteuid(NOBODY)


def test_a_read_only_home_serves(unprivileged: Tables) -> None:
    unprivileged.tune(sample.trial(chosen=SLOWER))
    unprivileged.home.chmod(0o555)
    step_down()
    assert get_kernel(sample.shape(), device=H200).config == SLOWER
    with pytest.warns(RuntimeWarning, match=r"cannot be recorded in .*misses\.jsonl \(Permission denied\); `autotune"):
        missed = get_kernel(sample.shape(batch=1), device=H200, on_miss="record")  # and is served
    assert missed.provenance.rung == "default"


def test_a_home_that_may_not_be_read_is_warned_of(unprivileged: Tables) -> None:
    unprivileged.tune(sample.trial(chosen=SLOWER))
    unprivileged.ship(sample.trial())
    unprivileged.home.chmod(0o000)
    step_down()
    with pytest.warns(RuntimeWarning, match=str(unprivileged.home)):
        assert get_kernel(sample.shape(), device=H200).provenance.origin == "shipped"
