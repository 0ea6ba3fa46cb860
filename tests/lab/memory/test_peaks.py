"""Peaks by formula against what torch's allocators tell, and where measuring stops."""

from collections.abc import Callable
from typing import Any

import pytest

from autotune.lab.machine.processor import Processor, read_processor
from autotune.lab.machine.subjects import GPU_ONLY
from autotune.lab.memory import peaks
from autotune.lab.memory.peaks import Peak, measure_peaks, peak_bytes, score_matrix
from autotune.shape import AttentionShape

PROCESSOR = Processor("cpu", "a CPU", 2**25, 1)
MIB = 2**20

CASES: dict[str, dict[str, Any]] = {
    "assignment": {"batch": 1, "heads": 8, "seq_q": 128, "head_dim": 64},
    "batch": {"batch": 2, "heads": 3, "seq_q": 96, "seq_kv": 80, "head_dim": 32, "head_dim_v": 16},
    "groups": {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 64, "head_dim": 32},
    "causal": {"batch": 1, "heads": 4, "seq_q": 96, "head_dim": 16, "causal": True},
    "causal batch": {"batch": 3, "heads": 2, "seq_q": 64, "head_dim": 64, "causal": True},
    "more features than keys": {"batch": 2, "heads": 2, "seq_q": 8, "head_dim": 128},
}


@pytest.mark.parametrize(
    ("seq", "of_head", "total"),
    [(128, 64, 0.5), (512, 1024, 8.0), (1024, 4096, 32.0), (2048, 16384, 128.0)],
)
def test_the_assignments_table(seq: int, of_head: int, total: float) -> None:
    """KB per head and MB of 8 heads, fp32."""
    found = score_matrix(AttentionShape(batch=1, heads=8, seq_q=seq, head_dim=64, dtype="float32"))
    assert (found.of_head, found.total) == (of_head * 1024, total * MIB)


@pytest.mark.parametrize("fields", CASES.values(), ids=list(CASES))
def test_eager_holds_what_the_formula_says(fields: dict[str, Any]) -> None:
    shape = AttentionShape(**fields, dtype="float32")
    eager = next(iter(measure_peaks([shape], PROCESSOR, seconds=60.0)))
    assert eager == Peak("eager", shape, peak_bytes("eager", shape), peak_bytes("eager", shape))


@pytest.mark.slow
def test_peaks_grow_with_the_square_of_the_length_and_fused_ones_with_the_length() -> None:
    shapes = [AttentionShape(batch=1, heads=4, seq_q=seq, head_dim=32, dtype="float32") for seq in (256, 512)]
    peaks = {(peak.name, peak.shape.seq_q): peak for peak in measure_peaks(shapes, PROCESSOR, seconds=60.0)}
    eager, flash = ([peaks[name, seq].measured or 0 for seq in (256, 512)] for name in ("eager", "sdpa flash"))
    assert eager[1] / eager[0] == pytest.approx(4.0, rel=0.1)
    assert 1.0 < flash[1] / flash[0] < 2.5
    # Beside output and logarithms torch's kernel takes buffers for each of its threads.
    assert peaks["sdpa flash", 512].predicted == 4 * 512 * (32 * 4 + 4) <= flash[1]
    for seq in (256, 512):
        assert peaks["naive", seq] == Peak("naive", peaks["naive", seq].shape, 4 * seq * (seq + 32) * 4, None, GPU_ONLY)


def test_what_does_not_fit_is_predicted_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "usable_bytes", lambda processor: 8 * MIB)
    shapes = [AttentionShape(batch=1, heads=8, seq_q=seq, head_dim=64, dtype="float32") for seq in (128, 16384)]
    small, large = [peak for peak in measure_peaks(shapes, PROCESSOR, seconds=60.0) if peak.name == "eager"]
    assert small.measured is not None
    assert large.measured is None
    assert large.predicted > 2 * 8 * 16384**2 * 4
    assert large.reason.startswith("16.1 GiB predicted, 8.0 MiB may be asked for")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the seconds by which a clock goes on in each run; before the first it goes on by a hundred."""
    now = [0.0]
    of_run = [0.0]

    def advance(call: Callable[[], object], kind: str) -> int:
        if now[0] == 0.0:
            now[0] += 100.0  # torch, its profiler, a GPU's context and compilers
        if call() is not None:
            now[0] += of_run[0]
        return 1

    monkeypatch.setattr("autotune.lab.memory.peaks.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(peaks, "peak_of", advance)

    def take(seconds: float) -> None:
        of_run[0] = seconds

    return take


def eager_peaks(*lengths: int, seconds: float) -> list[Peak]:
    shapes = [AttentionShape(batch=1, heads=1, seq_q=seq, head_dim=64, dtype="float32") for seq in lengths]
    return list(measure_peaks(shapes, PROCESSOR, seconds=seconds))[: len(lengths)]


@pytest.mark.slow
def test_what_would_take_too_long_is_not_run(clock: Callable[[float], None]) -> None:
    """Twice the length takes 4.5 times as long at most, and four times the length that twice."""
    clock(3.0)
    first, second, third = eager_peaks(64, 128, 256, seconds=10.0)
    assert first.measured == 1
    assert second.measured is third.measured is None
    assert second.reason == "would take about 13.5 s, more than --seconds 10"
    assert third.reason == "would take about 60.8 s, more than --seconds 10"


@pytest.mark.parametrize(("seconds", "is_run"), [(2.2, False), (2.24, False), (2.25, True), (2.3, True)])
@pytest.mark.slow
def test_what_is_said_of_a_long_run_is_what_it_was_judged_by(
    clock: Callable[[float], None], seconds: float, is_run: bool
) -> None:
    """Half a second, and 2.25 s of twice the length: what is shown is never within what is allowed."""
    clock(0.5)
    _, found = eager_peaks(64, 128, seconds=seconds)
    assert found.reason == ("" if is_run else f"would take about 2.3 s, more than --seconds {seconds:g}")


@pytest.mark.slow
def test_what_is_done_once_counts_as_no_runs_time(clock: Callable[[float], None]) -> None:
    clock(0.1)
    assert [peak.measured for peak in eager_peaks(64, 128, 256, seconds=1.0)] == [1, 1, 1]


def test_a_gpus_run_is_timed_after_a_first_one(clock: Callable[[float], None]) -> None:
    """The first compiles, and its hundred seconds are not those of the second."""
    clock(0.1)
    calls: list[str] = []

    def run() -> int:
        calls.append("run")
        return len(calls)

    _, seconds = peaks._peak_after_warm_up(run, Processor("cuda", "a GPU", 2**25, 1))
    assert seconds == pytest.approx(0.1)
    assert calls == ["run", "run"]


def test_what_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(call: object, kind: str) -> int:
        raise RuntimeError("out of memory\nTried to allocate")

    monkeypatch.setattr(peaks, "peak_of", refuse)
    shape = AttentionShape(batch=1, heads=1, seq_q=16, head_dim=64, dtype="float32")
    assert next(iter(measure_peaks([shape], PROCESSOR, seconds=60.0))).reason == "out of memory"


@pytest.mark.gpu
def test_gpu_peaks_are_near_the_formula() -> None:
    """The caching allocator leaves up to a MiB of a block unused, and SDPA's backends have small buffers of theirs."""
    processor = read_processor("cuda")
    shapes = [AttentionShape(batch=1, heads=8, seq_q=seq, head_dim=64, dtype="bfloat16") for seq in (1024, 4096)]
    found = [peak for peak in measure_peaks(shapes, processor, seconds=60.0) if peak.measured is not None]
    assert {peak.name for peak in found} >= {"eager", "naive", "sdpa flash", "autotune"}
    for peak in found:
        assert peak.measured == pytest.approx(peak.predicted, rel=0.1, abs=8 * MIB), peak
