"""Fixtures of the table tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def unprivileged_folder() -> Iterator[Path]:
    """A folder of one's own, with permissions that count: root, which may do anything, steps down for the test."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-test-"))
    nobody = 65534
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(folder, nobody, nobody)
        os.seteuid(nobody)
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        shutil.rmtree(folder)
