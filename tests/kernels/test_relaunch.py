"""Launches made again past Triton's ``JITFunction``: the GPU gets the same, and whoever watches sees what they saw.

Without a GPU Triton's own launcher runs over a stub of the driver that logs launches (``relaunch_cases``).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from triton import knobs

from autotune.kernels import relaunch
from tests.kernels.repeat_problems import SPLIT, Problem, attend, decode_with, prefill_with, problems
from tests.kernels.stub_cuda import build

SOURCE: Final = Path(__file__).with_name("relaunch_cases.py")
CASES: Final = re.findall(r"^@case\ndef (\w+)", SOURCE.read_text(encoding="utf-8"), re.M)
SECONDS: Final = 600  # some twenty kernels are compiled
ROUNDS: Final = 50


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Run all cases in one process, whose CUDA driver is the stub."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("stub")
    build(folder)
    places = {"TRITON_LIBCUDA_PATH": str(folder), "LD_LIBRARY_PATH": str(folder), "TRITON_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", f"tests.kernels.{SOURCE.stem}"]
    environment = {**os.environ, **places, "PYTHONPATH": str(SOURCE.parents[2])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str | None] = json.loads(ran.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_over_a_stub_of_the_driver(case: str, outcomes: dict[str, str | None]) -> None:
    assert outcomes[case] is None, outcomes[case]


def test_every_case_is_run() -> None:
    assert len(CASES) == SOURCE.read_text(encoding="utf-8").count("\n@case\n") > 10


def drawn(problem: Problem) -> dict[str, torch.Tensor]:
    """Draw tensors on the GPU, of the strides and offsets that they are drawn with; views of one stay such."""
    moved: dict[torch.Tensor, torch.Tensor] = {}
    return {name: to_gpu(each, moved) for name, each in problem.draw().items()}


def to_gpu(tensor: torch.Tensor, moved: dict[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    base = tensor if tensor._base is None else tensor._base
    if base not in moved:
        moved[base] = base.cuda()
    return moved[base].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def new_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def all_of(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def check_same(found: Any, expected: Any) -> None:
    """Compare bits; NaN equals itself."""
    for one, other in zip(all_of(found), all_of(expected), strict=True):
        assert one.stride() == other.stride()
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def on_gpu(problem: Problem) -> Problem:
    """Move the tensors among the options, too."""
    options = {name: each.cuda() if isinstance(each, torch.Tensor) else each for name, each in problem.options.items()}
    return Problem(problem.call, problem.draw, options)


@pytest.mark.gpu
def test_gpu_repeated_calls_give_the_same_bits() -> None:
    seen = 0
    for problem in map(on_gpu, problems()):
        problem.call(**drawn(problem), **problem.options)
        tensors = drawn(problem)
        expected = problem.checked(tensors)
        assert len(problem.call._calls) == 1
        check_same(problem.call(**tensors, **problem.options), expected)
        buffer = torch.full_like(all_of(expected)[0], float("nan"))
        for _ in range(2):
            check_same(problem.call(**tensors, **problem.options, out=buffer.fill_(float("nan"))), expected)
        seen += 2
    assert seen >= 20


@pytest.mark.gpu
def test_gpu_a_graph_holds_repeated_calls() -> None:
    for problem in (attend(), decode_with(SPLIT), decode_with({**SPLIT, "COMBINE": "last"}), prefill_with()):
        tensors, others = drawn(problem), drawn(problem)
        for _ in range(2):
            problem.call(**tensors)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = problem.call(**tensors)
        for name, each in others.items():
            tensors[name].copy_(each)
        for _ in range(2):
            graph.replay()
            torch.cuda.synchronize()
            check_same(found, problem.checked(tensors))


@pytest.mark.gpu
def test_gpu_a_repeated_call_is_on_the_current_stream() -> None:
    """On another stream it would read the queries before they are written."""
    for problem in (attend(), decode_with(SPLIT), prefill_with()):
        tensors, others = drawn(problem), drawn(problem)
        problem.call(**tensors)
        for stream in (new_stream(), new_stream()):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
                tensors["q"].copy_(others["q"])
                found = problem.call(**tensors)
            stream.synchronize()
            check_same(found, problem.checked(tensors))
            tensors["q"].zero_()
            torch.cuda.synchronize()


@pytest.mark.gpu
def test_gpu_hooks_see_every_launch() -> None:
    problem = decode_with(SPLIT)
    tensors = drawn(problem)
    expected = problem.call(**tensors)
    seen: list[str] = []

    def hook(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    knobs.runtime.launch_enter_hook.add(hook)
    try:
        check_same(problem.call(**tensors), expected)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    assert seen == ["paged_decode_split", "combine_partials"]
    check_same(problem.call(**tensors), expected)
    assert len(seen) == 2


@pytest.mark.gpu
def test_gpu_threads_meet_in_one_kernel() -> None:
    for problem in (attend(), decode_with(SPLIT), decode_with({**SPLIT, "COMBINE": "last"})):
        given = [drawn(problem) for _ in range(8)]
        expected = [problem.checked(tensors) for tensors in given]
        torch.cuda.synchronize()

        def work(number: int, given: Any = given, problem: Problem = problem) -> Any:
            with torch.cuda.stream(new_stream()):
                for _ in range(ROUNDS):
                    found = problem.call(**given[number])
                torch.cuda.current_stream().synchronize()
            return found

        with ThreadPoolExecutor(len(given)) as pool:
            for found, wanted in zip(pool.map(work, range(len(given))), expected, strict=True):
                check_same(found, wanted)


@pytest.mark.gpu
def test_gpu_a_repeated_call_is_on_the_gpu_of_its_tensors() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    for problem in (attend(), decode_with(SPLIT)):
        tensors = drawn(problem)
        expected = problem.checked(tensors)
        moved = {name: each.to("cuda:1") for name, each in tensors.items()}
        for given in (tensors, moved) * 2:
            found = problem.call(**given)
            assert found.device == given["q"].device
            check_same(found.to("cuda:0"), expected)
        assert torch.cuda.current_device() == 0


@pytest.mark.gpu
def test_gpu_this_toolchain_is_known() -> None:
    assert relaunch.IS_KNOWN
    assert relaunch.is_direct()
