"""The recording of the grid, from the command to what is served, by a formula."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune import dispatch, get_kernel
from autotune.errors import SearchError
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.table import Store, grid_path, ranked, shipped_grid, shipped_portfolios, shipped_winners
from autotune.trial import Candidate, Outcome, Policy, Stage, Status
from benchmarks import merge, portfolios, record
from benchmarks.model_grid import one_problem
from benchmarks.model_grid import recording as grid_recording
from benchmarks.model_grid.knowledge import FIRST, Knowledge
from benchmarks.model_grid.one_problem import record_problem
from benchmarks.model_grid.problems import GridCell, device_seconds, in_order
from benchmarks.model_grid.recording import SAFETY, SHIP_SECONDS, GridRecording
from tests import sample
from tests.benchmarks.model_grid.fake_gpu import DENSE, FLASH, GOOD, H100, WRONG, Gpu, cells, dense, recording

pytestmark = pytest.mark.usefixtures("nothing_ranked")


def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> int:
    folders = ("--store", str(tmp_path / "store"), "--results", str(tmp_path / "results"))
    monkeypatch.setattr(sys, "argv", ["record", "grid", *folders, *words])
    with pytest.raises(SystemExit) as ended:
        record.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_leads_to_portfolios_and_to_what_is_served(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        *("--operation", "flash_attention", "--implementation", "triton", "--head-dim", "128"),
        *("--only", "causal:", "--minutes", "9", "--part", "1/3"),
    )
    assert command(monkeypatch, tmp_path, *words) == 0
    assert gpu.closed
    wide = [
        cell
        for cell in in_order("flash_attention")
        if cell.group == "causal" and cell.shape.as_dict()["head_dim"] == 128
    ]
    recorded = {cell.shape for cell in wide[::3]}
    results = tmp_path / "results"
    winners = shipped_winners("flash_attention", results=results)
    assert {trial.shape for trial in winners} == recorded
    assert all(trial.config == GOOD and trial.default_timing and trial.heuristic_timing for trial in winners)
    assert {grid_path(trial) for trial in shipped_grid("flash_attention", results=results)} == {
        Path("nvidia_h100_80gb_hbm3/flash_attention/grids/triton.parquet")
    }
    assert "a search of triton gained" in capsys.readouterr().out
    portfolios.main(["--results", str(results)])
    rows = shipped_portfolios("flash_attention", results=results)
    assert {(row.config, row.is_broad, row.left_out_regret) for row in rows} == {(GOOD, True, 0.0)}
    dispatch.reload()
    asked = sample.shape(2600, batch=3, heads=40, kv_heads=8)
    provenance = get_kernel(asked, device=H100.name).provenance
    assert (provenance.expectation.recorded[0], provenance.expectation.recorded[1] >= 3) == (0.01, True)
    gpu.asked.clear()
    assert command(monkeypatch, tmp_path, *words, "--missing") == 0
    assert command(monkeypatch, tmp_path, *words) == 0
    assert {config.config for _, config in gpu.asked} <= {GOOD}


def test_paged_problems_are_recorded_by_the_same_command(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(monkeypatch, tmp_path, "--operation", "paged_decode", "--part", "1/10", "--only", "bfloat16:") == 0
    found = shipped_winners("paged_decode", results=tmp_path / "results")
    assert {trial.shape for trial in found} <= {cell.shape for cell in in_order("paged_decode")}
    assert len(found) == 6
    assert all(trial.is_default for trial in found)


def test_numbers_come_first_and_a_wrong_config_is_neither_raced_nor_served(gpu: Gpu, tmp_path: Path) -> None:
    assert recording(gpu, tmp_path).record(cells(1))
    rows = Store(tmp_path / "store").trials("flash_attention", H100)
    wrong = [row for row in rows if row.config == WRONG]
    assert [(row.status, row.stage) for row in wrong] == [(Status.WRONG_RESULT, Stage.SCREEN)] * len(wrong)
    assert all(WRONG not in [each.config for each in race] for race in gpu.raced)
    raced = {candidate.config for candidate in gpu.raced[0]}
    assert raced <= {row.config for row in rows if row.stage is Stage.SCREEN and row.status is Status.OK}
    assert DENSE.space.default(cells(1)[0].shape, H100) in raced


def test_what_was_measured_is_not_measured_again(gpu: Gpu, tmp_path: Path) -> None:
    assert recording(gpu, tmp_path).record(cells())
    asked, raced = len(gpu.asked), len(gpu.raced)
    assert len(set(gpu.asked)) == asked
    again = recording(gpu, tmp_path)
    assert again.missing(cells(5)) == cells(5)[4:]
    assert again.record(cells())
    assert len(set(gpu.asked)) == len(gpu.asked)
    assert raced <= len(gpu.raced) <= raced + len(cells())


def test_what_comes_next_is_compiled_ahead(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_recording, "LOOK_AHEAD", 2)
    expected = []
    gpu.on_collect = lambda: expected.append((gpu.shape, len(gpu.expected)))
    assert recording(gpu, tmp_path).record(cells(3))
    shapes = [cell.shape for cell in cells(3)]
    assert set(expected) == {(shapes[0], 4), (shapes[1], 6), (shapes[2], 6)}
    assert gpu.expected == [(shape, every_output) for shape in shapes for every_output in (False, True)]


def test_what_ships_of_this_device_is_not_missing_where_results_go_elsewhere(gpu: Gpu, tmp_path: Path) -> None:
    """As on a lent machine, whose results come back in a folder of their own."""
    assert GridRecording(gpu, Store(tmp_path / "first"), tmp_path / "shipped", names=[DENSE.name]).record(cells(2))
    second = GridRecording(gpu, Store(tmp_path / "second"), tmp_path / "results", names=[DENSE.name])
    assert second.missing(cells(3)) == cells(3)[2:]
    assert {each.best for each in second.part(DENSE.title).knowledge.recordings.values()} == {GOOD}


def test_a_problem_is_missing_while_its_default_of_today_was_not_timed(gpu: Gpu, tmp_path: Path) -> None:
    """As after its rule has changed."""
    assert recording(gpu, tmp_path).record(cells(2))
    again = recording(gpu, tmp_path)
    assert again.missing(cells(2)) == []
    rows = again.part(DENSE.title).known[cells(1)[0].shape]
    rows[:] = [row for row in rows if row.config != DENSE.space.default(row.shape, H100)]
    assert again.missing(cells(3)) == [cells(1)[0], cells(3)[2]]
    assert again.untimed(cells(3)) == cells(1)
    assert again.record(cells(1))
    assert again.missing(cells(2)) == []


def test_rows_of_the_same_name_under_another_power_cap_stay(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recording(gpu, tmp_path).record(cells(1))
    capped = replace(H100, power_cap_watts=310)
    monkeypatch.setattr(gpu, "device", capped)
    assert GridRecording(gpu, Store(tmp_path / "capped"), tmp_path / "results", names=[DENSE.name]).record(cells(2))
    rows = shipped_grid("flash_attention", results=tmp_path / "results")
    assert len({grid_path(row) for row in rows}) == 1
    shapes = [cell.shape for cell in cells(2)]
    assert {(row.device, row.shape) for row in rows} == {(H100, shapes[0]), (capped, shapes[0]), (capped, shapes[1])}


@pytest.mark.parametrize(
    "unlike", [{"executor": "replay"}, {"policy": Policy("eager", "warm")}], ids=["replay", "policy"]
)
def test_rows_that_were_measured_in_another_way_neither_count_nor_ship(
    gpu: Gpu, tmp_path: Path, unlike: dict[str, Any]
) -> None:
    (cell,) = cells(1)
    stored = sample.trial(dense(512), device=H100, **unlike)
    Store(tmp_path / "store").append([stored])
    made = recording(gpu, tmp_path)
    assert made.missing([cell]) == [cell]
    assert made.record([cell])
    rows = shipped_grid("flash_attention", results=tmp_path / "results")
    assert {(row.executor, row.policy) for row in rows} == {("gpu", Policy())}


def test_a_recording_of_another_source_is_missing(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recording(gpu, tmp_path).record(cells(1))
    monkeypatch.setattr(type(DENSE), "source_hash", property(lambda self: "another"))
    assert recording(gpu, tmp_path).missing(cells(1)) == cells(1)


def test_a_deadline_ends_it_between_problems_and_what_is_done_ships(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = {"time": 0.0}
    clock = SimpleNamespace(monotonic=lambda: now["time"])
    monkeypatch.setattr(grid_recording, "time", clock)
    monkeypatch.setattr(one_problem, "time", clock)

    def pass_time() -> None:
        now["time"] += 0.5

    gpu.on_collect = pass_time
    assert not recording(gpu, tmp_path, deadline=60.0).record(cells(8))
    assert now["time"] < 60.0
    found = {trial.shape for trial in shipped_winners("flash_attention", results=tmp_path / "results")}
    assert 1 <= len(found) < 8
    assert f"time is up: {8 - len(found)} of 8 are left\n" in capsys.readouterr().out
    assert recording(gpu, tmp_path).record(recording(gpu, tmp_path).missing(cells(8)))
    assert len(shipped_winners("flash_attention", results=tmp_path / "results")) == 8


def test_an_interrupted_problem_keeps_its_verdicts_and_the_others_ship(gpu: Gpu, tmp_path: Path) -> None:
    left = iter(range(30))

    def interrupt() -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    gpu.on_collect = interrupt
    with pytest.raises(KeyboardInterrupt):
        recording(gpu, tmp_path).record(cells(8))
    assert len(Store(tmp_path / "store").trials("flash_attention", H100)) >= 30
    assert shipped_winners("flash_attention", results=tmp_path / "results")
    gpu.on_collect = lambda: None
    before = len(gpu.asked)
    assert recording(gpu, tmp_path).record(cells(8))
    known = set(gpu.asked[:30])
    assert not known & set(gpu.asked[before:])


def test_a_problem_that_fails_is_said_and_the_others_are_recorded(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Gpu.open

    def fail(self: Gpu, operation: Operation[Any], shape: Shape) -> None:
        if shape == cells()[1].shape:
            raise SearchError("the inputs cannot be made")
        opened(self, operation, shape)

    monkeypatch.setattr(Gpu, "open", fail)
    assert not recording(gpu, tmp_path).record(cells())
    assert f"{cells()[1]}: failed, the inputs cannot be made\n" in capsys.readouterr().out
    found = {trial.shape for trial in shipped_winners("flash_attention", results=tmp_path / "results")}
    assert found == {cell.shape for cell in cells()} - {cells()[1].shape}


def test_grids_of_two_gpus_are_merged_in_any_order(
    gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1):
        folder = tmp_path / str(number)
        GridRecording(gpu, Store(folder / "store"), folder, names=[DENSE.name]).record(
            cells()[2 * number : 2 * number + 2]
        )
    merged = []
    for order in ((0, 1), (1, 0, 1)):
        results = tmp_path / f"merged{len(order)}"
        merge.main([*(str(tmp_path / str(number)) for number in order), "--results", str(results)])
        merged.append((results / grid_path(shipped_grid("flash_attention", results=results)[0])).read_bytes())
    assert merged[0] == merged[1]
    assert "flash_attention: 4 winners, 0 sweeps, a grid of 4 problems\n" in capsys.readouterr().out


def test_listing_needs_no_gpu_and_an_unknown_implementation_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, tmp_path, "--list", "--operation", "paged_prefill", "--head-dim", "96") == 0
    assert capsys.readouterr().out.endswith(" of 110 problems\n")
    assert command(monkeypatch, tmp_path, "--implementation", "flex") == 2
    assert (
        "--implementation flex is unknown; expected gluon_hopper, gluon_hopper_fp8, gluon_hopper_latent, triton, "
        "triton_latent, triton_masked, triton_split_keys" in capsys.readouterr().err
    )


def test_a_problem_with_nothing_correct_is_an_error_and_its_verdicts_are_kept(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Gpu, candidate: Candidate) -> Outcome:
        return Outcome(candidate=candidate, status=Status.NAN_RESULT, message="NaN")

    monkeypatch.setattr(Gpu, "outcome", refuse)
    store = Store(tmp_path / "store")
    with pytest.raises(SearchError, match="no config of flash_attention/triton came to the end of a race"):
        record_problem(FLASH, cells()[0].shape, gpu, store, [Knowledge(DENSE, H100)])
    rows = store.trials("flash_attention", H100)
    assert len(rows) == FIRST
    assert {row.status for row in rows} == {Status.NAN_RESULT}
    assert math.isfinite(len(gpu.raced))


@pytest.mark.parametrize(("factor", "best"), [(0.8, "gluon_hopper"), (1.25, "triton")])
def test_implementations_meet_in_one_race_and_the_better_one_is_served(
    gpu: Gpu, tmp_path: Path, factor: float, best: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.factors = {"gluon_hopper": factor}
    made = recording(gpu, tmp_path, names=())
    assert made.record(cells(2))
    assert [{candidate.implementation for candidate in race} for race in gpu.raced] == [{"triton", "gluon_hopper"}] * 2
    assert made.missing(cells(2)) == []
    assert f"{min(factor, 1.0) * 100:.1f} us, " in capsys.readouterr().out
    found = shipped_winners("flash_attention", results=tmp_path / "results")
    races = {(row.shape, row.race_id) for row in found}
    assert (len(found), len(races)) == (4, 2)
    for cell in cells(2):
        rows = [row for row in found if row.shape == cell.shape]
        assert ranked(rows)[0].implementation == best
    of_triton = recording(gpu, tmp_path / "alone")
    assert of_triton.record(cells(2))
    alone = GridRecording(gpu, Store(tmp_path / "alone" / "store"), tmp_path / "alone" / "results")
    assert alone.missing(cells(2)) == cells(2)  # the other implementation's winner is


def test_a_search_goes_on_only_of_an_implementation_that_is_near_the_best(gpu: Gpu, tmp_path: Path) -> None:
    gpu.factors = {"gluon_hopper": 1.5}
    made = recording(gpu, tmp_path, names=())
    assert made.record(cells(1))
    assert made.part("flash_attention/triton").knowledge.gains
    assert not made.part("flash_attention/gluon_hopper").knowledge.gains


def test_problems_that_no_named_implementation_supports_are_left_out_and_counted(
    gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = GridCell(FLASH.name, "few queries", dense(16, seq_kv=4096))
    made = recording(gpu, tmp_path, names=["triton_split_keys"])
    assert made.missing([*cells(2), few]) == [few]
    assert made.record([*cells(2), few])
    assert "2 of 3 problems are left out: triton_split_keys cannot compute them here\n" in capsys.readouterr().out
    assert {shape for shape, _ in gpu.asked} == {few.shape}
    assert {row.shape for row in shipped_winners("flash_attention", results=tmp_path / "results")} == {few.shape}


def test_the_command_fails_where_nothing_is_supported(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--implementation", "gluon_hopper", "--operation", "paged_decode", "--missing")
    assert command(monkeypatch, tmp_path, *words) == 1
    assert capsys.readouterr().out == "240 of 240 problems are left out: gluon_hopper cannot compute them here\n"
    assert gpu.closed
    assert not gpu.asked


def test_a_problem_begins_only_where_the_time_of_all_its_implementations_is_left(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid_recording, "time", SimpleNamespace(monotonic=lambda: 0.0))
    (cell,) = cells(1)
    of_one = SHIP_SECONDS + SAFETY * device_seconds(*cell[::2])
    of_two = SHIP_SECONDS + 2 * SAFETY * device_seconds(*cell[::2])
    assert not recording(gpu, tmp_path, names=(), deadline=of_two - 0.01).record([cell])
    assert not gpu.asked
    assert recording(gpu, tmp_path, names=(), deadline=of_two + 0.01).record([cell])
    assert recording(gpu, tmp_path / "one", deadline=of_one + 0.01).record([cell])


def test_what_problems_took_beyond_their_estimate_is_expected_of_the_next_one_too(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid_recording, "time", SimpleNamespace(monotonic=lambda: 0.0))
    (cell,) = cells(1)
    seconds = SHIP_SECONDS + SAFETY * (device_seconds(*cell[::2]) + 10.0)
    late = recording(gpu, tmp_path, deadline=seconds - 0.01)
    late.recorded, late.expected, late.taken = 2, 30.0, 50.0
    assert not late.record([cell])
    assert not gpu.asked
    late.deadline = seconds + 0.01
    assert late.record([cell])
