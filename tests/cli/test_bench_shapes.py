"""``bench`` over several shapes: what fails or is interrupted costs nobody else's output, and is said."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from autotune.cli import interrupts
from autotune.comparison import Comparison, Entry, suites
from autotune.comparison.suites import Column, Machine, Suite, Table
from autotune.errors import AutotuneError, MissingDependencyError, SearchError
from autotune.registry import load_kernel
from autotune.shape import AttentionShape
from autotune.trial import Policy, Timing, Toolchain
from tests.cli.conftest import Ran
from tests.report import sample

Run = Callable[..., Ran]
Ending = BaseException | Entry | None

POLICY = Policy("eager", "warm")


REFUSED = Entry("sdpa flash", message="no such kernel")


def compared(shape: AttentionShape, refused: Entry | None = None) -> Comparison:
    timing = Timing(float(shape.seq_q), 1.0, 999.0, 5)
    entry = refused or Entry("sdpa flash", timing, tflops=1.0, gbps=2.0, error=1e-6)
    return Comparison("flash_attention", shape, "here", Toolchain("0.1.0"), POLICY, None, "", (entry,))


@pytest.fixture
def endings(monkeypatch: pytest.MonkeyPatch) -> dict[int, Ending]:
    """How the comparison of a length ends: in an exception, a refusal, or with a time of as many microseconds."""
    found: dict[int, Ending] = {}

    def compare(
        operation: object, shape: AttentionShape, names: list[str], *, seconds: float, on_step: object
    ) -> Comparison:
        ending = found.get(shape.seq_q)
        if isinstance(ending, BaseException):
            raise ending
        return compared(shape, ending)

    monkeypatch.setattr("autotune.cli.bench.compare_on_cpu", compare)
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
    assert [row["seq_q"] for row in pq.read_table(path).to_pylist()] == [64, 256]


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
def test_where_nobody_ran_there_is_no_table_and_what_else_there_is_is_said(
    run: Run, endings: dict[int, Ending], tmp_path: Path, form: str | None
) -> None:
    endings[128] = REFUSED
    path = tmp_path / "bench.parquet"
    command = ("bench", "--cpu", "--seq", "128", "--against", "sdpa-math,sdpa-flash", "--output", path)
    ran = run(*command, *([form] if form else []))
    known = {baseline.name: baseline.available() for baseline in load_kernel("flash_attention").baselines()}
    others = [name for name, missing in known.items() if not missing and name not in ("sdpa math", "sdpa flash")]
    assert "eager" in others
    assert "fused sdpa" not in others  # nothing is offered that cannot run here, either
    reason = f"nothing ran here; --against all also has: {', '.join(others)}"
    failure = f"autotune: 1 of 1 shapes failed: {sample.shape(128, batch=1)}: {reason}"
    told = [f"{sample.shape(128, batch=1)} on here", "not compared: sdpa flash: no such kernel", reason]
    lines = ran.err.splitlines() if form else [*ran.out.splitlines(), *ran.err.splitlines()]
    assert (ran.code, lines) == (1, [*told, failure])
    assert not path.exists()
    if form == "--json":
        assert [row["message"] for row in json.loads(ran.out)[0]["rows"]] == ["no such kernel"]
    if form == "--markdown":
        assert "|" not in ran.out
        assert "- not compared: sdpa flash: no such kernel" in ran.out.splitlines()


def test_one_that_nobody_can_do_is_kept_beside_the_others(run: Run, endings: dict[int, Ending], tmp_path: Path) -> None:
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


def test_nobody_usual_on_a_cpu_means_all_who_can(run: Run) -> None:
    """The usual one over pages is cuDNN: what runs on a CPU takes its place, small and said, and lives visibly."""
    small = ("--heads", "2", "--kv-heads", "1", "--head-dim", "8")
    ran = run("bench", "--cpu", "--operation", "paged_decode", *small, "--seconds", "1")
    note, title, *_ = ran.out.splitlines()
    assert ran.code == 0
    names = "contiguous cache, gaudi flat paged, gaudi initial paged"
    assert note == f"none of the usual baselines (cudnn) runs here; compared: {names}"
    assert title.startswith("batch 2, 2/1 heads of 8, context 512, ")
    assert re.search(rf", {torch.get_num_threads()} threads?$", title)
    assert ran.err.splitlines() == [
        "making inputs and their fp64 reference ...",
        *(f"checking {name} ..." for name in names.split(", ")),
        f"timing {names} for 1 s, at least 5 rounds ...",
    ]


@pytest.mark.parametrize("command", [("paged_prefill",), ("paged_decode", "--against", "cudnn", "--context", "8192")])
def test_where_nobody_can_run_no_input_is_made(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.delattr("autotune.comparison.on_cpu.make_case")
    ran = run("bench", "--cpu", "--operation", *command)
    assert ran.code == 1
    others = "contiguous cache, gaudi flat paged, gaudi initial paged"
    reason = {
        "paged_prefill": "no baseline of paged_prefill runs here for this shape",
        "paged_decode": f"nothing ran here; --against all also has: {others}",
    }[command[0]]
    assert ran.out.splitlines()[-1] == reason
    assert ran.err.count("\n") == 1


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

    monkeypatch.setattr("autotune.cli.bench.compare_on_cpu", compare)
    run("bench", "--cpu", *given)
    assert [{name: found[name] for name in expected} for found in asked] == [expected]


def test_a_mistake_of_this_program_is_no_failure_of_a_shape(run: Run, endings: dict[int, Ending]) -> None:
    endings[128] = KeyError("head_dim")
    with pytest.raises(KeyError):
        run(*COMMAND)


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

    def compare(executor: Executor, operation: Any, shape: AttentionShape, names: Any, *, seconds: float) -> Comparison:
        assert isinstance(executor, Executor)
        if isinstance(ending := endings.get(shape.seq_q), BaseException):
            raise ending
        return compared(shape)

    monkeypatch.setattr("autotune.cli.bench.open_gpu", lambda settings: Executor())
    monkeypatch.setattr("autotune.cli.bench.compare_on_gpu", compare)
    assert run("bench", "--seq", "64,128").code == 1
    endings[128] = KeyboardInterrupt()
    assert run("bench", "--seq", "64,128").code == 130
    assert closed == [True, True]


@pytest.mark.parametrize(("ending", "code"), [(KeyboardInterrupt(), 130), (AutotuneError("no compiler"), 1)])
def test_a_suite_that_ends_early_hands_out_the_tables_that_it_has(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: BaseException, code: int
) -> None:
    def measure(machine: Machine) -> Any:
        for seq in (64, 128):
            yield Table(f"length {seq}", (Column("S"),), ((seq,),), comparisons=(compared(sample.shape(seq, batch=1)),))
        raise ending

    stand_in = Suite("exercise", "a stand-in", measure, has_comparisons=True)
    monkeypatch.setattr(suites, "find_suite", lambda name: stand_in)
    path = tmp_path / "bench.parquet"
    ran = run("bench", "--suite", "exercise", "--cpu", "--json", "--output", path)
    assert ran.code == code
    assert [table["title"] for table in json.loads(ran.out)["tables"]] == ["length 64", "length 128"]
    assert [row["seq_q"] for row in pq.read_table(path).to_pylist()] == [64, 128]
    last = ran.err.splitlines()[-1]
    assert last == ("autotune: no compiler" if code == 1 else "interrupted: the suite has more than these 2 tables")


def test_a_suite_that_ends_before_its_first_table_has_no_output(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(machine: Machine) -> Any:
        raise AutotuneError("no compiler")
        yield

    monkeypatch.setattr(suites, "find_suite", lambda name: Suite("gaudi", "fails", measure))
    ran = run("bench", "--suite", "gaudi", "--cpu", "--json")
    assert (ran.code, ran.out, ran.err.splitlines()[-1]) == (1, "", "autotune: no compiler")
