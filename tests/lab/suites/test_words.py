"""A suite's result for people and as data, and what each suite says around its numbers."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import sheets
from autotune.kernels.baselines.flex import Flex
from autotune.lab.bench.comparison import Comparison
from autotune.lab.suites import SUITES, SuiteResult, SuiteSheet, axes
from autotune.lab.suites.assignment import measure_assignment
from autotune.lab.suites.axes.kv_cache import kv_sheet
from autotune.lab.suites.axes.quantization import quantization_sheet
from autotune.lab.suites.axes.score_functions import flex_sheet
from autotune.lab.suites.blocks import measure_blocks
from autotune.lab.suites.cudnn_paged import CudnnSetting, measure_cudnn_paged
from autotune.lab.suites.exercise import measure_exercise
from autotune.lab.suites.gaudi import GaudiSetting, measure_gaudi
from autotune.lab.suites.run import heading, suite_data, suite_markdown, whole_sheet
from autotune.shape import AttentionShape
from autotune.trial import Conditions, Policy, Timing, Toolchain
from tests.golden import assert_golden
from tests.lab.bench.fake_machine import FakeMachine

SHEET = SuiteSheet(
    "times | memory",
    (sheets.text("name"), sheets.timing(), sheets.size("peak")),
    (("a|b", Timing(1500.0, 1400.0, 1600.0, 5), 2**20), ("c", None, None)),
    notes=("reduced",),
    failures=("c: no kernel",),
)
GAUDI = GaudiSetting(batch=3, heads=4, kv_heads=2, seq=70, head_dim=16, page_size=16, pool_blocks=20, dtype="float32")
CUDNN = CudnnSetting(batch=2, heads=3, seq=100, head_dim=16, page_size=16)


def result(policy: Policy | None = None) -> SuiteResult:
    return SuiteResult("exercise", "what it is", "a machine", Toolchain("0.1.0"), policy, (SHEET,))


def axes_sheets(machine: FakeMachine) -> Iterator[SuiteSheet]:
    """The three axes at one small size each, and the operators of one call."""
    yield kv_sheet(machine, ((3, 16),))
    yield quantization_sheet(machine, ((3, 16),))
    yield flex_sheet(machine, ((2, 3, 16),))
    yield axes.operator_sheet(machine, "one call", {})


def small(name: str) -> Iterator[SuiteSheet]:
    """A suite at small sizes, on a machine that passes for a processor."""
    machine = FakeMachine()
    return {
        "exercise": lambda: measure_exercise(machine, ((1, 1, 8, 8),)),
        "blocks": lambda: measure_blocks(machine),
        "assignment": lambda: measure_assignment(machine, (8,)),
        "gaudi": lambda: measure_gaudi(machine, GAUDI),
        "cudnn-paged": lambda: measure_cudnn_paged(machine, CUDNN),
        "axes": lambda: axes_sheets(machine),
    }[name]()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "axes" else ()) for name in SUITES]
)
def test_the_words_of_a_suite_are_its_golden_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Titles, columns and notes; the numbers are this machine's."""
    if name == "cudnn-paged":
        pytest.importorskip("cudnn")
    monkeypatch.setattr(Flex, "available", lambda self: "no compiler")
    lines: list[str] = []
    for sheet in small(name):
        assert sheet.failures == ()
        lines += [f"# {sheet.title}", " | ".join(sheet.names), *sheet.notes, ""]
    assert_golden(Path(__file__).parent / f"golden/{name}.txt", "\n".join(lines[:-1]))


def test_disturbances_stand_with_their_shapes_between_failures_and_notes() -> None:
    shape = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=16)
    race = Comparison("flash_attention", shape, "a GPU", Toolchain("0.1.0"), Policy(), ())
    contended = replace(race, conditions=Conditions(contended=True))
    assert whole_sheet(replace(SHEET, comparisons=(race, contended))).notes == (
        "FAILED: c: no kernel",
        f"{shape}: contended: another process was using the GPU during the race",
        "reduced",
    )


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy("graph", "warm"), "a CUDA graph's replay, warm caches"),
        (Policy("graph", "cold"), "a CUDA graph's replay, cold caches"),
        (Policy("eager", "warm"), "runs from Python, warm caches"),
        (None, "nothing was measured here"),
    ],
)
def test_the_heading_says_where_and_how(policy: Policy | None, words: str) -> None:
    assert heading(result(policy)) == f"exercise on a machine: {words}"


@pytest.mark.parametrize(("threads", "text"), [(1, ", 1 thread"), (2, ", 2 threads"), (None, "")])
def test_the_threads_of_a_processor_stand_beside_its_name(threads: int | None, text: str) -> None:
    found = replace(result(Policy("eager", "warm")), threads=threads)
    assert heading(found) == f"exercise on a machine{text}: runs from Python, warm caches"
    assert suite_data(found)["threads"] == threads


def test_markdown_has_a_section_for_each_table() -> None:
    assert suite_markdown(result()).splitlines() == [
        "## exercise on a machine: nothing was measured here",
        "",
        "what it is",
        "",
        "### times | memory",
        "",
        "| name | time | peak |",
        "| --- | ---: | ---: |",
        "| a\\|b | 1.500 ms (1.400-1.600) | 1.0 MiB |",
        "| c |  |  |",
        "",
        "FAILED: c: no kernel",
        "",
        "reduced",
    ]


def test_the_data_has_numbers_in_base_units() -> None:
    data = json.loads(json.dumps(suite_data(result(Policy("eager", "warm")))))
    assert (data["suite"], data["device"], data["policy"]["mode"]) == ("exercise", "a machine", "eager")
    (table,) = data["tables"]
    timing = {"median_us": 1500.0, "low_us": 1400.0, "high_us": 1600.0, "samples": 5}
    assert table["rows"] == [["a|b", timing, 2**20], ["c", None, None]]
    assert table["columns"][1:] == [{"name": "time", "unit": "us"}, {"name": "peak", "unit": "B"}]
    assert (table["failures"], data["failures"]) == (["c: no kernel"], ["c: no kernel"])
    assert suite_data(result())["policy"] is None
