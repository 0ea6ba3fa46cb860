"""Faults of the machine at a real compiler: damage is repaired, and what stays is said, and no verdict on a config."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.executor.compile_pool import CompilePool
from autotune.trial import Outcome, Status
from tests.executor.faulty_triton import OPERATION, SHAPE, candidate
from tests.executor.processes import watch

PATIENCE_SECONDS = 90.0


@contextmanager
def open_pool(timeout: float = PATIENCE_SECONDS) -> Iterator[CompilePool]:
    with closing(CompilePool(NVIDIA_H200, jobs=1, timeout=timeout)) as pool:
        pool.open(OPERATION, SHAPE)
        yield pool


def compile_one(pool: CompilePool, fault: str = "fine") -> Outcome:
    pool.submit(candidate(fault))
    outcome = pool.receive(PATIENCE_SECONDS)
    assert outcome is not None
    return outcome


class Compiled(NamedTuple):
    """A cache that holds one good kernel, what it was compiled to, and a pool that uses the cache."""

    cache: Path
    good: Outcome
    pool: CompilePool


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as monkeypatch, watch(monkeypatch):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
        with open_pool() as pool:
            yield Compiled(cache, compile_one(pool), pool)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"{", id="cut"),
        *(
            pytest.param(damage, id=name, marks=pytest.mark.slow)
            for name, damage in {"empty": b"", "bytes": b"\xff\xfe", "list": b"[]", "bare": b"{}"}.items()
        ),
    ],
)
@pytest.mark.parametrize("pattern", ["__grp__*.json", "_double.json", "_double.cubin"])
def test_a_damaged_entry_of_the_cache_is_replaced(compiled: Compiled, damage: bytes, pattern: str) -> None:
    (damaged,) = compiled.cache.rglob(pattern)
    damaged.write_bytes(damage)
    outcome = compile_one(compiled.pool)
    assert (outcome.status, outcome.resources) == (Status.OK, compiled.good.resources)
    assert outcome.resources.registers is not None
    (repaired,) = compiled.cache.rglob(pattern)
    assert repaired.read_bytes() != damage


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with (
        open_pool() as pool,
        pytest.raises(MissingDependencyError, match="this machine cannot compile kernels: NotADir"),
    ):
        compile_one(pool)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param(
            "exec sleep 600",
            "a kernel of one line does not compile: compiling took longer than 15 s",
            marks=pytest.mark.slow,
        ),
        ('[ "$1" = --version ] && echo "release 12.8, V12.8" || exit 3', "a kernel of one line does not compile"),
    ],
    ids=["hangs", "fails"],
)
@pytest.mark.usefixtures("processes")
def test_an_assembler_that_does_not_work_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    tool = tmp_path / "ptxas"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tool))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    with open_pool(timeout=5.0) as pool, pytest.raises(MissingDependencyError, match=message):
        compile_one(pool)


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
def test_an_assembler_that_cannot_be_executed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "ptxas"
    tool.write_bytes(b"no program")
    tool.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tool))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    with open_pool() as pool, pytest.raises(MissingDependencyError, match=r"cannot compile kernels: OSError: .*format"):
        compile_one(pool)
