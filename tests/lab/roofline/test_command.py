"""``autotune analyze roofline``: its text, its JSON, and its refusals; times are given, not measured."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune import platforms
from autotune.errors import AutotuneError, UsageError
from autotune.lab.machine import ceilings, cuda_tools, processor
from autotune.lab.machine.processor import Processor
from autotune.lab.machine.sampling import TimedCall
from autotune.lab.roofline import ncu, placement, saved
from autotune.lab.roofline.ncu import Counted, parse_raw_page
from autotune.shape import AttentionShape
from tests.lab.roofline.test_ncu import SAMPLE, fake_ncu
from tests.lab.roofline.test_rocprof import LONG, WIDE
from tests.lab.stopping import Run, Stopped, assert_session, shown_and_data

SMALL = ("--seq", "32,64", "--heads", "2", "--head-dim", "16", "--device", "cpu")
LENGTHS = ("analyze", "roofline", "--seq", "512,1024,2048", "--batch", "30", "--ncu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call takes a millisecond, on a CPU with 32 MiB of cache."""
    for module in (ceilings, placement):
        monkeypatch.setattr(module, "sample_times", lambda calls, processor: [1000.0, 1000.0, 1000.0])
    monkeypatch.setattr(ceilings, "WIDTHS", {"cpu": (64,)})
    monkeypatch.setattr(ceilings, "CACHES", 0)
    monkeypatch.setattr(ceilings, "MIN_BUFFER", {"cpu": 2**20})
    monkeypatch.setattr(processor, "read_processor", lambda kind: Processor("cpu", "a CPU", 2**25, 8))


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine that claims to be an H200; returns what is measured on it, which takes no time."""
    measured: list[str] = []

    def measure_ceilings(processor: Processor, dtype: str) -> ceilings.Ceilings:
        measured.append("ceilings")
        return ceilings.Ceilings(processor, dtype, (ceilings.Rate("copy", 4300.0),), (ceilings.Rate("product", 790.0),))

    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(processor, "read_processor", lambda kind: Processor("cuda", "NVIDIA H200", 60 * 2**20, 132))
    monkeypatch.setattr(ceilings, "measure_ceilings", measure_ceilings)
    monkeypatch.setattr(placement, "measure_points", lambda shape, processor, on_step: [])
    return measured


@pytest.mark.usefixtures("clock")
def test_golden(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The figure, the counter file and rocprof's results lie in the folder in which the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name, text in (("wide.csv", WIDE), ("long.csv", LONG)):
        Path(name).write_text(text)
    refused = [
        ("--device", "tpu"),
        ("--device", "cuda"),
        ("--ncu",),
        ("--ncu", "--device", "cpu"),
        ("--ncu", "--no-measure"),
        ("--no-measure", "--figure", "a.svg"),
        ("--figure", "a.png"),
        ("--figure", "/none/a.svg"),
        ("--head-dim", "7"),
        ("--seq", "0"),
        ("--rocprof-counters", "/none/counters.txt"),
        ("--rocprof-results", "/none/results.csv"),
    ]
    given: list[tuple[str, ...]] = [
        ("--help",),
        (*SMALL, "--figure", "roofline.svg"),
        ("--seq", "1024", "--causal", "--no-measure"),
        ("--rocprof-counters", "counters.txt"),
        ("--rocprof-results", "wide.csv", "--rocprof-results", "long.csv"),
        *refused,
    ]
    commands = [("analyze", "roofline", *each) for each in given]
    assert_session(Path(__file__).with_name("golden.txt"), *((each, run(*each)) for each in commands))
    assert Path("roofline.svg").read_text().startswith("<?xml")
    assert "pmc: L2CacheHit" in Path("counters.txt").read_text()


@pytest.mark.usefixtures("clock")
def test_json_holds_all_of_it(run: Run) -> None:
    ran = run("analyze", "roofline", *SMALL, "--json")
    data = json.loads(ran.out)
    assert {"works", "movements", "tiles", "intensities", "claims", "ceilings", "ridge", "points"} <= set(data)
    assert data["ceilings"]["memory"][0]["value"] == pytest.approx(2**20 / 1e6)  # 1 MiB in 1 ms, GB/s
    points = {(point["name"], point["shape"]["seq_q"]): point for point in data["points"]}
    assert points["eager", 64]["timing"]["median_us"] == 1000.0
    assert points["eager", 64]["flops"] == 2 * 2 * 2 * 64 * 64 * 16
    assert points["autotune", 32]["timing"] is None
    assert data["interrupted"] is False
    assert "Under the roof" in ran.err


def test_the_derivation_alone_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    code = "import sys; sys.argv = ['autotune', *sys.argv[1:]]\nfrom autotune.cli import main\nmain()"
    paths = [str(tmp_path), str(Path(__file__).parents[3]), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def autotune(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "analyze", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    derived = autotune("roofline", "--no-measure", "--device", "cpu")
    assert (derived.returncode, derived.stderr) == (0, "")
    assert "15.1" in derived.stdout
    measured = autotune("memory", "--device", "cpu")
    assert measured.returncode == 1
    assert measured.stderr == "autotune: measuring needs torch: pip install torch\n"


@pytest.mark.usefixtures("h200")
def test_ncu_stands_beside_the_model(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its Nsight Compute prints the recorded sample."""
    monkeypatch.setattr(cuda_tools, "find_tool", lambda name: fake_ncu(tmp_path, SAMPLE))
    given = ("analyze", "roofline", "--seq", "1024", "--ncu")
    ran = run(*given)
    assert_session(Path(__file__).with_name("golden_ncu.txt"), (given, ran))
    line = next(line for line in ran.out.splitlines() if line.startswith("naive, all three"))
    assert line.split()[3:5] == ["1024", "480"]  # raised to 30 sequences of 16 heads
    data = json.loads(run(*given, "--json").out)
    (found, *_) = data["ncu"]
    assert found["kernel"] == "attention_scores"
    assert abs(found["deviation"]) < 0.15
    assert data["failures"] == []


@pytest.mark.usefixtures("h200")
def test_the_report_reads_what_roofline_prints(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_tools, "find_tool", lambda name: fake_ncu(tmp_path, SAMPLE))
    before = datetime.now(UTC)
    printed = run("analyze", "roofline", "--seq", "1024", "--ncu", "--json").out
    path = tmp_path / "roofline.json"
    path.write_text(printed, encoding="utf-8")
    found = saved.read_roofline(path)
    assert found.counted is not None
    assert [item.deviation for item in found.counted] == [item["deviation"] for item in json.loads(printed)["ncu"]]
    assert found.ceilings.processor == Processor("cuda", "NVIDIA H200", 60 * 2**20, 132)
    assert (found.ceilings.gbps, found.toolchain) == (4300.0, platforms.toolchain())
    assert found.measured_at is not None
    assert before <= found.measured_at <= datetime.now(UTC)
    path.write_text(run("analyze", "roofline", "--no-measure", "--seq", "64", "--json").out, encoding="utf-8")
    with pytest.raises(UsageError, match="was derived and not measured"):
        saved.read_roofline(path)


def test_without_ncu_nothing_is_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, h200: list[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda_tools, "PLACES", {"ncu": (str(tmp_path / "ncu"),)})
    ran = run("analyze", "roofline", "--seq", "1024", "--ncu", "--json")
    assert (ran.code, ran.out, h200) == (1, "", [])
    assert ran.err.startswith("autotune: `ncu` is neither on the PATH nor at ")


@pytest.mark.usefixtures("h200")
def test_a_length_that_fails_costs_no_other(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one between runs out of time; the counts of the others are shown and kept, and the code is 1."""

    def count(shape: AttentionShape, *, ncu: str) -> list[Counted]:
        if shape.seq_q == 1024:
            raise AutotuneError("Nsight Compute did not end:\nit timed out")
        return parse_raw_page(SAMPLE)

    monkeypatch.setattr(cuda_tools, "find_tool", lambda name: "ncu")
    monkeypatch.setattr(ncu, "count_kernels", count)
    ran = run(*LENGTHS)
    assert ran.code == 1
    heads = [line.split()[3] for line in ran.out.splitlines() if line.startswith("naive, all three")]
    assert heads == ["512", "2048"]
    failure = "batch 30, 16 heads of 128, seq 1024, bfloat16, full: Nsight Compute did not end: it timed out"
    assert f"FAILED: {failure}\n" in ran.out
    ran = run(*LENGTHS, "--json")
    data = json.loads(ran.out)
    assert ran.code == 1
    assert data["failures"] == [failure]
    assert [item["shape"]["seq_q"] for item in data["ncu"] if item["kernel"] == "naive"] == [512, 2048]
    assert {"ceilings", "points", "claims", "intensities"} <= set(data)


@pytest.mark.usefixtures("h200")
def test_where_ncu_may_not_count_it_is_asked_once_and_the_rest_is_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = fake_ncu(tmp_path, "", code=1, error="==ERROR== ERR_NVGPUCTRPERM\n")
    monkeypatch.setattr(cuda_tools, "find_tool", lambda name: path)
    ran = run(*LENGTHS, "--json")
    data = json.loads(ran.out)
    assert ran.code == 1
    assert len(data["failures"]) == 1
    assert "seq 512" in data["failures"][0]
    assert "the driver lets only administrators read the counters" in data["failures"][0]
    assert data["ncu"] == []
    assert data["ceilings"]["memory"][0]["value"] == 4300.0
    assert ran.err.count("FAILED: ") == 1


@pytest.mark.usefixtures("h200")
def test_on_a_gpu_a_roofline_has_as_many_tokens_at_every_length(run: Run) -> None:
    data = json.loads(run("analyze", "roofline", "--no-measure", "--seq", "4096,64", "--json").out)
    sizes = [(each["shape"]["seq_q"], each["shape"]["batch"]) for each in data["intensities"]]
    assert sizes == [(64, 256), (4096, 4)]
    assert {each["shape"]["dtype"] for each in data["intensities"]} == {"bfloat16"}


def test_rocprofs_counters_as_json(run: Run, tmp_path: Path) -> None:
    for name, text in (("wide.csv", WIDE), ("long.csv", LONG)):
        (tmp_path / name).write_text(text)
    files = [word for name in ("wide.csv", "long.csv") for word in ("--rocprof-results", tmp_path / name)]
    data = json.loads(run("analyze", "roofline", *files, "--json").out)
    assert data["rocprof"][0]["values"]["L2CacheHit"] == 72.0


@pytest.mark.usefixtures("clock")
def test_an_interrupt_keeps_the_points(run: Run, monkeypatch: pytest.MonkeyPatch, stopped: Stopped) -> None:
    stop, code = stopped
    monkeypatch.setattr(placement, "MAX_SETS", 1)
    timed: list[int] = []

    def sample(calls: Sequence[TimedCall], processor: Processor) -> list[float]:
        timed.append(len(timed))
        if len(timed) % 4 == 0:  # flash at the second length, of two runs
            stop()
        return [1000.0]

    monkeypatch.setattr(placement, "sample_times", sample)
    shown, data = shown_and_data(run, "roofline", *SMALL, code=code)
    assert "eager at 64: " in shown
    found = [(point["name"], point["shape"]["seq_q"]) for point in data["points"] if point["timing"]]
    assert found == [("eager", 32), ("sdpa flash", 32), ("eager", 64)]
    assert data["interrupted"]
    assert "claims" not in data
    assert data["ceilings"]
