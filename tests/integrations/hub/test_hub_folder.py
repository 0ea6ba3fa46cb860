"""The folder of the kernel is whole, and registering says which versions do not fit; ``kernels`` is not needed."""

import json
import os
from types import ModuleType
from typing import Any

import pytest

from autotune.errors import MissingDependencyError
from autotune.integrations import flash_attn, hub
from autotune.integrations.hub import FOLDER, NAME, kernel


def test_the_folder_is_what_kernels_reads() -> None:
    assert {each.name for each in FOLDER.iterdir()} - {"__pycache__"} == {"__init__.py", "metadata.json"}
    metadata = json.loads((FOLDER / "metadata.json").read_text())
    assert metadata["id"].isidentifier()
    assert NAME.endswith(f"/{metadata['name']}")
    assert metadata.keys() == {"id", "name", "version", "license", "python-depends", "backend"}


def test_its_functions_are_those_of_flash_attns_names() -> None:
    assert set(kernel.__all__) == {name for name in vars(flash_attn) if name.startswith("flash_attn")}
    assert all(getattr(kernel, name) is getattr(flash_attn, name) for name in kernel.__all__)


@pytest.fixture
def import_utils() -> ModuleType:
    found: ModuleType = pytest.importorskip("transformers.utils.import_utils")
    return found


def test_registering_adds_to_the_folders_of_others_once(import_utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda: True)
    monkeypatch.setenv("LOCAL_KERNELS", f"{NAME}=/elsewhere:org/other=/there")
    hub.register()
    hub.register()
    assert os.environ["LOCAL_KERNELS"] == f"org/other=/there:{NAME}={FOLDER}"


def test_versions_that_do_not_fit_are_named(import_utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda: False)
    monkeypatch.setattr(import_utils, "KERNELS_MIN_VERSION", "7.1")
    monkeypatch.setattr(hub, "version", lambda name: "6.2")
    monkeypatch.delenv("LOCAL_KERNELS", raising=False)
    with pytest.raises(MissingDependencyError, match=r"transformers \S+ loads \S+ by kernels>=7\.1,<.*kernels 6\.2 is"):
        hub.register()
    assert "LOCAL_KERNELS" not in os.environ
