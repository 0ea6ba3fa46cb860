"""``autotune analyze stability``: its text, its JSON, its exit codes and its default sizes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune import platforms
from autotune.lab.bench.comparison import OURS
from autotune.lab.stability import examination
from autotune.lab.stability.examination import CaseFinding, Stability
from autotune.shape import AttentionShape
from tests.lab.stopping import Run, Stopped, assert_session, shown_and_data

SMALL = ("--batch", 1, "--heads", 2, "--seq", 16, "--head-dim", 8, "--against", "eager,sdpa-math")
CASES = ("normal", "times 0.1", "times 10", "times 100", "noisy", "outlier token", "all equal")


def test_golden(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings are given: one that is right, one without a limit, one that failed, and one of ours that is wrong."""

    def examine(operation: Any, shape: AttentionShape, names: list[str], **options: Any) -> Stability:
        options["on_case"]("normal")
        findings = (
            CaseFinding("normal", "eager", error=0.0123, limit=0.05, low=-3.25, high=4.0),
            CaseFinding("normal", OURS, nans=0 if shape.seq_q == 8 else 3, error=0.01, limit=0.05, low=-3.25, high=4.0),
            CaseFinding("times 100", "eager", infinities=2, error=float("inf"), low=-1e5, high=1e5),
            CaseFinding("times 100", "flex", message="RuntimeError: no kernel"),
        )
        return Stability(operation.name, shape, findings, (("sdpa cudnn", "sdpa cudnn needs a GPU"),))

    monkeypatch.setattr(examination, "examine", examine)
    monkeypatch.setenv("COLUMNS", "100")
    given = (
        ("--help",),
        ("--seq", "8"),
        ("--seq", "8,16"),
        ("--device", "tpu"),
        ("--device", "cuda"),
        ("--against", "nobody"),
        ("--seq", "0"),
    )
    commands = [("analyze", "stability", *each) for each in given]
    assert_session(Path(__file__).with_name("golden.txt"), *((each, run(*each)) for each in commands))


def test_a_row_for_each_case_and_implementation(run: Run) -> None:
    ran = run("analyze", "stability", *SMALL)
    assert (ran.code, ran.err.splitlines()) == (0, [f"examining {case!r} inputs ..." for case in CASES])
    lines = ran.out.splitlines()
    assert lines[0] == "flash_attention: batch 1, 2 heads of 8, seq 16, bfloat16, causal"
    for case in CASES:
        assert any(line.startswith(case) and "sdpa math" in line and line.rstrip().endswith("ok") for line in lines)
    assert lines[-1].startswith("not run: autotune: kernels of ours need a CUDA or ROCm GPU")


def test_an_absent_implementation_is_named_once_for_all_shapes(run: Run) -> None:
    sizes = ("--batch", 1, "--heads", 1, "--seq", "8,16", "--head-dim", 8, "--dtype", "fp32")
    ran = run("analyze", "stability", *sizes, "--against", "eager,sdpa-cudnn")
    assert ran.code == 0
    *tables, ours, cudnn = ran.out.splitlines()
    assert not [line for line in tables if "not run" in line]
    assert ours.startswith("not run: autotune: kernels of ours need")
    assert cudnn == "not run: sdpa cudnn: needs a GPU and a build of torch for it"


@pytest.mark.slow
def test_json_is_of_the_usual_sizes(run: Run) -> None:
    ran = run("analyze", "stability", "--against", "sdpa-flash", "--json")
    (data,) = json.loads(ran.out)
    assert ran.code == 0
    sizes = {name: data["shape"][name] for name in ("batch", "heads", "seq_q", "head_dim")}
    assert sizes == {"batch": 2, "heads": 8, "seq_q": 256, "head_dim": 64}
    assert data["is_stable"]
    assert len(data["findings"]) == 7
    assert {finding["nans"] for finding in data["findings"]} == {0}


def test_a_paged_cache(run: Run) -> None:
    cache = ("--operation", "paged_decode", "--batch", 2, "--heads", 2, "--kv-heads", 1, "--context", 20)
    ran = run("analyze", "stability", *cache, "--head-dim", 8, "--dtype", "fp32", "--json")
    (data,) = json.loads(ran.out)
    assert {finding["name"] for finding in data["findings"]} >= {"gaudi flat paged", "gaudi initial paged"}
    assert {(finding["nans"], finding["infinities"]) for finding in data["findings"]} == {(0, 0)}
    refused = run("analyze", "stability", *cache, "--kv-dtype", "int8")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--kv-dtype='int8': disturbed inputs are of 16 or 32 bits" in refused.err


@pytest.mark.parametrize(
    ("given", "has_gpu", "expected"),
    [
        (("--operation", "paged_decode"), False, {"batch": 2, "max_context": 512, "heads": 32, "kv_heads": 8}),
        (("--operation", "paged_decode", "--device", "cpu"), True, {"batch": 2, "max_context": 512}),
        (("--operation", "paged_decode"), True, {"batch": 64, "max_context": 8192}),
        (("--operation", "paged_decode", "--context", "64"), False, {"batch": 2, "max_context": 64}),
        (("--operation", "flash_attention"), False, {"batch": 2, "seq_q": 256, "heads": 8, "head_dim": 64}),
        (("--model", "llama-3.1-8b"), False, {"batch": 1, "seq_q": 512, "heads": 32}),
        ((), True, {"batch": 2, "seq_q": 256, "heads": 8, "head_dim": 64}),
    ],
)
def test_default_sizes_are_small_on_a_cpu(
    run: Run, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], has_gpu: bool, expected: dict[str, int]
) -> None:
    asked: list[dict[str, Any]] = []

    def examine(operation: Any, shape: Any, names: list[str], **options: object) -> Stability:
        asked.append(shape.as_dict())
        return Stability(operation.name, shape, (CaseFinding("normal", "eager", error=0.0),), ())

    monkeypatch.setattr(platforms, "has_gpu", lambda: has_gpu)
    monkeypatch.setattr(examination, "examine", examine)
    assert run("analyze", "stability", *given).code == 0
    assert [{name: found[name] for name in expected} for found in asked] == [expected]


def test_where_no_implementation_runs_no_inputs_are_made(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_examine_case", None)
    ran = run("analyze", "stability", "--operation", "paged_decode", "--against", "cudnn", "--context", "8192")
    assert ran.code == 1
    assert ran.err.startswith("autotune: nothing that was asked for runs here: batch 2, ")
    assert ran.err.count("\n") == 1
    assert "not run: cudnn: " in ran.out


def test_a_shape_without_findings_fails_beside_one_that_is_examined(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def examine(operation: Any, shape: AttentionShape, names: list[str], **options: object) -> Stability:
        findings = (CaseFinding("normal", "eager", error=0.0),) if shape.seq_q == 8 else ()
        return Stability(operation.name, shape, findings, ())

    monkeypatch.setattr(examination, "examine", examine)
    ran = run("analyze", "stability", "--seq", "8,16", "--json")
    assert ran.code == 1
    assert [len(each["findings"]) for each in json.loads(ran.out)] == [1, 0]
    assert ran.err.endswith(
        "autotune: nothing that was asked for runs here: batch 2, 8 heads of 64, seq 16, bfloat16, causal\n"
    )


def test_ours_is_absent_on_a_cpu_and_that_is_not_a_failure(run: Run) -> None:
    ran = run("analyze", "stability", *SMALL, "--dtype", "fp16", "--json")
    (data,) = json.loads(ran.out)
    assert ran.code == 0
    assert "TRITON_INTERPRET=1" in data["absent"][OURS]


def test_an_interrupt_keeps_the_shapes_that_ended(run: Run, monkeypatch: pytest.MonkeyPatch, stopped: Stopped) -> None:
    stop, code = stopped

    def examine(operation: Any, shape: AttentionShape, names: list[str], **options: object) -> Stability:
        if shape.seq_q == 16:
            stop()
        return Stability(operation.name, shape, (CaseFinding("normal", "eager", error=0.0),), ())

    monkeypatch.setattr(examination, "examine", examine)
    shown, data = shown_and_data(run, "stability", "--seq", "8,16", code=code)
    assert "seq 8," in shown
    assert [each["shape"]["seq_q"] for each in data] == [8]


@pytest.mark.slow
def test_our_kernel_is_examined_in_the_interpreter() -> None:
    sizes = ["--batch", "1", "--heads", "1", "--seq", "40", "--head-dim", "16", "--dtype", "fp16", "--against", "eager"]
    code = "import os; os.environ['TRITON_INTERPRET'] = '1'; from autotune.cli.app import main; main()"
    command = [sys.executable, "-c", code, "analyze", "stability", *sizes, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    (data,) = json.loads(ran.stdout)
    ours = [finding for finding in data["findings"] if finding["name"] == OURS]
    assert len(ours) == 7
    assert {finding["verdict"] for finding in ours} <= {"ok", "finite"}
