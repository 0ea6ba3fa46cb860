"""``autotune analyze`` stability, trace and goldilocks, as they are typed on a machine without a GPU."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import hardware
from autotune.analysis import stability
from autotune.analysis.stability import Finding, Stability
from autotune.comparison import OURS
from autotune.shape import AttentionShape
from tests.cli.conftest import Ran

Run = Callable[..., Ran]

SMALL = ("--batch", 1, "--heads", 2, "--seq", 16, "--head-dim", 8, "--against", "eager,sdpa-math")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_stability_prints_a_row_for_each_case_and_implementation(run: Run) -> None:
    ran = run("analyze", "stability", *SMALL)
    cases = ("normal", "times 0.1", "times 10", "times 100", "noisy", "outlier token", "all equal")
    assert (ran.code, ran.err.splitlines()) == (0, [f"examining {case!r} inputs ..." for case in cases])
    lines = ran.out.splitlines()
    assert lines[0] == "flash_attention: batch 1, 2 heads of 8, seq 16, bfloat16, causal"
    for case in cases:
        assert any(line.startswith(case) and "sdpa math" in line and line.endswith("ok") for line in lines)
    assert lines[-1].startswith("not run: autotune: kernels of ours need a CUDA or ROCm GPU")


def test_stability_names_who_is_absent_once_for_all_shapes(run: Run) -> None:
    sizes = ("--batch", 1, "--heads", 1, "--seq", "8,16", "--head-dim", 8, "--dtype", "fp32")
    ran = run("analyze", "stability", *sizes, "--against", "eager,sdpa-cudnn")
    assert ran.code == 0
    *tables, ours, cudnn = ran.out.splitlines()
    assert not [line for line in tables if "not run" in line]
    assert ours.startswith("not run: autotune: kernels of ours need")
    assert cudnn == "not run: sdpa cudnn: needs a GPU and a build of torch for it"


def test_stability_as_json_is_of_the_usual_problem(run: Run) -> None:
    ran = run("analyze", "stability", "--against", "sdpa-flash", "--json")
    (data,) = json.loads(ran.out)
    assert ran.code == 0
    sizes = {name: data["shape"][name] for name in ("batch", "heads", "seq_q", "head_dim")}
    assert sizes == {"batch": 2, "heads": 8, "seq_q": 256, "head_dim": 64}
    assert data["is_stable"]
    assert len(data["findings"]) == 7
    assert {finding["nans"] for finding in data["findings"]} == {0}


def test_stability_of_a_paged_cache(run: Run) -> None:
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
        (("--operation", "flex_attention"), False, {"batch": 2, "seq_q": 256, "heads": 8, "head_dim": 64}),
        (("--model", "llama-3.1-8b"), False, {"batch": 1, "seq_q": 512, "heads": 32}),
        ((), True, {"batch": 2, "seq_q": 256, "heads": 8, "head_dim": 64}),
    ],
)
def test_stability_on_a_cpu_has_a_small_problem_by_default(
    run: Run, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], has_gpu: bool, expected: dict[str, int]
) -> None:
    asked: list[dict[str, Any]] = []

    def examine(operation: Any, shape: Any, names: list[str], **options: object) -> Stability:
        asked.append(shape.as_dict())
        return Stability(operation.name, shape, (Finding("normal", "eager", error=0.0),), ())

    monkeypatch.setattr(hardware, "has_gpu", lambda: has_gpu)
    monkeypatch.setattr(stability, "examine", examine)
    assert run("analyze", "stability", *given).code == 0
    assert [{name: found[name] for name in expected} for found in asked] == [expected]


def test_stability_whose_implementations_cannot_run_makes_no_inputs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stability, "_examine_case", None)
    ran = run("analyze", "stability", "--operation", "paged_decode", "--against", "cudnn", "--context", "8192")
    assert ran.code == 1
    assert ran.err.startswith("autotune: nothing that was asked for runs here: batch 2, ")
    assert ran.err.count("\n") == 1
    assert "not run: cudnn: " in ran.out


def test_stability_of_a_shape_that_nobody_can_compute_fails_beside_one_that_is_examined(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examine(operation: Any, shape: AttentionShape, names: list[str], **options: object) -> Stability:
        findings = (Finding("normal", "eager", error=0.0),) if shape.seq_q == 8 else ()
        return Stability(operation.name, shape, findings, ())

    monkeypatch.setattr(stability, "examine", examine)
    ran = run("analyze", "stability", "--seq", "8,16", "--json")
    assert ran.code == 1
    assert [len(each["findings"]) for each in json.loads(ran.out)] == [1, 0]
    assert ran.err.endswith(
        "autotune: nothing that was asked for runs here: batch 2, 8 heads of 64, seq 16, bfloat16, causal\n"
    )


def test_stability_without_ours_on_a_cpu_names_it_and_is_no_failure(run: Run) -> None:
    ran = run("analyze", "stability", *SMALL, "--dtype", "fp16", "--json")
    (data,) = json.loads(ran.out)
    assert ran.code == 0
    assert "TRITON_INTERPRET=1" in data["absent"][OURS]


def test_the_help_of_stability_tells_the_sizes_of_dense_and_paged_attention(run: Run) -> None:
    text = " ".join(run("analyze", "stability", "--help").out.split())
    for default in (
        "8; paged: 32",
        "64; paged: 128",
        "2; paged: 64, of a prefill 8; paged on a CPU 2",
        "8192; on a CPU 512",
    ):
        assert f"[default: {default}]" in text
    assert "Dense: lengths, 1024, 512,1024 or 512,...,16384 [default: 256]" in text


@pytest.mark.parametrize(("nans", "code"), [(0, 0), (3, 1)])
def test_stability_fails_where_ours_does(run: Run, monkeypatch: pytest.MonkeyPatch, nans: int, code: int) -> None:
    def examine(operation: Any, shape: AttentionShape, names: list[str], **options: object) -> Stability:
        bad = Finding("times 100", OURS, nans=nans, error=0.0, limit=1.0, low=-1.0, high=1.0)
        return Stability(operation.name, shape, (bad, Finding("normal", "eager", nans=9, error=0.0)), ())

    monkeypatch.setattr(stability, "examine", examine)
    ran = run("analyze", "stability", *SMALL)
    assert ran.code == code
    assert ("autotune is wrong on 'times 100': NaN" in ran.out) == bool(code)


def test_trace_writes_a_file_for_each_and_says_where_to_look(run: Run, tmp_path: Path) -> None:
    ran = run("analyze", "trace", *SMALL, "--output", tmp_path / "out", "--active", 2)
    assert ran.code == 0
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["eager.json.gz", "sdpa_math.json.gz"]
    with gzip.open(tmp_path / "out" / "eager.json.gz", "rt", encoding="utf-8") as file:
        assert json.load(file)["traceEvents"]
    assert "https://ui.perfetto.dev" in ran.out
    steps = [line.split() for line in ran.out.splitlines() if line.endswith(("active", "warm-up"))]
    assert [line[0] for line in steps] == ["0", "1", "2"] * 2


def test_trace_of_nothing_fails_and_names_no_files(run: Run, tmp_path: Path) -> None:
    ran = run("analyze", "trace", *SMALL[:-1], "cudnn", "--output", tmp_path / "out")
    assert ran.code == 1
    assert ran.err == (
        "autotune: nothing that was asked for runs here: batch 1, 2 heads of 8, seq 16, bfloat16, causal\n"
    )
    assert ran.out == "not run: cudnn: needs an NVIDIA GPU, and none is here\n"
    assert "perfetto" not in ran.out
    assert not (tmp_path / "out").exists()


def test_traces_of_several_shapes_lie_apart(run: Run, tmp_path: Path) -> None:
    sizes = ("--batch", 1, "--heads", 1, "--seq", "8,16", "--head-dim", 8, "--active", 1)
    ran = run("analyze", "trace", *sizes, "--against", "eager", "--no-stacks", "--output", tmp_path, "--json")
    files = [Path(file) for traced in json.loads(ran.out) for file in traced["files"]]
    assert len({file.parent for file in files}) == 2
    assert all(file.exists() and file.parent.parent == tmp_path for file in files)


def test_goldilocks_prints_the_front_and_draws_it(run: Run, tmp_path: Path) -> None:
    figure = tmp_path / "front.svg"
    ran = run("analyze", "goldilocks", *SMALL, "--figure", figure, "--json")
    assert ran.code == 0
    (data,) = json.loads(ran.out)
    assert len(data["points"]) == data["valid_points"] == 6
    assert any(point["is_on_front"] for point in data["points"])
    assert set(data["hypervolume"]["reference"]) == {"time_us", "memory_bytes", "error"}
    assert "hypervolume" in ran.err
    drawn = figure.read_text(encoding="utf-8")
    assert "largest absolute error" in drawn
    assert "eager, bfloat16" in drawn


def test_goldilocks_measures_no_more_than_asked(run: Run) -> None:
    (data,) = json.loads(run("analyze", "goldilocks", *SMALL, "--trials", 2, "--json").out)
    assert len(data["points"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("stability", "--device", "tpu"), 2, ("--device='tpu'", "cpu, cuda")),
        (("stability", "--device", "cuda"), 1, ("device='cuda'", "no GPU")),
        (("stability", "--against", "nobody"), 2, ("--against='nobody'", "eager")),
        (("stability", "--seq", "0"), 2, ("--seq=0",)),
        (("trace", "--device", "hpu"), 1, ("habana",)),
        (("trace", "--active", "0"), 2, ("--active",)),
        (("goldilocks", "--figure", "front.jpg"), 2, ("--figure='front.jpg'", ".png or .svg")),
        (("goldilocks", "--figure", "front.png", "--seq", "8,16"), 2, ("--figure='front.png'", "2 were asked for")),
        (("goldilocks", "--trials", "0"), 2, ("--trials",)),
        (("goldilocks", "--against", "cudnn"), 1, ("no baseline of flash_attention runs", "NVIDIA GPU")),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: tuple[str, ...], code: int, named: tuple[str, ...]) -> None:
    ran = run("analyze", *arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert all(part in ran.err for part in named), ran.err


@pytest.mark.parametrize("command", ["stability", "trace", "goldilocks"])
def test_help_names_the_defaults_of_the_command(run: Run, command: str) -> None:
    ran = run("analyze", command, "--help")
    text = " ".join(ran.out.split())
    length = "512" if command == "trace" else "256"
    gpu = "" if command == "stability" else "; on a GPU 1024"
    assert f"[default: {length}{gpu}]" in text


@pytest.mark.slow
def test_our_kernel_is_examined_in_the_interpreter() -> None:
    sizes = ["--batch", "1", "--heads", "1", "--seq", "40", "--head-dim", "16", "--dtype", "fp16", "--against", "eager"]
    code = "import os; os.environ['TRITON_INTERPRET'] = '1'; from autotune.cli.app import main; main()"
    command = [sys.executable, "-c", code, "analyze", "stability", *sizes, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    (data,) = json.loads(ran.stdout)
    ours = [finding for finding in data["findings"] if finding["name"] == OURS]
    assert len(ours) == 7
    assert {finding["verdict"] for finding in ours} <= {"ok", "finite"}
