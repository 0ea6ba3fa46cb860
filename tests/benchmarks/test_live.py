"""The parts of the live measurements that need no GPU: what is drawn, scaled, compared, read and said."""

import json
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from autotune.device import NVIDIA_H200
from autotune.kernels.flash_attention.triton import KERNEL
from autotune.kernels.flash_attention.triton.forward import flash_attention_forward
from autotune.registry import load_definition
from autotune.space import Config
from autotune.table import served, served_winners, shipped_winners
from autotune.trial import Candidate, Outcome, Resources, Status, Timing
from benchmarks.live import processes
from benchmarks.live.__main__ import AFTER_SEARCH, PARTS, run_part
from benchmarks.live.helion_tuner import to_config, tunables
from benchmarks.live.machine import compare
from benchmarks.live.peers import best_of, no_slower, read_log, scale
from benchmarks.live.problem import IMPLEMENTATION, MAIN, from_plain, optimum, valid_configs
from benchmarks.live.report import Findings, Goal, Report
from benchmarks.live.searches import CELLS, apart, describe_overhead
from benchmarks.live.triton_tuner import OPTIONS, Clock, by_kind, capture_launch, choose, grid, shape_descriptors
from benchmarks.shipped_problems import OPERATION, benchmark_shape

DEFINITION = load_definition(OPERATION)
SMALL = DEFINITION.check_shapes(MAIN)[0]


@pytest.fixture(scope="module")
def valid() -> list[Config]:
    return valid_configs()


def test_the_tenth_is_the_same_for_a_seed_and_spread_over_the_list(valid: list[Config]) -> None:
    chosen = choose(valid)
    assert chosen == choose(valid)
    assert chosen != choose(valid, seed=1)
    assert len(set(chosen)) == len(chosen) == round(len(valid) / 10)
    assert set(chosen) <= set(valid)
    assert choose(valid[:3]) != []


def test_triton_is_given_exactly_the_chosen_configs(valid: list[Config]) -> None:
    kinds = by_kind(valid)
    assert [config for named in kinds.values() for config in named.values()] == sorted(
        valid, key=lambda config: list(kinds).index(str(config["loads"]))
    )
    for loads, named in kinds.items():
        for key, config in named.items():
            assert key.all_kwargs() == {
                **{name: value for name, value in config.items() if value is not None and name != "loads"},
                "num_ctas": 1,
            }
            assert key.pre_hook is (shape_descriptors if loads == "descriptor" else None)


@pytest.mark.parametrize("loads", ["pointer", "descriptor"])
def test_our_launch_hands_over_every_argument_of_the_kernel(loads: str, valid: list[Config]) -> None:
    config = next(config for config in valid if config["loads"] == loads and config["BLOCK_Q"] != config["BLOCK_K"])
    inputs = DEFINITION.make_inputs(SMALL, seed=0, device="cpu")
    arguments, constants = capture_launch(config, inputs, DEFINITION.empty_outputs(inputs)[:1])
    named = dict(zip(flash_attention_forward.arg_names, arguments, strict=False))
    tunable = {name for name, value in config.items() if value is not None} - {"loads", *OPTIONS}
    assert {*named, *constants} == {*flash_attention_forward.arg_names} - tunable
    if loads == "descriptor":
        other = {"BLOCK_Q": 256, "BLOCK_K": 16}
        shape_descriptors({**named, **other})
        assert [named[name].block_shape for name in "qkv"] == [[1, 256, 1, 128], [1, 16, 1, 128], [1, 16, 1, 128]]


def test_the_grid_is_that_of_our_launch() -> None:
    class Kernel:
        def __getitem__(self, found: tuple[int]) -> Any:
            assert found == grid({"BLOCK_Q": 128})
            return lambda *arguments, **constants: None

        def warmup(self, *arguments: Any, grid: tuple[int], **constants: Any) -> None:
            self[grid]

    config = from_plain({"BLOCK_Q": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 2, "loads": "pointer"})
    with patch("autotune.kernels.flash_attention.triton.launch.flash_attention_forward", Kernel()):
        KERNEL.warmup(config, MAIN)


def test_the_clock_counts_what_fails_too() -> None:
    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        return [1.0, 0.9, 1.1]

    clock = Clock(bench)
    assert clock(lambda: None, quantiles=(0.5, 0.2, 0.8))[0] == 1.0
    with pytest.raises(ZeroDivisionError):
        clock(lambda: 1 // 0, quantiles=(0.5, 0.2, 0.8))
    assert len(clock.seconds) == 2


def test_scaling_is_by_count_and_its_error_vanishes_with_the_whole() -> None:
    tenth = scale([1.0, 3.0], 5.0, 20)  # 5 s, of which 1 s was between the configs
    assert tenth.seconds == 50.0
    assert tenth.error == pytest.approx(20 * math.sqrt(2.0) / math.sqrt(2.0) * math.sqrt(0.9))
    assert scale([1.0, 3.0], 4.0, 2) == (4.0, 0.0)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Goal("a", 41.26, 60.0, " s"), "target a: 41.26 s, at most 60 s: met"),
        (Goal("a", 60.0, 60.0, " s"), "target a: 60 s, at most 60 s: met"),
        (Goal("a", 1.031, 1.03), "target a: 1.031, at most 1.03: missed"),
        (Goal("a", 7.9, 8.0, "x", at_least=True), "target a: 7.9x, at least 8x: missed"),
        (Goal("a", math.nan, 8.0, "x", at_least=True), "target a: nanx, at least 8x: missed"),
        (Goal("a", math.nan, 8.0), "target a: nan, at most 8: missed"),
    ],
)
def test_verdicts(target: Goal, text: str) -> None:
    assert str(target) == text


def test_a_report_outlives_a_part_and_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Findings:
        raise OSError("no such GPU")

    path = tmp_path / "live.json"
    report = Report(path)
    assert report.run("search", lambda: Findings({"seconds": 3.0}, (Goal("a", 1.0, 2.0),), ("a line",)))
    assert not report.run("ladder", fails)
    assert not report.run("repeat", lambda: Findings({}, (Goal("b", 3.0, 2.0),)))
    again = Report(path)
    assert again.figures("search") == {"seconds": 3.0}
    assert again.figures("ladder") is again.figures("helion") is None
    assert json.loads(path.read_text())["ladder"]["error"] == "OSError: no such GPU"
    printed = capsys.readouterr().out
    assert "a line\ntarget a: 1, at most 2: met" in printed
    assert "target ladder: not measured, OSError: no such GPU" in printed


def test_parts_that_compare_with_a_search_run_it_first_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, Any]] = []

    def part(name: str, work: Path, *found: Any) -> Findings:
        ran.append((name, found))
        return Findings({"of": name})

    for name in PARTS:
        monkeypatch.setitem(PARTS, name, partial(part, name))
    report = Report(tmp_path / "live.json")
    for name in AFTER_SEARCH:
        assert run_part(name, tmp_path, report)
    assert ran == [("search", ()), *((name, ({"of": "search"},)) for name in AFTER_SEARCH)]


def test_a_part_that_compares_with_a_search_that_failed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(work: Path) -> Findings:
        raise OSError("no such GPU")

    monkeypatch.setitem(PARTS, "search", fail)
    assert not run_part("overhead", tmp_path, Report(tmp_path / "live.json"))
    assert "target overhead: not measured, RuntimeError: the part `search` failed" in capsys.readouterr().out


def test_the_shapes_that_are_searched_twice_span_the_benchmark() -> None:
    assert len(set(CELLS)) == 10
    assert {cell[:2] for cell in CELLS} == {(dim, causal) for dim in (64, 128, 256) for causal in (False, True)}
    assert (min(cell[2] for cell in CELLS), max(cell[2] for cell in CELLS)) == (512, 16384)
    for cell in CELLS:
        benchmark_shape(*cell)


def test_the_optimum_is_a_valid_config(valid: list[Config]) -> None:
    assert optimum().config in valid
    assert (
        from_plain({name: value for name, value in optimum().config.items() if value is not None}) == optimum().config
    )


def test_without_shipped_winners_nothing_is_known(tmp_path: Path) -> None:
    assert shipped_winners("flash_attention")
    with patch.object(served, "shipped_winners", return_value=[]):  # as benchmarks.live.untuned does
        assert served_winners("flash_attention", root=tmp_path) == []


ANY = Candidate("triton", Config())
OK = Outcome(candidate=ANY, status=Status.OK, resources=Resources(shared_bytes=1000))
REFUSED = Outcome(candidate=ANY, status=Status.OUT_OF_RESOURCES, resources=Resources(shared_bytes=300_000))
BROKEN = Outcome(candidate=ANY, status=Status.COMPILE_ERROR)
TOO_MUCH = {"answer": "shared memory", "required": 300_000, "limit": 232_448}


@pytest.mark.parametrize(
    ("predicted", "answer", "agree"),
    [
        (OK, {"answer": "fits"}, True),
        (REFUSED, TOO_MUCH, True),
        (BROKEN, {"answer": "does not compile"}, True),
        (OK, TOO_MUCH, False),
        (REFUSED, {"answer": "fits"}, False),
        (REFUSED, {**TOO_MUCH, "required": 300_016}, False),
        (OK, {"answer": "threads", "required": 1024, "limit": 512}, False),
        (OK, None, False),
    ],
)
def test_predictions_against_answers(predicted: Outcome, answer: dict[str, Any] | None, agree: bool) -> None:
    assert (compare(predicted, answer) is None) == agree


LOG = """run_id,timestamp_s,config_id,generation,status,perf_ms,compile_time_s,config
r,0.02,a,0,started,,,"Config(BLOCK_K=64, BLOCK_Q=128, loads='pointer', num_stages=3, num_warps=8)"
r,1.50,a,0,ok,0.707821,,"Config(BLOCK_K=64, BLOCK_Q=128, loads='pointer', num_stages=3, num_warps=8)"
r,2.50,b,0,error,,,"Config(BLOCK_K=256, BLOCK_Q=128, loads='pointer', num_stages=5, num_warps=8)"
r,4.00,c,0,ok,0.600000,,"Config(BLOCK_K=32, BLOCK_Q=64, loads='descriptor', num_warps=4)"
"""


def test_helions_log_gives_its_best_so_far(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    rows = read_log(tmp_path / "log.csv")
    assert [(row["status"], row["median_us"]) for row in rows] == [("ok", 707.821), ("error", None), ("ok", 600.0)]
    best = from_plain(best_of(rows))
    default = IMPLEMENTATION.space.default(MAIN, NVIDIA_H200)
    assert best == from_plain({**default, **rows[2]["config"]})  # what Helion leaves out is the default's
    with pytest.raises(RuntimeError, match="measured none of 1"):
        best_of(rows[1:2])
    assert read_log(tmp_path / "none.csv") == []


def test_helion_is_given_our_parameters_with_our_defaults() -> None:
    class Fragment:
        def __init__(self, *arguments: Any) -> None:
            self.arguments = arguments

    helion = SimpleNamespace(EnumFragment=Fragment, PowerOfTwoFragment=Fragment, IntegerFragment=Fragment)
    space = IMPLEMENTATION.space
    default = space.default(MAIN, NVIDIA_H200)
    found = {name: fragment.arguments for name, fragment in tunables(helion, space, default).items()}
    assert set(found) == {name for name, value in default.items() if value is not None}
    for parameter in space.parameters:
        match found.get(parameter.name, ()):
            case (low, high, start):
                assert (low, high, start) == (parameter.values[0], parameter.values[-1], default[parameter.name])
            case ((first, *others),):
                assert first == default[parameter.name]
                assert {first, *others} == set(parameter.values)
    assert to_config(SimpleNamespace(config={"BLOCK_K": 16}), default) == from_plain({**default, "BLOCK_K": 16})


def test_level_is_no_slower() -> None:
    ours, level, better = Timing(101.0, 99.0, 103.0, 15), Timing(100.0, 98.0, 102.0, 15), Timing(90.0, 89.0, 91.0, 15)
    assert no_slower(ours, level)
    assert no_slower(better, ours)
    assert not no_slower(ours, better)


def test_apart_does_not_ask_who_won() -> None:
    assert apart(100.0, 103.0) == apart(103.0, 100.0) == pytest.approx(0.03)


def test_overhead_of_what_a_search_noted() -> None:
    times = {"ready": 5.0, "first_trial": 7.0, "race": 25.0, "stored": 28.0}
    costs = {"jobs": 15, "compile_seconds": [1.0] * 150, "judge_seconds": [0.05] * 100}
    figures = describe_overhead(Path(), {"times": times, "costs": costs}).figures
    assert figures["compilers_busy_share"] == pytest.approx(150 / (15 * 20))
    assert figures["gpu_seconds_a_trial"] == pytest.approx(0.05)
    assert (figures["start_up_seconds"], figures["race_seconds"]) == (5.0, 3.0)


def test_a_process_that_takes_too_long_is_killed() -> None:
    finished = processes.run("timeit", "-n1", "-r1", "import time; time.sleep(60)", seconds=0.5)
    assert finished.code is None
    with pytest.raises(RuntimeError, match="timeit ended with None"):
        finished.require()


def test_a_process_starts_cold(tmp_path: Path) -> None:
    code = "import os; print(os.environ['AUTOTUNE_HOME'], os.environ['TRITON_CACHE_DIR'])"
    finished = processes.run("timeit", "-n1", "-r1", code, seconds=30, environment=processes.cold(tmp_path)).require()
    assert finished.output.splitlines()[0] == f"{tmp_path / 'home'} {tmp_path / 'triton'}"


def test_an_answer_is_the_last_line() -> None:
    assert processes.Finished("a", 0, 1.0, 'noise\n{"seconds": 2.0}\n', "a warning\n").require().answer() == {
        "seconds": 2.0
    }
