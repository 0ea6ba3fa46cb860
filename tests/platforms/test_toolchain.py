"""The toolchain is read as rows keep it; what is absent is empty."""

import importlib.metadata
import subprocess
from types import SimpleNamespace

import pytest

from autotune import platforms
from autotune.platforms import nvidia
from autotune.version import VERSION
from tests.platforms.fake_machine import FakeNVML, fake_torch, install


def test_the_toolchain_names_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"triton": "3.6.0", "torch": "2.13.0"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    install(monkeypatch, torch=fake_torch(), pynvml=FakeNVML())
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/opt/ptxas")
    asked: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], **options: object) -> SimpleNamespace:
        asked.append(command)
        return SimpleNamespace(stdout="Cuda compilation tools, release 12.8, V12.8.93\n")

    monkeypatch.setattr(subprocess, "run", run)
    tools = platforms.toolchain()
    assert (tools.tool, tools.triton, tools.ptxas) == (VERSION, "3.6.0", "12.8.93")
    assert (tools.torch, tools.cuda, tools.driver) == ("2.13.0", "13.0", "580.1")
    assert asked == [("/opt/ptxas", "--version")]


def test_absent_parts_of_the_toolchain_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_version(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", no_version)
    monkeypatch.setattr(importlib.metadata, "distribution", no_version)
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    install(monkeypatch, torch=None, pynvml=None)
    tools = platforms.toolchain()
    assert (tools.tool, tools.triton, tools.ptxas) == (VERSION, "", "")
    assert (tools.torch, tools.cuda, tools.driver) == ("", "", "")


def test_a_ptxas_that_does_not_run_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/nonexistent/ptxas", "/bin/false"):
        monkeypatch.setenv("TRITON_PTXAS_PATH", path)
        assert nvidia.ptxas_version() == ""
