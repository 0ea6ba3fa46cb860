"""``bench`` over several shapes: what fails or is interrupted keeps the output of the others, and is reported."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from autotune.console import interrupts
from autotune.errors import MissingDependencyError, SearchError
from autotune.lab import suites
from autotune.lab.bench.comparison import Comparison, Entry
from autotune.registry import load_baselines
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Candidate, Policy, Timing, Toolchain
from tests import sample
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
Ending = BaseException | Entry | None

POLICY = Policy("eager", "warm")

REFUSED = Entry("sdpa flash", message="no such kernel")


def compared(shape: AttentionShape, refused: Entry | None = None) -> Comparison:
    timing = Timing(float(shape.seq_q), 1.0, 999.0, 5)
    entry = refused or Entry("sdpa flash", timing, tflops=1.0, gbps=2.0, error=1e-6)
    return Comparison("flash_attention", shape, "here", Toolchain("0.1.0"), POLICY, (entry,))


@pytest.fixture
def endings(monkeypatch: pytest.MonkeyPatch) -> dict[int, Ending]:
    """Make the comparison of a length end in an exception, a refusal, or with a time of as many microseconds."""
    found: dict[int, Ending] = {}

    def compare(
        operation: object, shape: AttentionShape, names: list[str], *, seconds: float, room: int, on_step: object
    ) -> Comparison:
        ending = found.get(shape.seq_q)
        if isinstance(ending, BaseException):
            raise ending
        return compared(shape, ending)

    monkeypatch.setattr("autotune.lab.bench.each_shape.compare_on_cpu", compare)
    return found


COMMAND = ("bench", "--cpu", "--seq", "64,128,256")
REASON = "the worker cannot make the problem's inputs:\nout of memory"


def test_one_that_fails_is_said_at_its_place_and_the_others_are_kept(
    run: Run, endings: dict[int, Ending], tmp_path: Path
) -> None:
    endings[128] = SearchError(REASON)
    path = tmp_path / "bench.parquet"
    ran = run(*COMMAND, "--output", path)
    failure = f"{sample.shape(128, batch=1)}: {' '.join(REASON.split())}"
    titles = [line for line in ran.out.splitlines() if "seq " in line]
    assert titles == [
        f"{sample.shape(64, batch=1)} on here",
        f"FAILED: {failure}",
        f"{sample.shape(256, batch=1)} on here",
    ]
    assert (ran.code, ran.err) == (1, f"autotune: 1 of 3 shapes failed: {failure}\n")
    assert [(row["seq_q"], row["table"]) for row in pq.read_table(path).to_pylist()] == [(64, None), (256, None)]


@pytest.mark.parametrize("form", ["--json", "--markdown"])
def test_what_was_compared_is_printed_beside_a_failure(run: Run, endings: dict[int, Ending], form: str) -> None:
    endings[64] = MissingDependencyError("no GPU works")
    ran = run(*COMMAND, form)
    assert ran.code == 1
    assert ran.err.startswith(f"FAILED: {sample.shape(64, batch=1)}: no GPU works\n")
    assert ran.err.endswith(f"autotune: 1 of 3 shapes failed: {sample.shape(64, batch=1)}: no GPU works\n")
    if form == "--json":
        assert [data["shape"]["seq_q"] for data in json.loads(ran.out)] == [128, 256]
    else:
        assert [line for line in ran.out.splitlines() if line.startswith("## ")] == [
            f"## flash_attention: {sample.shape(seq, batch=1)} on here" for seq in (128, 256)
        ]


def test_where_all_fail_an_older_file_stays(run: Run, endings: dict[int, Ending], tmp_path: Path) -> None:
    path = tmp_path / "bench.parquet"
    assert run(*COMMAND, "--output", path).code == 0
    before = path.read_bytes()
    endings.update({seq: SearchError("no") for seq in (64, 128, 256)})
    ran = run(*COMMAND, "--output", path, "--json")
    assert (ran.code, json.loads(ran.out)) == (1, [])
    assert "3 of 3 shapes failed" in ran.err
    assert path.read_bytes() == before


@pytest.mark.parametrize("form", [None, "--json", "--markdown"])
def test_where_nothing_ran_there_is_no_table_and_the_alternatives_are_named(
    run: Run, endings: dict[int, Ending], tmp_path: Path, form: str | None
) -> None:
    endings[128] = REFUSED
    path = tmp_path / "bench.parquet"
    command = ("bench", "--cpu", "--seq", "128", "--against", "sdpa-math,sdpa-flash", "--output", path)
    ran = run(*command, *([form] if form else []))
    known = {baseline.name: baseline.available() for baseline in load_baselines("flash_attention")}
    others = [name for name, missing in known.items() if not missing and name not in ("sdpa math", "sdpa flash")]
    assert "eager" in others
    assert "fused sdpa" not in others  # nothing is offered that cannot run here, either
    reason = f"nothing ran here; --against all also has: {', '.join(others)}"
    failure = f"autotune: 1 of 1 shapes failed: {sample.shape(128, batch=1)}: {reason}"
    said = [f"{sample.shape(128, batch=1)} on here", "not compared: sdpa flash: no such kernel", reason]
    lines = ran.err.splitlines() if form else [*ran.out.splitlines(), *ran.err.splitlines()]
    assert (ran.code, lines) == (1, [*said, failure])
    assert not path.exists()
    if form == "--json":
        assert [row["message"] for row in json.loads(ran.out)[0]["rows"]] == ["no such kernel"]
    if form == "--markdown":
        assert "|" not in ran.out
        assert "not compared: sdpa flash: no such kernel" in ran.out.splitlines()


def test_a_shape_that_no_system_can_do_is_kept(run: Run, endings: dict[int, Ending], tmp_path: Path) -> None:
    endings[128] = REFUSED
    path = tmp_path / "bench.parquet"
    ran = run(*COMMAND, "--against", "all", "--output", path)
    assert ran.code == 1
    assert ran.err == f"autotune: 1 of 3 shapes failed: {sample.shape(128, batch=1)}: nothing ran here\n"
    assert [(row["seq_q"], row["message"]) for row in pq.read_table(path).to_pylist()] == [
        (64, ""),
        (128, "no such kernel"),
        (256, ""),
    ]


@pytest.mark.slow
def test_without_a_usual_baseline_on_a_cpu_all_that_can_run_are_raced(run: Run) -> None:
    """The usual ones over pages need a GPU: what runs on a CPU takes their place, small and said, and lives visibly."""
    small = ("--heads", "2", "--kv-heads", "1", "--head-dim", "8")
    ran = run("bench", "--cpu", "--operation", "paged_decode", *small, "--seconds", "20")
    note, title, *rows = ran.out.splitlines()
    assert ran.code == 0
    names = "contiguous cache, gaudi flat paged, gaudi initial paged"
    others = "--against all lists the others too, and what they lack"
    assert note == f"none of the usual baselines (cudnn, flash_attn_3) runs here; compared: {names}; {others}"
    (absent,) = [row for row in rows if row.startswith("not compared: cudnn: ")]
    assert absent.endswith("needs an NVIDIA GPU, and none is here")
    assert title.startswith("paged_decode: batch 2, 2/1 heads of 8, context 512, ")
    assert re.search(rf", {torch.get_num_threads()} threads?$", title)
    assert ran.err.splitlines() == [
        "making inputs and their fp64 reference ...",
        *(f"checking {name} ..." for name in names.split(", ")),
        f"timing {names} for at most 20 s, but 5 rounds at least and 100 at most ...",
    ]


@pytest.mark.slow
def test_markdown_says_which_usual_baseline_is_absent_and_why(run: Run) -> None:
    small = ("--heads", "2", "--kv-heads", "1", "--head-dim", "8", "--context", "32")
    ran = run("bench", "--cpu", "--operation", "paged_decode", *small, "--seconds", "1", "--markdown")
    lines = ran.out.splitlines()
    (absent,) = [line for line in lines if line.startswith("not compared: cudnn: ")]
    assert absent.endswith("needs an NVIDIA GPU, and none is here")
    assert lines[-1].startswith(
        "none of the usual baselines (cudnn, flash_attn_3) runs here; compared: contiguous cache, "
    )
    assert "--against all" in lines[-1]


@pytest.mark.parametrize("more", [(), ("--against", "cudnn"), ("--json",)], ids=" ".join)
def test_where_every_baseline_needs_a_gpu_one_line_says_so(run: Run, more: tuple[str, ...]) -> None:
    ran = run("bench", "--cpu", "--operation", "paged_prefill", *more)
    said = "autotune: every baseline of paged_prefill needs a GPU: --cpu has none to compare\n"
    assert (ran.code, ran.out, ran.err) == (1, "", said)


def test_where_no_baseline_can_run_no_input_is_made(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("autotune.lab.bench.races.make_case")
    ran = run("bench", "--cpu", "--operation", "paged_decode", "--against", "cudnn", "--context", "8192")
    assert ran.code == 1
    others = "contiguous cache, gaudi flat paged, gaudi initial paged"
    assert ran.out.splitlines()[-1] == f"nothing ran here; --against all also has: {others}"
    assert ran.err.count("\n") == 1


def test_a_shape_that_does_not_fit_the_memory_is_refused_before_anything_is_made(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("autotune.lab.bench.races.make_case")
    ran = run("bench", "--cpu", "--batch", "100000", "--heads", "64", "--seq", "65536")
    assert ran.code == 1
    assert "inputs, output and its fp64 reference take about 2,400,000.0 GiB" in ran.err
    assert ran.err.count("\n") == ran.out.count("\n") == 1


def test_without_a_gpu_the_processor_is_offered(run: Run) -> None:
    ran = run("bench")
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "no GPU is visible" in ran.err
    assert "--cpu compares the baselines on the processor" in ran.err


def test_without_a_gpu_the_processor_is_not_offered_where_nothing_runs_on_it(run: Run) -> None:
    ran = run("bench", "--operation", "paged_prefill")
    assert (ran.code, "no GPU is visible" in ran.err, "--cpu" in ran.err) == (1, True, False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--json", "--markdown"), "--json and --markdown both print on standard output; leave out one"),
        (("--suite", "blocks", "--json", "--markdown"), "--json and --markdown both print on standard output"),
        (("--against", ""), "--against='' names no baseline; leave it out for the usual ones, or give all"),
        (("--against", " ,"), "--against=' ,' names no baseline"),
        (("--suite", "blocks", "--against", ""), "leave out --against"),
    ],
    ids=" ".join,
)
def test_options_that_mean_nothing_together_are_refused(
    run: Run, endings: dict[int, Ending], given: tuple[str, ...], said: str
) -> None:
    ran = run("bench", "--cpu", *given)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err


def test_another_operation_stands_in_the_header(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(operation: Any, shape: Any, names: list[str], **options: object) -> Comparison:
        return replace(compared(shape), operation=operation.name)

    monkeypatch.setattr("autotune.lab.bench.each_shape.compare_on_cpu", compare)
    first = [run("bench", "--cpu", "--operation", name).out for name in ("flash_attention", "paged_decode")]
    assert first[0].startswith(f"{sample.shape(512, batch=1)} on here\n")
    assert first[1].splitlines()[1].startswith("paged_decode: batch 2, 32/8 heads of 128, context 512, ")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), {"batch": 1, "seq_q": 512, "heads": 16}),
        (("--seq", "128"), {"batch": 1, "seq_q": 128}),
        (("--batch", "3", "--model", "llama-3.1-8b"), {"batch": 3, "seq_q": 512, "heads": 32, "kv_heads": 8}),
        (("--operation", "paged_decode"), {"batch": 2, "max_context": 512, "heads": 32, "kv_heads": 8}),
    ],
)
def test_a_cpu_has_a_small_problem_by_default(
    run: Run, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], expected: dict[str, int]
) -> None:
    asked: list[dict[str, Any]] = []

    def compare(operation: object, shape: Any, names: object, **options: object) -> Comparison:
        asked.append(shape.as_dict())
        raise SearchError("no")

    monkeypatch.setattr("autotune.lab.bench.each_shape.compare_on_cpu", compare)
    run("bench", "--cpu", *given)
    assert [{name: found[name] for name in expected} for found in asked] == [expected]


@pytest.mark.parametrize("error", [RuntimeError("out of\nmemory"), MemoryError("out of memory")], ids=repr)
def test_what_torch_raises_is_a_failure_of_its_shape(
    run: Run, endings: dict[int, Ending], tmp_path: Path, error: Exception
) -> None:
    endings[128] = error
    path = tmp_path / "bench.parquet"
    ran = run(*COMMAND, "--json", "--output", path)
    failure = f"{sample.shape(128, batch=1)}: {type(error).__name__}: out of memory"
    assert (ran.code, ran.err.splitlines()[-1]) == (1, f"autotune: 1 of 3 shapes failed: {failure}")
    assert f"FAILED: {failure}" in ran.err
    assert [data["shape"]["seq_q"] for data in json.loads(ran.out)] == [64, 256]
    assert [row["seq_q"] for row in pq.read_table(path).to_pylist()] == [64, 256]


def test_a_mistake_of_this_program_is_no_failure_of_a_shape_but_costs_nothing(
    run: Run, endings: dict[int, Ending], tmp_path: Path
) -> None:
    endings[128] = KeyError("head_dim")
    path = tmp_path / "bench.parquet"
    with pytest.raises(KeyError):
        run(*COMMAND, "--output", path)
    assert [row["seq_q"] for row in pq.read_table(path).to_pylist()] == [64]


def test_a_served_config_that_is_refused_is_a_row_and_a_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that were timed beside it are kept."""
    served = Candidate("triton", Config(BLOCK_Q=64, BLOCK_K=32, num_warps=4, num_stages=3, loads="descriptor"))

    def compare(*given: Any, seconds: float, among: object) -> Comparison:
        found = compared(given[2])
        entry = Entry("autotune", message="out_of_resources: shared memory", candidate=served)
        return replace(found, entries=(entry, *found.entries))

    monkeypatch.setattr("autotune.lab.bench.each_shape.open_gpu", lambda settings: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr("autotune.lab.bench.each_shape.compare_on_gpu", compare)
    path = tmp_path / "bench.parquet"
    ran = run("bench", "--seq", "64", "--output", path)
    failure = f"{served} is out_of_resources: shared memory"
    assert (ran.code, ran.err) == (1, f"autotune: 1 of 1 shapes failed: {sample.shape(64)}: {failure}\n")
    assert "not compared: autotune: out_of_resources: shared memory" in ran.out.splitlines()
    assert ran.out.splitlines()[-1] == failure
    rows = pq.read_table(path).to_pylist()
    assert [(row["name"], row["median_us"], row["BLOCK_Q"]) for row in rows] == [
        ("autotune", None, 64),
        ("sdpa flash", 64.0, None),
    ]


@pytest.mark.parametrize(
    ("more", "among"),
    [
        ((), "ours"),
        (("--implementation", "flex"), ("flex",)),
        (("--implementation", "triton, flex"), ("triton", "flex")),
    ],
    ids=["ours", "one", "two"],
)
def test_implementations_are_those_that_may_be_served(
    run: Run, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], among: object
) -> None:
    asked: list[object] = []

    def compare(*given: Any, seconds: float, among: object) -> Comparison:
        asked.append(among)
        return compared(given[2])

    monkeypatch.setattr("autotune.lab.bench.each_shape.open_gpu", lambda settings: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr("autotune.lab.bench.each_shape.compare_on_gpu", compare)
    assert run("bench", "--seq", "64,128", *more).code == 0
    assert asked == [among, among]


def test_an_unknown_implementation_is_refused_before_anything_is_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("autotune.lab.bench.each_shape.open_gpu")
    ran = run("bench", "--implementation", "triton,cutlass")
    names = (
        "triton, gluon_hopper, gluon_hopper_fp8, triton_split_keys, triton_masked, triton_split_width, "
        "triton_split_values, flex"
    )
    said = f"autotune: --implementation='cutlass' of flash_attention is unknown; registered: {names}\n"
    assert (ran.code, ran.out, ran.err) == (2, "", said)


def test_nothing_of_ours_is_chosen_on_a_processor_or_in_a_suite(run: Run) -> None:
    ran = run("bench", "--cpu", "--implementation", "flex")
    assert (ran.code, ran.err) == (
        2,
        "autotune: --implementation chooses among kernels, and none runs with --cpu; leave out one\n",
    )
    ran = run("bench", "--suite", "exercise", "--cpu", "--implementation", "flex")
    assert ran.code == 2
    assert "leave out --implementation" in ran.err


@pytest.mark.parametrize("command", [COMMAND, ("bench", "--suite", "exercise", "--cpu")], ids=["shapes", "suite"])
@pytest.mark.parametrize("target", ["folder", "file/table.parquet"])
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...], target: str
) -> None:
    monkeypatch.delattr("autotune.lab.bench.each_shape.compare_on_cpu")
    monkeypatch.delattr(suites.Suite, "result")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    ran = run(*command, "--output", tmp_path / target)
    reason = {"folder": "Is a directory", "file/table.parquet": "Not a directory"}[target]
    problem = f"autotune: --output={str(tmp_path / target)!r} cannot be written: {reason}\n"
    assert (ran.code, ran.out, ran.err) == (2, "", problem)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_folders_of_an_output_are_made(run: Run, endings: dict[int, Ending], tmp_path: Path) -> None:
    path = tmp_path / "new" / "newer" / "bench.parquet"
    assert run(*COMMAND, "--output", path).code == 0
    assert path.exists()


@pytest.mark.parametrize("kept", [(64,), ()])
def test_an_interrupted_bench_keeps_what_is_there(
    run: Run, endings: dict[int, Ending], tmp_path: Path, kept: tuple[int, ...]
) -> None:
    endings[128 if kept else 64] = KeyboardInterrupt()
    path = tmp_path / "bench.parquet"
    ran = run(*COMMAND, "--json", "--output", path)
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == f"interrupted: {len(kept)} of 3 shapes were compared"
    assert [data["shape"]["seq_q"] for data in json.loads(ran.out)] == list(kept)
    assert path.exists() == bool(kept)
    assert str(sample.shape(256, batch=1)) not in ran.err


def test_sigterm_has_its_own_code(run: Run, endings: dict[int, Ending], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_received", 15)
    endings[128] = KeyboardInterrupt()
    assert run(*COMMAND).code == 143


def test_the_gpu_is_given_back_whatever_happens(
    run: Run, endings: dict[int, Ending], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    endings[128] = SearchError("no")

    class Executor:
        def close(self) -> None:
            closed.append(True)

    def compare(
        executor: Executor, operation: Any, shape: AttentionShape, names: Any, *, seconds: float, among: object
    ) -> Comparison:
        assert isinstance(executor, Executor)
        if isinstance(ending := endings.get(shape.seq_q), BaseException):
            raise ending
        return compared(shape)

    monkeypatch.setattr("autotune.lab.bench.each_shape.open_gpu", lambda settings: Executor())
    monkeypatch.setattr("autotune.lab.bench.each_shape.compare_on_gpu", compare)
    assert run("bench", "--seq", "64,128").code == 1
    endings[128] = KeyboardInterrupt()
    assert run("bench", "--seq", "64,128").code == 130
    assert closed == [True, True]
