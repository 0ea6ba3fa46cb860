"""Registration without vLLM, or with another version: it says so, and the entry point stops no server."""

import sys

import pytest

from autotune.errors import MissingDependencyError
from autotune.integrations.vllm import load_plugin, register


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.registry", None)


def test_an_absent_package_is_named() -> None:
    with pytest.raises(MissingDependencyError, match=r"vllm 0\.33 is needed.*pip install vllm"):
        register()


def test_the_entry_point_warns(caplog: pytest.LogCaptureFixture) -> None:
    load_plugin()
    assert "--attention-backend CUSTOM is not there: vllm 0.33 is needed" in caplog.text
