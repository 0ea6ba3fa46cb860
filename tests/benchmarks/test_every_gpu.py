"""A command on every GPU at once: its part, its GPU, its cores and its exit code; and parts of lists."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from benchmarks.every_gpu import run_all, visible_gpus
from benchmarks.problem_parts import cut, deal

TELL: Final = """
import os, sys
print(os.environ["CUDA_VISIBLE_DEVICES"], *sys.argv[1:], *sorted(os.sched_getaffinity(0)))
sys.exit(int(os.environ["CUDA_VISIBLE_DEVICES"]))
"""


def test_each_gpu_runs_its_part_alone(capfd: pytest.CaptureFixture[str]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert run_all([sys.executable, "-c", TELL, "--results", "out/{gpu}"], ["3", "5"]) == 5
    expected = [
        " ".join(map(str, (f"[{number}]", gpu, "--results", f"out/{number}", "--part", f"{number}/2", *own)))
        for number, gpu, own in ((1, 3, cores[::2]), (2, 5, cores[1::2] or cores))
    ]
    assert sorted(capfd.readouterr().out.splitlines()) == expected
    assert sorted(os.sched_getaffinity(0)) == cores


def test_only_visible_gpus_are_used() -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2,GPU-7a"}) == ["2", "GPU-7a"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("split", [cut, deal])
def test_parts_are_all_problems_once_and_about_equal(
    split: Callable[[Sequence[int], tuple[int, int]], list[int]], count: int
) -> None:
    problems = list(range(23))
    parts = [split(problems, (number, count)) for number in range(1, count + 1)]
    assert sorted(each for part in parts for each in part) == problems
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if split is cut:
        assert [each for part in parts for each in part] == problems
    else:
        assert all(part == sorted(part) for part in parts)
