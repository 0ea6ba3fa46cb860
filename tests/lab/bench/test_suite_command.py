"""``bench --suite``: which suites there are, what stands beside them, and what is printed and written."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from autotune import platforms, sheets
from autotune.errors import AutotuneError
from autotune.lab import suites
from autotune.lab.bench.comparison import Comparison, Entry
from autotune.lab.suites import Machine, Suite, SuiteSheet
from autotune.shape import AttentionShape
from autotune.trial import Policy, Timing, Toolchain
from tests import sample
from tests.cli.conftest import Ran

Run = Callable[..., Ran]

NAMES = ("exercise", "blocks", "assignment", "gaudi", "cudnn-paged", "axes")


def race_of(shape: AttentionShape) -> Comparison:
    """A race of one system on a processor."""
    entry = Entry("sdpa flash", Timing(100.0, 99.0, 101.0, 5), tflops=1.0, gbps=2.0, error=1e-6)
    policy = Policy("eager", "warm")
    return Comparison("flash_attention", shape, "here", Toolchain("0.1.0"), policy, (entry,))


@pytest.fixture
def ran_on(monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    """A suite ``exercise`` that measures nothing, and the machines that it ran on."""
    machines: list[Machine] = []

    def measure(machine: Machine) -> Iterator[SuiteSheet]:
        machines.append(machine)
        row = ("[/b] 1", Timing(100.0, 99.0, 101.0, 5))
        yield SuiteSheet(
            "sizes",
            (sheets.text("B"), sheets.timing("flash")),
            (row,),
            ("reduced: no GPU",),
            (),
            (race_of(sample.shape(64)),),
        )

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
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
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
    assert last == f"exercise on {platforms.processor_name()}, {threads}: runs from Python, warm caches"


def test_json_and_markdown_have_standard_output_for_themselves(run: Run, ran_on: list[Machine]) -> None:
    ran = run("bench", "--suite", "exercise", "--cpu", "--json")
    data = json.loads(ran.out)
    assert data["tables"][0]["rows"][0][1]["median_us"] == 100.0
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
    def measure(machine: Machine) -> Iterator[SuiteSheet]:
        yield SuiteSheet("sizes", (sheets.text("B"),), (("1",),), failures=("1: flash: too far",))

    failing = Suite("gaudi", "fails", measure)
    monkeypatch.setattr(suites, "find_suite", lambda name: failing)
    ran = run("bench", "--suite", "gaudi", "--cpu")
    assert ran.code == 1
    assert "FAILED: 1: flash: too far" in ran.out
    assert ran.err == "autotune: suite gaudi: 1 failed: 1: flash: too far\n"


def test_a_suite_that_needs_nothing_runs_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real suite of blocks, over the sweeps that ship."""
    from autotune.table import shipped_sweeps

    monkeypatch.setitem(_defaults(shipped_sweeps), "results", Path(__file__).parents[3] / "results")
    ran = run("bench", "--suite", "blocks", "--cpu", "--json")
    assert ran.code == 0
    data: dict[str, Any] = json.loads(ran.out)
    assert [row[0] for row in data["tables"][1]["rows"]] == [256, 512, 1024]
    assert data["policy"] is None


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted: the suite has more than these 2 tables"),
        (AutotuneError("no compiler"), 1, "autotune: no compiler"),
        (RuntimeError("out of\nmemory"), 1, "autotune: suite exercise: RuntimeError: out of memory"),
    ],
    ids=["interrupt", "autotune's", "torch's"],
)
def test_a_suite_that_ends_early_hands_out_the_tables_that_it_has(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: BaseException, code: int, said: str
) -> None:
    def measure(machine: Machine) -> Any:
        for seq in (64, 128):
            yield SuiteSheet(
                f"length {seq}",
                (sheets.text("S"),),
                ((str(seq),),),
                comparisons=(race_of(sample.shape(seq, batch=1)),),
            )
        raise ending

    stand_in = Suite("exercise", "a stand-in", measure, has_comparisons=True)
    monkeypatch.setattr(suites, "find_suite", lambda name: stand_in)
    path = tmp_path / "bench.parquet"
    ran = run("bench", "--suite", "exercise", "--cpu", "--json", "--output", path)
    assert ran.code == code
    assert [table["title"] for table in json.loads(ran.out)["tables"]] == ["length 64", "length 128"]
    rows = pq.read_table(path).to_pylist()
    assert [(row["seq_q"], row["table"]) for row in rows] == [(64, "length 64"), (128, "length 128")]
    assert [race["table"] for race in json.loads(ran.out)["comparisons"]] == ["length 64", "length 128"]
    assert ran.err.splitlines()[-1] == said


def test_one_table_of_a_suite_is_told_as_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(machine: Machine) -> Any:
        machine.on_step("the second table")
        yield SuiteSheet("length 64", (sheets.text("S"),), (("64",),))
        raise KeyboardInterrupt

    monkeypatch.setattr(suites, "find_suite", lambda name: Suite("exercise", "a stand-in", measure))
    ran = run("bench", "--suite", "exercise", "--cpu")
    assert ran.out.splitlines()[-1] == "interrupted: the suite has more than this table"
    assert ran.err == "the second table ...\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AutotuneError("no compiler"), "autotune: no compiler"),
        (RuntimeError("out of\nmemory"), "autotune: suite gaudi: RuntimeError: out of memory"),
    ],
    ids=["autotune's", "torch's"],
)
def test_a_suite_that_ends_before_its_first_table_has_no_output(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def measure(machine: Machine) -> Any:
        raise error
        yield

    monkeypatch.setattr(suites, "find_suite", lambda name: Suite("gaudi", "fails", measure))
    ran = run("bench", "--suite", "gaudi", "--cpu", "--json")
    assert (ran.code, ran.out, ran.err.splitlines()[-1]) == (1, "", said)


def _defaults(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = function.__kwdefaults__
    return found
