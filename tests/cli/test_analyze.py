"""``autotune analyze``: its text, its JSON, and what it refuses; times are given, not measured."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune import hardware
from autotune.analysis import ceilings, counters, cuda_tools, measured, memory, processor, roofline
from autotune.analysis.ncu import Counted, parse_raw_page
from autotune.analysis.processor import Processor
from autotune.errors import AutotuneError, UsageError
from autotune.shape import AttentionShape
from tests.analysis.test_ncu import SAMPLE, fake_ncu
from tests.analysis.test_rocprof import LONG, WIDE
from tests.cli.conftest import Ran

Run = Callable[..., Ran]

SMALL = ("--seq", "32,64", "--heads", "2", "--head-dim", "16", "--device", "cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call takes a millisecond."""
    for module in (ceilings, roofline):
        monkeypatch.setattr(module, "sample_times", lambda calls, processor: [1000.0, 1000.0, 1000.0])
    monkeypatch.setattr(ceilings, "WIDTHS", {"cpu": (64,)})
    monkeypatch.setattr(ceilings, "CACHES", 0)
    monkeypatch.setattr(ceilings, "MIN_BUFFER", {"cpu": 2**20})


@pytest.mark.usefixtures("clock")
def test_roofline_derives_measures_places_and_draws(run: Run, tmp_path: Path) -> None:
    ran = run("analyze", "roofline", *SMALL, "--figure", tmp_path / "roofline.svg")
    timed = [f"timing {name} at {seq}" for seq in (32, 64) for name in ("eager", "sdpa flash")]
    assert (ran.code, ran.err.splitlines()) == (0, [f"{step} ..." for step in ("measuring ceilings", *timed)])
    for words in (
        "product Q K^T  ",
        "2 B H P D",
        "attention_scores writes scores",
        "the matrix of scores crosses the memory 4 times",
        "Arithmetic intensity over S",
        "BLOCK_Q x BLOCK_K",
        "read (sum) of 1 MiB",
        "sdpa flash at 64: ",
        "1.000 ms",
        "not run: naive: runs on a GPU only\n",
        "WRONG  The arithmetic intensity of three-kernel attention falls as S grows",
    ):
        assert words in ran.out, words
    assert (tmp_path / "roofline.svg").read_text().startswith("<?xml")


@pytest.mark.usefixtures("clock")
def test_roofline_as_json_is_all_of_it(run: Run) -> None:
    ran = run("analyze", "roofline", *SMALL, "--json")
    data = json.loads(ran.out)
    assert {"works", "movements", "tiles", "intensities", "claims", "ceilings", "ridge", "points"} <= set(data)
    assert data["ceilings"]["memory"][0]["value"] == pytest.approx(2**20 / 1e6)  # 1 MiB in 1 ms, GB/s
    points = {(point["name"], point["shape"]["seq_q"]): point for point in data["points"]}
    assert points["eager", 64]["timing"]["median_us"] == 1000.0
    assert points["eager", 64]["flops"] == 2 * 2 * 2 * 64 * 64 * 16
    assert points["autotune", 32]["timing"] is None
    assert "Under the roof" in ran.err


def test_the_derivation_alone_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    code = "import sys; sys.argv = ['autotune', *sys.argv[1:]]\nfrom autotune.cli import main\nmain()"
    paths = [str(tmp_path), str(Path(__file__).parents[2]), *filter(None, sys.path)]
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


def test_memory_prints_the_assignments_table_and_the_peaks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "usable_bytes", lambda processor: 4 * 2**20)
    ran = run("analyze", "memory", "--seq", "128,...,2048", "--device", "cpu")
    assert ran.code == 0
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    for line in ("128 64 KB 0.5 MB", "1024 4,096 KB 32.0 MB", "2048 16,384 KB 128.0 MB"):
        assert line in lines
    assert "eager 128 1.2 MiB 1.2 MiB 1.000" in lines
    assert any(line.startswith("eager 2048 260.0 MiB not run: 0.3 GiB predicted, 0.0 GiB") for line in lines)
    assert "not run: autotune: runs on a GPU only" in lines
    told = [line for line in ran.err.splitlines() if line.startswith("measuring")]
    assert told[:2] == ["measuring eager at 128 ...", "measuring sdpa flash at 128 ..."]
    assert any("torch's CPU allocator" in line for line in lines)


def test_memory_as_json(run: Run) -> None:
    data = json.loads(run("analyze", "memory", *SMALL, "--json").out)
    assert [item["of_head"] for item in data["scores"]] == [32 * 32 * 4, 64 * 64 * 4]
    eager = [peak for peak in data["peaks"] if peak["name"] == "eager"]
    assert [peak["measured"] for peak in eager] == [peak["predicted"] for peak in eager]
    assert data["machine"]["kind"] == "cpu"


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine that says it were an H200; returns what is measured on it, which takes no time."""
    measured: list[str] = []

    def measure_ceilings(processor: Processor, dtype: str) -> ceilings.Ceilings:
        measured.append("ceilings")
        return ceilings.Ceilings(processor, dtype, (ceilings.Rate("copy", 4300.0),), (ceilings.Rate("product", 790.0),))

    monkeypatch.setattr(hardware, "has_gpu", lambda: True)
    monkeypatch.setattr(processor, "read_processor", lambda kind: Processor("cuda", "NVIDIA H200", 60 * 2**20, 132))
    monkeypatch.setattr(ceilings, "measure_ceilings", measure_ceilings)
    monkeypatch.setattr(roofline, "measure_points", lambda shape, processor, on_step: [])
    return measured


@pytest.mark.usefixtures("h200")
def test_ncu_stands_beside_the_model(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its Nsight Compute prints the recorded sample."""
    monkeypatch.setattr(cuda_tools, "find_tool", lambda name: fake_ncu(tmp_path, SAMPLE))
    ran = run("analyze", "roofline", "--seq", "1024", "--ncu")
    assert (ran.code, ran.err) == (0, "measuring ceilings ...\ncounting at 1024 ...\n")
    assert "batch 16, 16 heads of 128, seq 1024, bfloat16, full" in ran.out
    assert "K and V of the heads in flight" in ran.out
    assert "it stays memory-bound at every length" in ran.out
    line = next(line for line in ran.out.splitlines() if line.startswith("naive ") and "MiB" in line)
    assert line.split()[1:3] == ["1024", "480"]  # raised to 30 sequences of 16 heads
    assert "within 15 %: all\n" in ran.out
    data = json.loads(run("analyze", "roofline", "--seq", "1024", "--ncu", "--json").out)
    (found, *_) = data["ncu"]
    assert found["kernel"] == "attention_scores"
    assert abs(found["deviation"]) < 0.15
    assert data["failures"] == []


@pytest.mark.usefixtures("h200")
def test_what_roofline_prints_is_what_the_report_reads(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cuda_tools, "find_tool", lambda name: fake_ncu(tmp_path, SAMPLE))
    before = datetime.now(UTC)
    printed = run("analyze", "roofline", "--seq", "1024", "--ncu", "--json").out
    path = tmp_path / "roofline.json"
    path.write_text(printed, encoding="utf-8")
    found = measured.read_roofline(path)
    assert found.counted is not None
    assert [item.deviation for item in found.counted] == [item["deviation"] for item in json.loads(printed)["ncu"]]
    assert found.ceilings.processor == Processor("cuda", "NVIDIA H200", 60 * 2**20, 132)
    assert (found.ceilings.gbps, found.toolchain) == (4300.0, hardware.toolchain())
    assert found.measured_at is not None
    assert before <= found.measured_at <= datetime.now(UTC)
    path.write_text(run("analyze", "roofline", "--no-measure", "--seq", "64", "--json").out, encoding="utf-8")
    with pytest.raises(UsageError, match="was derived and not measured"):
        measured.read_roofline(path)


def test_without_ncu_nothing_is_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, h200: list[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda_tools, "PLACES", {"ncu": (str(tmp_path / "ncu"),)})
    ran = run("analyze", "roofline", "--seq", "1024", "--ncu", "--json")
    assert (ran.code, ran.out, h200) == (1, "", [])
    assert ran.err.startswith("autotune: `ncu` is neither on the PATH nor at ")


LENGTHS = ("analyze", "roofline", "--seq", "512,1024,2048", "--batch", "30", "--ncu")


@pytest.mark.usefixtures("h200")
def test_a_length_that_fails_costs_no_other(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one between runs out of time; what was counted of the others is shown and kept, and the code is 1."""

    def count(shape: AttentionShape, *, ncu: str) -> list[Counted]:
        if shape.seq_q == 1024:
            raise AutotuneError("Nsight Compute did not end:\nit timed out")
        return parse_raw_page(SAMPLE)

    monkeypatch.setattr(cuda_tools, "find_tool", lambda name: "ncu")
    monkeypatch.setattr(counters, "count_kernels", count)
    ran = run(*LENGTHS)
    assert ran.code == 1
    heads = [line.split()[1] for line in ran.out.splitlines() if line.startswith("naive ") and "MiB" in line]
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


def test_rocprofs_files_are_written_and_read(run: Run, tmp_path: Path) -> None:
    wrote = run("analyze", "roofline", "--rocprof-counters", tmp_path / "counters.txt")
    assert wrote.code == 0
    assert "rocprof -i" in wrote.out
    assert "pmc: L2CacheHit" in (tmp_path / "counters.txt").read_text()
    for name, text in (("wide.csv", WIDE), ("long.csv", LONG)):
        (tmp_path / name).write_text(text)
    files = [word for name in ("wide.csv", "long.csv") for word in ("--rocprof-results", tmp_path / name)]
    ran = run("analyze", "roofline", *files)
    assert [line.split() for line in ran.out.splitlines() if line.startswith("flash")] == [
        ["flash_attention_forward", "2", "512", "1001", "200", "72"]
    ]
    data = json.loads(run("analyze", "roofline", *files, "--json").out)
    assert data["rocprof"][0]["values"]["L2CacheHit"] == 72.0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("roofline", "--device", "tpu"), 2, "--device='tpu' is unknown; allowed: cpu, cuda"),
        (("roofline", "--device", "cuda"), 1, "no GPU is visible"),
        (("memory", "--device", "cuda"), 1, "no GPU is visible"),
        (("roofline", "--ncu"), 1, "--ncu counts on an NVIDIA GPU, and none is visible"),
        (("roofline", "--ncu", "--device", "cpu"), 2, "it and --device cpu exclude each other"),
        (("roofline", "--ncu", "--no-measure"), 2, "it and --no-measure exclude each other"),
        (("roofline", "--no-measure", "--figure", "a.png"), 2, "exclude each other"),
        (("roofline", "--figure", "a.pdf"), 2, "expected an ending of .png or .svg"),
        (("roofline", "--figure", "/none/a.png"), 2, "lies in no folder"),
        (("roofline", "--head-dim", "7"), 2, "--head-dim=7 is not allowed"),
        (("roofline", "--seq", "0"), 2, "autotune: --seq=0 is not allowed"),
        (("memory", "--seq", "-8"), 2, "autotune: --seq=-8 is not allowed"),
        (("memory", "--heads", "3", "--kv-heads", "2"), 2, "--heads=3 is not a multiple of --kv-heads=2"),
        (("memory", "--seq", "128,x"), 2, "--seq='128,x' has 'x'"),
        (("memory", "--dtype", "int4"), 2, "--dtype='int4' is unknown"),
        (("roofline", "--rocprof-counters", "/none/counters.txt"), 2, "lies in no folder"),
        (("roofline", "--rocprof-results", "/none/results.csv"), 1, "/none/results.csv"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_line(run: Run, arguments: tuple[str, ...], code: int, words: str) -> None:
    ran = run("analyze", *arguments)
    assert ran.code == code
    assert words in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""


@pytest.mark.parametrize(("command", "batch"), [("roofline", "1; on a GPU max(1, 16384 // seq)"), ("memory", "1")])
def test_the_help_has_the_batch_of_the_command(run: Run, command: str, batch: str) -> None:
    assert f"--batch <int> Sequences [default: {batch}]." in " ".join(run("analyze", command, "--help").out.split())


@pytest.mark.usefixtures("h200")
def test_on_a_gpu_a_roofline_has_as_many_tokens_at_every_length(run: Run) -> None:
    data = json.loads(run("analyze", "roofline", "--no-measure", "--seq", "4096,64", "--json").out)
    sizes = [(each["shape"]["seq_q"], each["shape"]["batch"]) for each in data["intensities"]]
    assert sizes == [(64, 256), (4096, 4)]
    assert {each["shape"]["dtype"] for each in data["intensities"]} == {"bfloat16"}


def test_analyze_alone_shows_the_help(run: Run) -> None:
    ran = run("analyze")
    assert (ran.code, ran.err) == (2, "")
    assert "roofline" in ran.out
    assert "memory" in ran.out


@pytest.mark.parametrize("command", ["roofline", "memory"])
def test_every_option_is_documented(run: Run, command: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "analyses.md").read_text()
    shown = run("analyze", command, "--help").out
    options = set(re.findall(r"--[a-z-]+", shown)) - {"--help"}
    assert {option for option in options if f"`{option}" not in text} == set()


def test_the_command_line_loads_no_analysis() -> None:
    code = "import sys, autotune.cli; assert not {'torch', 'matplotlib', 'autotune.analysis'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
