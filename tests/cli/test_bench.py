"""``bench --suite``: which suites there are, what stands beside them, and what is printed and written."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from autotune import hardware
from autotune.comparison import Comparison, Entry, suites
from autotune.comparison.suites import Column, Machine, Suite, Table
from autotune.trial import Policy, Timing, Toolchain
from tests.cli.conftest import Ran
from tests.report import sample

Run = Callable[..., Ran]

NAMES = ("exercise", "blocks", "assignment", "gaudi", "cudnn-paged", "axes")


@pytest.fixture
def ran_on(monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    """A suite ``exercise`` that measures nothing, and the machines that it ran on."""
    machines: list[Machine] = []
    entry = Entry("sdpa flash", Timing(100.0, 99.0, 101.0, 5), tflops=1.0, gbps=2.0, error=1e-6)
    policy = Policy("eager", "warm")
    raced = Comparison("flash_attention", sample.shape(64), "here", Toolchain("0.1.0"), policy, None, "", (entry,))

    def measure(machine: Machine) -> Iterator[Table]:
        machines.append(machine)
        row = ("[/b] 1", Timing(100.0, 99.0, 101.0, 5))
        yield Table("sizes", (Column("B"), Column("flash", "time")), (row,), ("reduced: no GPU",), (), (raced,))

    stand_in = Suite("exercise", "a stand-in", measure, has_comparisons=True)
    find = suites.find_suite
    monkeypatch.setattr(suites, "find_suite", lambda name: stand_in if name == "exercise" else find(name))
    return machines


def assert_refused(ran: Ran, *words: str) -> None:
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert all(word in ran.err for word in words), ran.err


def test_the_help_and_the_refusal_of_another_name_list_the_suites(run: Run) -> None:
    assert_refused(run("bench", "--suite", "all"), "--suite='all' is unknown; allowed: " + ", ".join(NAMES))
    text = " ".join(run("bench", "--help").out.replace("│", " ").split())
    assert ", ".join(NAMES) in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--seq", "64"), "--seq"),
        (("--model", "llama-3.1-8b", "--kv-heads", "8"), "--kv-heads, --model"),
        (("--operation", "paged_decode"), "--operation"),
        (("--no-causal",), "--causal"),
        (("--tp", "2"), "--tp"),
        (("--against", "all"), "--against"),
        (("--seconds", "2", "--heads", "4"), "--heads, --seconds"),
    ],
    ids=" ".join,
)
def test_a_suite_has_its_own_shapes_systems_and_times(
    run: Run, ran_on: list[Machine], arguments: tuple[str, ...], named: str
) -> None:
    ran = run("bench", "--suite", "exercise", "--cpu", *arguments)
    assert_refused(ran, f"--suite has its own shapes, systems and times; leave out {named}\n")
    assert ran_on == []


@pytest.mark.parametrize("name", ["blocks", "axes"])
def test_a_suite_without_races_has_no_parquet(run: Run, tmp_path: Path, name: str) -> None:
    ran = run("bench", "--suite", name, "--cpu", "--output", tmp_path / "table.parquet")
    assert_refused(ran, "--output writes races of systems", f"--suite {name} has none; --json")
    assert not any(tmp_path.glob("*.parquet"))


def test_without_a_gpu_a_suite_says_what_to_do(run: Run, ran_on: list[Machine]) -> None:
    ran = run("bench", "--suite", "exercise")
    assert (ran.code, ran.out, ran_on) == (1, "", [])
    assert "no GPU is visible" in ran.err
    assert "--cpu runs the suite on the processor" in ran.err


@pytest.mark.parametrize(("arguments", "kind"), [(("--cpu",), "cpu"), ((), "cuda")])
def test_a_suite_runs_on_the_gpu_unless_the_processor_is_asked_for(
    run: Run, ran_on: list[Machine], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], kind: str
) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: True)
    monkeypatch.setattr(suites.GpuMachine, "name", "NVIDIA H200")
    ran = run("bench", "--suite", "exercise", *arguments)
    assert (ran.code, ran.err) == (0, "")
    assert [machine.kind for machine in ran_on] == [kind]


def test_tables_are_printed_with_their_notes(run: Run, ran_on: list[Machine]) -> None:
    ran = run("bench", "--suite", "exercise", "--cpu")
    assert (ran.code, ran.err) == (0, "")
    first, _, title, headers, row, note, _, last = ran.out.splitlines()
    assert first == "exercise: a stand-in"
    assert (title, headers.split(), row.split()) == (
        "sizes",
        ["B", "flash"],
        ["[/b]", "1", "100.0", "us", "(99.0-101.0)"],
    )
    assert note == "reduced: no GPU"
    count = torch.get_num_threads()
    threads = f"{count} {'thread' if count == 1 else 'threads'}"
    assert last == f"exercise on {hardware.processor_name()}, {threads}: runs from Python, warm caches"


def test_json_and_markdown_have_standard_output_for_themselves(run: Run, ran_on: list[Machine]) -> None:
    ran = run("bench", "--suite", "exercise", "--cpu", "--json")
    data = json.loads(ran.out)
    assert data["tables"][0]["rows"][0]["flash"]["median_us"] == 100.0
    assert data["comparisons"][0]["rows"][0]["name"] == "sdpa flash"
    assert "exercise: a stand-in" in ran.err
    assert run("bench", "--suite", "exercise", "--cpu", "--markdown").out.startswith("## exercise on ")


def test_the_races_of_a_suite_are_written_as_those_of_a_bench(run: Run, ran_on: list[Machine], tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    assert run("bench", "--suite", "exercise", "--cpu", "--output", path).code == 0
    (row,) = pq.read_table(path).to_pylist()
    assert (row["operation"], row["name"], row["seq_q"]) == ("flash_attention", "sdpa flash", 64)
    assert (row["median_us"], row["policy_mode"], row["error"]) == (100.0, "eager", 1e-6)


def test_a_failure_ends_with_1_after_everything_was_printed(
    run: Run, ran_on: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(machine: Machine) -> Iterator[Table]:
        yield Table("sizes", (Column("B"),), (("1",),), failures=("1: flash: too far",))

    failing = Suite("gaudi", "fails", measure)
    monkeypatch.setattr(suites, "find_suite", lambda name: failing)
    ran = run("bench", "--suite", "gaudi", "--cpu")
    assert ran.code == 1
    assert "FAILED: 1: flash: too far" in ran.out
    assert ran.err == "autotune: suite gaudi: 1 failed: 1: flash: too far\n"


def test_a_suite_that_needs_nothing_runs_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real suite of blocks, over the sweeps that ship."""
    from autotune.table import shipped_sweeps

    monkeypatch.setitem(_defaults(shipped_sweeps), "results", Path(__file__).parents[2] / "results")
    ran = run("bench", "--suite", "blocks", "--cpu", "--json")
    assert ran.code == 0
    data: dict[str, Any] = json.loads(ran.out)
    assert [row["S"] for row in data["tables"][1]["rows"]] == [256, 512, 1024]
    assert data["policy"] is None


def _defaults(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = function.__kwdefaults__
    return found
