"""Prefill beside its peers: the parts, what is compared, and what falls short."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.executor import BaselineResult, Race
from autotune.registry import get_operation
from autotune.table import Store
from autotune.trial import Candidate, Outcome, Stage, Status
from benchmarks import prefill
from tests import sample

TIMES: Final = {"sdpa cudnn": 110.0, "flex": 105.0}


class Racer:
    """Answers races by the same times."""

    device = NVIDIA_H200
    name = "gpu"

    def toolchain_of(self, implementation: str) -> Any:
        return sample.TOOLCHAIN

    def __init__(self, status: Status = Status.OK) -> None:
        self.status = status

    def open(self, operation: Any, shape: Any) -> None:
        pass

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Any) -> Race:
        assert set(TIMES) <= set(baselines)
        timing = sample.timing(100.0) if self.status is Status.OK else None
        peers = [BaselineResult(name, sample.timing(time)) for name, time in TIMES.items()]
        return Race((Outcome(candidate=candidates[0], status=self.status, timing=timing, message="no"),), tuple(peers))


def test_the_parts_are_of_the_shapes_that_are_named() -> None:
    found = prefill.parts(3, 5, is_tuned=False)
    assert {name: len(part.shapes) for name, part in found.items()} == {
        "cells": 16, "wide": 11, "windows": 8, "drawn": 5,
    }  # fmt: skip
    for part in found.values():
        assert all(get_operation("flash_attention").unsupported(shape) is None for shape in part.shapes)
    assert {shape.as_dict()["window"] for shape in found["windows"].shapes} == {128, 512, 1024, 4096}
    assert (found["drawn"].mean, prefill.parts(3, 5, is_tuned=True)["drawn"].mean) == (1.0, 1.03)


def test_a_row_has_its_peers_and_the_mean_is_of_the_wanted_one(capsys: pytest.CaptureFixture[str]) -> None:
    executor: Any = Racer()
    shapes = prefill.parts(0, 2, is_tuned=False)["windows"].shapes[:2]
    for against, mean in (("sdpa cudnn", "1.100"), ("", "1.050")):
        part = prefill.PeerComparison(shapes, against, 1.07, 1.0)
        assert prefill.run_part("windows", part, executor) == (against != "")
        printed = capsys.readouterr().out
        assert printed.count(" | 1.100 | 1.050 | ") == 2
        assert f"over ours {mean} in the geometric mean of 2, {mean} at worst; wanted 1.07 and 1" in printed


def test_a_kernel_that_fails_is_told_and_falls_short(capsys: pytest.CaptureFixture[str]) -> None:
    executor: Any = Racer(Status.WRONG_RESULT)
    part = prefill.PeerComparison(prefill.parts(0, 1, is_tuned=False)["windows"].shapes[:1], "", 0.1)
    assert not prefill.run_part("windows", part, executor)
    assert "| no |" in capsys.readouterr().out


def test_a_shape_without_a_peer_counts_only_where_the_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    executor: Any = Racer()
    shapes = prefill.parts(0, 2, is_tuned=False)["windows"].shapes[:2]
    ratios = iter([1.2, float("inf")] * 2)
    monkeypatch.setattr(prefill, "compare", lambda *_: next(ratios))
    assert prefill.run_part("drawn", prefill.PeerComparison(shapes, "", 1.0), executor)
    assert not prefill.run_part("cells", prefill.PeerComparison(shapes, "sdpa cudnn", 1.0), executor)


def test_what_a_store_has_a_race_of_that_was_measured_as_here_is_not_searched_again(tmp_path: Path) -> None:
    shapes = prefill.parts(0, 6, is_tuned=True)["drawn"].shapes
    executor: Any = Racer()
    store = Store(tmp_path)
    assert prefill.unraced(shapes, executor, store) == list(shapes)
    h100 = replace(NVIDIA_H200, name="NVIDIA H100 80GB HBM3", memory_mib=81559)
    store.append([sample.trial(shapes[1]), sample.trial(shapes[2], stage=Stage.SCREEN)])
    store.append([sample.trial(shapes[3], device=h100)])
    store.append([sample.trial(shapes[4], source_hash="ab" * 32), sample.trial(shapes[5], executor="replay")])
    assert prefill.unraced(shapes, executor, store) == [shapes[0], *shapes[2:]]


def test_a_store_keeps_nothing_where_nothing_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        prefill.main(["drawn", "--store", "here"])
    assert "--store keeps searches, which --tune makes" in capsys.readouterr().err
