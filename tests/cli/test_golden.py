"""The printed text of each core command, pinned in one golden file a command (``tests/golden.py``)."""

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from autotune import platforms, warming
from autotune.cli import health
from autotune.device import NVIDIA_H200, Device
from autotune.shape import Shape
from autotune.table import write_shipped
from autotune.trial import Candidate, Outcome, Policy, Stage, Status, Timing
from tests import flex_sample, sample
from tests.cli.conftest import Machine, Ran
from tests.golden import assert_golden

Run = Callable[..., Ran]

FOLDER: Final = Path(__file__).parent / "golden"
LOSER: Final = sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4)
FLEX: Final = str(flex_sample.tuned(sample.shape()))
SMALL: Final = ("--batch", "1", "--heads", "2", "--seq", "128", "--head-dim", "256", "--window", "64", "--softcap")

COMMANDS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "autotune": (("--help",), (), ("--version",), ("tune",), ("analyze", "--help"), ("analyze",)),
    "show": (
        ("show", "--help"),
        ("show",),
        ("show", "--device", "nvidia b200"),
        ("show", "--all", "--implementation", "triton"),
        ("show", "--implementation", "cuda"),
        ("show", "--operation", "paged_decode"),
        ("show", "--operation", "conv"),
        ("show", "--device", "NVIDA H200"),
        ("show", "--tables", "/nonexistent"),
        ("show", "extra"),
    ),
    "lookup": (
        ("lookup", "--help"),
        ("lookup",),
        ("lookup", "--device", "NVIDIA H200", "--seq", "700,65536"),
        ("lookup", "--device", "a100"),
        ("lookup", "--device", "sm_89"),
        ("lookup", "--device", "A1000"),
        ("lookup", "--among", "flex"),
        ("lookup", "--among", "fastest", "--seq", "2048"),
        ("lookup", "--among", "cuda"),
        ("lookup", "--model", "gemma-2-9b", "--seq", "512"),
        ("lookup", "--model", "Qwen/Qwen2.5-7B"),
        ("lookup", "--operation", "paged_prefill", "--ragged"),
        ("lookup", "--operation", "paged_decode", "--no-causal"),
        ("lookup", "--head-dim", "100"),
        ("lookup", "--heads", "two"),
    ),
    "explain": (
        ("explain", "--help"),
        ("explain", str(sample.FAST)),
        ("explain", str(LOSER)),
        ("explain", str(sample.config(BLOCK_K=32))),
        ("explain", str(sample.config(BLOCK_K=16))),
        ("explain", str(sample.FAST), "--seq", "64,700"),
        ("explain", str(sample.FAST), "--seq", "4096"),
        ("explain", FLEX, "--implementation", "flex"),
        ("explain", "foo=64"),
        ("explain",),
    ),
    "export": (
        ("export", "--help"),
        ("export", "--format", "triton-config"),
        ("export", "--format", "vllm"),
        ("export", "--format", "vllm", "--key", "dtype"),
        ("export", "--key", "batch"),
        ("export", "--implementation", "flex", "--format", "flex"),
        ("export", "--operation", "paged_decode"),
        ("export", "--operation", "paged_decode", "--implementation", "triton"),
        ("export", "--format", "flex"),
        ("export", "--format", "xml"),
        ("export", "--format", "t4"),
        ("export", "--format", "t4", "--sweep", "absent"),
        ("export", "--output", "/nonexistent/winners.json"),
    ),
    "doctor": (("doctor", "--help"), ("doctor",)),
    "tables": (
        ("tables", "--help"),
        ("tables", "diff", "HOME", "HOME"),
        ("tables", "diff", "RESULTS", "HOME"),
        ("tables", "merge", "RESULTS", "--into", "MERGED"),
        ("tables", "merge", "RESULTS", "--into", "MERGED"),
        ("tables", "merge", "RESULTS", "--into", "RESULTS"),
        ("tables", "merge", "/nonexistent", "--into", "MERGED"),
        ("tables", "check", "--against", "MERGED"),
        ("tables", "check", "--against", "/nonexistent"),
        ("tables", "prune"),
        ("tables", "prune", "--failed", "--keep", "1"),
        ("tables", "prune", "--failed", "--keep", "1", "--apply"),
        ("tables", "compact"),
        ("tables", "import", "/nonexistent"),
        ("tables", "revalidate"),
        ("tables", "frobnicate"),
    ),
    "search": (
        ("search", "--help"),
        ("search", "--seq", "64", "--trials", "5"),
        ("search", "--seq", "64", "--trials", "5"),
        ("search", "--seq", "64", "--dry-run", "--jobs", "1"),
        ("search", "--seq", "64", "--dry-run", "--jobs", "1", "--device", "A100"),
        ("search", *SMALL, "--implementation", "triton,flex", "--trials", "12", "--seed", "1"),
        ("search", "--seq", "64", "--implementation", "triton,flex", "--trials", "5"),
        ("search", "--from-misses"),
        ("search", "--from-misses", "--seq", "64"),
        ("search", "--sampler", "guess"),
        ("search", "--trials", "0"),
        ("search", "--budget", "soon"),
    ),
    "verify": (
        ("verify", "--help"),
        ("verify", "--seq", "64,96", "--trials", "5"),
        ("verify", "--shapes", "2", "--trials", "5", "--seed", "1"),
        ("verify", "--seq", "64,80,96", "--shapes", "1", "--trials", "5"),
        ("verify", "--shapes", "0"),
        ("verify", "--model", "gpt-5"),
        ("verify", "--head-dim", "96"),
        ("verify", "--operation", "paged_prefill", "--trials", "5"),
    ),
    "warmup": (
        ("warmup", "--help"),
        ("warmup", "--model", "llama-3.1-8b", "--tp", "2", "--device", "A100"),
        ("warmup", "--seq", "1024,4096", "--window", "64", "--device", "h200", "--every-output"),
        ("warmup", "--device", "h200", "--json"),
        ("warmup",),
        ("warmup", "--device", "A1000"),
    ),
    "sweep": (("sweep", "--help"), ("sweep",), ("sweep", "--cache", "tepid")),
}


class Pool:
    """A compile server that is done at once, and cannot compile anything of length 4096."""

    def __init__(self, device: Device, *, jobs: int, timeout: float) -> None:
        self.device = device

    def open(self, operation: object, shape: Shape) -> None:
        self.is_refused = "seq 4096" in str(shape)

    def submit(self, candidate: Candidate, *, every_output: bool = False) -> None:
        self.candidate = candidate

    def receive(self, timeout: float) -> Outcome:
        if self.is_refused:
            return Outcome(candidate=self.candidate, status=Status.COMPILE_ERROR, message="no such instruction")
        return Outcome(candidate=self.candidate, status=Status.OK)

    def close(self) -> None:
        pass


@pytest.fixture
def tables(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Winners of two devices and of two implementations, a race that a config lost, one that failed, a row that is not
    of the space, and sweeps; nothing of this machine.
    """
    machine.ship(*[sample.trial(sample.shape(seq)) for seq in (4096, 512, 1024)])
    flex = [flex_sample.trial(sample.shape(seq), baseline="sdpa cudnn") for seq in (1024, 2048)]
    machine.ship(*flex)
    machine.ship_sweep(64)
    flex_sample.ship_sweep(machine.results)
    path = Path("nvidia_h200/flash_attention/sweeps/triton_small.parquet")
    write_shipped(path, sample.sweep(flex_sample.SMALL), results=machine.results)
    machine.plant(sample.trial(sample.shape(2048)), BLOCK_K=48)
    machine.tune(
        sample.trial(timing=Timing(6.247, 6.2, 6.3, 15)),
        sample.trial(chosen=LOSER, timing=Timing(8.5, 8.4, 8.6, 15)),
        sample.trial(
            chosen=sample.config(BLOCK_K=32),
            status=Status.HANG,
            message="no answer",
            timing=None,
            stage=Stage.SCREEN,
            race_id="",
        ),
        sample.trial(device=replace(NVIDIA_H200, name="NVIDIA B200", arch="sm_100"), policy=Policy("eager", "warm")),
    )
    flex_sample.install(monkeypatch, "2.13.0+cpu")
    monkeypatch.setattr(warming, "CompilePool", Pool)
    monkeypatch.setattr(warming, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(platforms, "toolchain", lambda: sample.TOOLCHAIN)
    monkeypatch.setattr("autotune.dispatch.evidence.installed_version", lambda package: "3.9.0")
    for name, value in (("system", "Linux"), ("release", "6.1"), ("python_version", "3.11.7")):
        monkeypatch.setattr(platform, name, lambda value=value: value)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(sys, "executable", "/usr/bin/python")
    monkeypatch.setattr(health, "_numpy_version", lambda: (2, 3))
    monkeypatch.setattr(health, "installed_version", lambda library: "1.32.0")
    return machine


@pytest.mark.parametrize("command", COMMANDS)
def test_golden(
    run: Run,
    tables: Machine,
    confirmed: list[list[Candidate]],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tables.home / "cache"))
    parts = []
    for arguments in COMMANDS[command]:
        places = {"HOME": tables.home, "RESULTS": tables.results, "MERGED": tables.home.parent / "merged"}
        ran = run(*(places.get(word, word) for word in arguments))
        typed = " ".join(f"'{word}'" if " " in word else word for word in arguments)
        parts.append(f"$ autotune {typed}\n{ran.out}{_labelled(ran.err)}[{ran.code}]\n")
    text = "\n".join(parts).replace(str(tables.home), "HOME").replace(str(tables.home.parent), "TMP")
    if command != "lookup":  # whose help pins the shape options once
        text = re.sub(r"\nShape:\n.*?\n\[0\]", "\nShape:\n  ...\n[0]", text, flags=re.DOTALL)
    varying = {r"in \d+ s, (until|as)": r"in N s, \1", r"\), \d+ s left": "), N s left"}
    varying |= {r"source [0-9a-f]{12}": "source HASH", r"[0-9a-f]{64}": "HASH", r"[0-9a-f]{12}\b": "HASH"}
    varying |= {r"file +row": "file  row"}  # as wide as a path of this run
    for pattern, constant in varying.items():
        text = re.sub(pattern, constant, text)
    assert_golden(FOLDER / f"{command}.txt", text)


def _labelled(errors: str) -> str:
    return "".join(f"2> {line}\n" for line in errors.splitlines())
