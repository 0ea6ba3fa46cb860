"""TableRecording what ships: one table after each of its problems, and an end before the time is up."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from autotune import dispatch, platforms
from autotune.device import NVIDIA_H200
from autotune.errors import SearchError
from autotune.operation import Operation
from autotune.search import DEFAULT_SAMPLER, Ending, ImplementationResult, SearchResult
from autotune.search_spaces.flash_attention.flex import IMPLEMENTATION as FLEX
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION as PAGED_DECODE
from autotune.table import Store, home, shipped_winners
from autotune.trial import Status, Trial
from autotune.tuning import tuner
from benchmarks import record
from benchmarks.merge import merge
from benchmarks.problem_parts import cut
from benchmarks.record import TableRecording, choose, parse, seconds_of
from benchmarks.shipped_problems import SWEEPS, WINNERS, Cell, benchmark_shape
from tests import flex_sample, sample

GPU: Final[Any] = SimpleNamespace(
    name="gpu", device=NVIDIA_H200, toolchain=sample.TOOLCHAIN, close=lambda: None, reached={}
)
CELLS: Final = [Cell("causal", benchmark_shape(128, True, seq)) for seq in (512, 1024, 2048)]


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "1/0", "-1/4", "a/b", "1/4/2", ""])
def test_a_part_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["winners", "--part", "2/4"]).part == (2, 4)
    with pytest.raises(SystemExit):
        parse(["winners", f"--part={text}"])
    assert "expected a part and their number, such as 2/4" in capsys.readouterr().err


def test_what_compiles_where_it_runs_has_more_time() -> None:
    assert [seconds_of([each]) for each in (IMPLEMENTATION, FLEX)] == [20.0, 240.0]
    assert parse(["winners", "--seconds", "7"]).seconds == 7.0


def test_only_what_is_named_is_recorded() -> None:
    cells = WINNERS["paged_decode/triton"]
    assert choose(cells, [], []) == list(cells)
    assert {cell.group for cell in choose(cells, ["GPT-OSS"], [])} == {"gpt-oss-120b"}
    assert {cell.group for cell in choose(cells, ["mha", "wide"], [])} == {"mha", "wide"}
    assert {cell.group for cell in choose(cells, [], [256])} == {"wide"}
    assert choose(cells, ["mha"], [256]) == []


def test_flash_attention_is_the_default_and_an_unknown_operation_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert (parse(["winners"]).operation, parse(["winners"]).implementation) == ("flash_attention", [])
    assert parse(["winners", "--implementation", "flex"]).implementation == ["flex"]
    assert parse(["sweeps"]).implementation == ["triton"]
    assert parse(["sweeps", "--operation", "paged_decode"]).operation == "paged_decode"
    with pytest.raises(SystemExit):
        parse(["winners", "--operation", "conv"])
    assert "paged_decode" in capsys.readouterr().err


def test_listing_needs_no_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["record", "sweeps", "--operation", "paged_decode", "--list"])
    with pytest.raises(SystemExit) as ended:
        record.main()
    assert ended.value.code == 0
    *lines, count = capsys.readouterr().out.splitlines()
    assert lines == [str(cell) for cell in SWEEPS["paged_decode/triton"]]
    assert count == "2 of 2 problems"


def ended(operation: Operation[Any], winner: Trial, ending: Ending = Ending.SECONDS) -> SearchResult:
    """The end of a search that tried 3 configs of 362."""
    part = ImplementationResult(
        implementation=winner.implementation, statuses={Status.OK: 3}, valid=362, measured=3, best_screened=winner
    )
    return SearchResult(
        operation=operation,
        shape=winner.shape,
        winner=winner,
        best_screened=winner,
        implementations=(part,),
        ending=ending,
        seconds=1.0,
    )


class Searches:
    """In place of a search: stores the row of a winner; an exception in place of one is raised."""

    def __init__(self, *endings: Exception | None) -> None:
        self.endings = list(endings)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, operation: Any, shape: Any, executor: Any, store: Store, **options: Any) -> Any:
        options["observer"].on_start(operation, shape, valid={"triton": 362}, resumed=0, best=None)
        self.asked.append({"shape": shape, **options})
        ending = self.endings.pop(0) if self.endings else None
        if ending is not None:
            raise ending
        trial = sample.trial(shape, sample.config(num_warps=4 + 4 * (len(self.asked) % 2)))
        store.append([trial])
        return ended(operation, trial)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Searches]:
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "shipped")
    dispatch.reload()  # what was read of other tables
    made = Searches()
    monkeypatch.setattr("autotune.tuning.shape_searches.search", made)
    monkeypatch.setattr(tuner, "open_gpu", lambda *_: GPU)
    monkeypatch.setattr(platforms, "current_device", lambda: NVIDIA_H200)
    monkeypatch.setattr(platforms, "toolchain", lambda: sample.TOOLCHAIN)
    yield made
    dispatch.reload()


def recording(results: Path, **options: Any) -> TableRecording:
    return TableRecording("flash_attention", results, **{"names": ["triton"], **options})


def recorded(results: Path) -> list[Trial]:
    return shipped_winners("flash_attention", results=results)


def test_each_winner_is_written_as_it_comes_and_is_a_neighbour_of_the_next(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches.endings = [None, None, KeyboardInterrupt()]  # type: ignore[list-item]
    assert not recording(tmp_path / "results", seconds=7.0).record(CELLS)
    assert {trial.shape for trial in recorded(tmp_path / "results")} == {cell.shape for cell in CELLS[:2]}
    assert [len(asked["neighbours"]["triton"]) for asked in searches.asked] == [0, 1, 2]
    assert {asked["limits"].seconds for asked in searches.asked} == {7.0}


def test_a_default_that_time_left_alone_is_not_called_the_best(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "shipped")

    def find(operation: Any, shape: Any, *_: Any, **options: Any) -> Any:
        return ended(operation, replace(sample.trial(shape), is_default=True))

    monkeypatch.setattr("autotune.tuning.shape_searches.search", find)
    monkeypatch.setattr(tuner, "open_gpu", lambda *_: GPU)
    assert recording(tmp_path / "results").record(CELLS[:1])
    printed = capsys.readouterr().out
    assert "\n  3 of 362 configs tried in 1 s, until only the race's part" in printed
    dispatch.reload()


def test_a_table_that_is_there_is_merged_with_and_what_it_has_is_not_missing(
    searches: Searches, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    assert recording(results).record(CELLS[:1])
    again = recording(results)
    assert again.missing(CELLS) == CELLS[1:]
    assert again.record(CELLS[1:2])
    assert len(recorded(results)) == 2


def test_parts_recorded_over_one_store_are_merged_into_one_table(searches: Searches, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        assert recording(tmp_path / str(number)).record(cut(CELLS, (number, 3)))
    assert len(searches.asked[-1]["neighbours"]["triton"]) == 2  # of the two other parts
    merge([tmp_path / str(number) for number in (2, 3, 1)], tmp_path / "results")
    assert {trial.shape for trial in recorded(tmp_path / "results")} == {cell.shape for cell in CELLS}


def test_winners_are_searched_by_the_sampler_that_was_named(searches: Searches, tmp_path: Path) -> None:
    recording(tmp_path).record(CELLS[:1])
    recording(tmp_path, sampler="exhaustive").record(CELLS[1:2])
    assert [asked["sampler"] for asked in searches.asked] == [DEFAULT_SAMPLER, "exhaustive"]


def test_a_winner_of_another_source_is_missing(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recording(tmp_path).record(CELLS[:1])
    monkeypatch.setattr(type(IMPLEMENTATION), "source_hash", property(lambda self: "another"))
    assert recording(tmp_path).missing(CELLS) == CELLS


def test_a_winner_of_another_torch_is_missing_where_that_one_would_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flex_sample.install(monkeypatch, "2.11.0+cpu")  # of this process; the worker that measures says its own
    flex_sample.ship(tmp_path, flex_sample.winners()[1:])
    cells = list(WINNERS["flash_attention/flex"])
    for torch, missing in (("2.11.0+cu130", cells[:1]), ("2.12.0", cells)):
        toolchain = replace(flex_sample.TOOLCHAIN, torch=torch)
        monkeypatch.setattr(platforms, "current_device", lambda: NVIDIA_H200)
        monkeypatch.setattr(platforms, "toolchain", lambda toolchain=toolchain: toolchain)
        assert TableRecording("flash_attention", tmp_path, names=["flex"]).missing(cells) == missing


def test_nothing_begins_that_would_end_too_late(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 25.0, 45.0])
    monkeypatch.setattr(record, "time", SimpleNamespace(monotonic=lambda: next(now)))
    assert not recording(tmp_path, seconds=20.0, deadline=60.0).record(CELLS)
    assert len(recorded(tmp_path)) == 2
    assert capsys.readouterr().out.endswith("time is up: 1 of 3 are left\n")


def test_a_problem_that_fails_is_said_and_the_others_are_recorded(
    searches: Searches, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searches.endings = [None, SearchError("no config is valid")]
    assert not recording(tmp_path).record(CELLS)
    assert {trial.shape for trial in recorded(tmp_path)} == {CELLS[0].shape, CELLS[2].shape}
    assert f"{CELLS[1].shape}: failed, no config is valid\n" in capsys.readouterr().out


def test_a_sweep_has_the_time_that_is_left_and_is_handed_on(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped: list[Any] = []
    monkeypatch.setattr(
        "autotune.tuning.shape_searches.ship_sweep", lambda result, results: shipped.append(result.winner.shape)
    )
    monkeypatch.setattr(record, "time", SimpleNamespace(monotonic=lambda: 100.0))
    assert recording(tmp_path, deadline=160.0).record(CELLS[:2], is_sweep=True)
    assert shipped == [cell.shape for cell in CELLS[:2]]
    asked = [(asked["limits"].seconds, asked["limits"].trials, asked["sampler"]) for asked in searches.asked]
    assert asked == [(None, None, "exhaustive")] * 2
    assert not recording(tmp_path, deadline=99.0).record(CELLS[:2], is_sweep=True)
    assert len(searches.asked) == 2


def test_a_sweep_ends_within_a_problem_when_the_time_is_up(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 10.0, 61.0])

    def measure(operation: Any, shape: Any, executor: Any, store: Store, **options: Any) -> Any:
        options["observer"].on_start(operation, shape, valid={"triton": 362}, resumed=0, best=None)
        for _ in range(362):
            trial = sample.trial(shape)
            store.append([trial])
            options["observer"].on_trial(trial)

    monkeypatch.setattr("autotune.tuning.shape_searches.search", measure)
    monkeypatch.setattr(record, "time", SimpleNamespace(monotonic=lambda: next(now)))
    assert not recording(tmp_path, deadline=60.0).record(CELLS[:2], is_sweep=True)
    assert capsys.readouterr().out == "time is up: 2 of 2 are left\n"


def test_the_command_records_the_missing_over_a_store_of_its_own(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(GPU, "close", lambda: closed.append(True))
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    users, store, results = home(), tmp_path / "store", tmp_path / "results"
    command = ["record", "winners", "--only", "causal: batch 16, 16 heads", "--store", str(store)]
    command += ["--results", str(results), "--missing", "--seconds", "5", "--part", "1/1", "--implementation", "triton"]
    for expected in (1, 1):  # the second time nothing is missing
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            record.main()
        assert (ended.value.code, len(searches.asked)) == (0, expected)
    assert {trial.shape for trial in recorded(results)} == {benchmark_shape(128, True, 1024)}
    assert len(closed) == 2
    assert store.is_dir()
    assert home() == users  # again
    assert not users.exists()


def test_winners_of_paged_decode_ship_in_a_table_of_their_own(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = WINNERS["paged_decode/triton"][0]

    def find(operation: Any, shape: Any, executor: Any, store: Store, **options: Any) -> Any:
        config = PAGED_DECODE.space.default(shape, NVIDIA_H200)
        identity: dict[str, Any] = {"operation": operation.name, "source_hash": PAGED_DECODE.source_hash}
        trial = sample.trial(shape, config, **identity)
        store.append([trial])
        return ended(operation, trial)

    monkeypatch.setattr("autotune.tuning.shape_searches.search", find)
    assert TableRecording("paged_decode", tmp_path).record([cell])
    assert (tmp_path / "nvidia_h200" / "paged_decode" / "triton.parquet").is_file()
    assert [trial.shape for trial in shipped_winners("paged_decode", results=tmp_path)] == [cell.shape]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["grid", "--untimed", "--list"], "--list lists every problem, for which it needs no GPU"),
        (["winners", "--untimed"], "--untimed is of a grid, not of winners"),
        (["grid", "--seconds", "-1"], "'-1' is not allowed; expected a number above 0"),
        (["grid", "--missing", "--untimed"], "not allowed with"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        record.parse(words)
    assert problem in capsys.readouterr().err
