"""The grid of model shapes: which problems, and their recording, from the command to what is served, by a formula."""

import contextlib
import itertools
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from autotune import dispatch, get_kernel
from autotune.device import NVIDIA_H200
from autotune.dispatch.evidence import left_out_regret
from autotune.errors import SearchError
from autotune.executor import Baselines, Race
from autotune.likeness import likeness
from autotune.models import MODELS, ModelShape
from autotune.operation import Operation
from autotune.registry import get_implementation, get_operation
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Config
from autotune.table import Store, grid_path, shipped_grid, shipped_portfolios, shipped_winners
from autotune.trial import Candidate, Outcome, Policy, Stage, Status, Toolchain
from benchmarks import merge, portfolios, record
from benchmarks.model_grid import compile_ahead, one_problem, problems
from benchmarks.model_grid import recording as grid_recording
from benchmarks.model_grid.compile_ahead import CompileAhead
from benchmarks.model_grid.knowledge import ENOUGH, FIRST, Knowledge, neighbours
from benchmarks.model_grid.one_problem import record_problem
from benchmarks.model_grid.problems import GridCell, device_seconds, grid, in_order, launch_seconds, spread
from benchmarks.model_grid.recording import GridRecording
from tests import sample

H100: Final = replace(NVIDIA_H200, name="NVIDIA H100 80GB HBM3", memory_mib=81559)
DENSE: Final = get_implementation("flash_attention", "triton")
FLASH: Final = get_operation("flash_attention")
GOOD: Final = sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4, num_stages=3)
WRONG: Final = sample.config(BLOCK_Q=64, BLOCK_K=32, num_warps=4, num_stages=3)  # a member of the portfolio that ships


def every() -> list[GridCell]:
    return in_order()


def test_each_problem_is_there_once_and_its_implementation_supports_it() -> None:
    assert len(set(every())) == len(every()) == 312
    for cell in every():
        operation, name = cell.title.split("/")
        implementation = get_implementation(operation, name)
        assert get_operation(operation).unsupported(cell.shape) is None
        assert implementation.supports(cell.shape, H100) is None
        default = implementation.space.default(cell.shape, H100)
        assert implementation.space.why_invalid(default, cell.shape, H100) is None


def test_the_dense_problems_are_those_of_models() -> None:
    shapes = [cell.shape for cell in every() if isinstance(cell.shape, AttentionShape)]
    assert len(shapes) == 142
    heads = {(shape.heads, shape.kv_heads) for shape in shapes}
    assert heads >= {(32, 8), (28, 4), (40, 8), (64, 8), (16, 2)}
    widths = {(shape.head_dim, shape.head_dim_v) for shape in shapes}
    assert widths == {(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)}
    for width in widths:
        masks = {(s.causal, s.window is not None) for s in shapes if (s.head_dim, s.head_dim_v) == width}
        assert masks == {(True, False), (False, False), (True, True)}
    assert {shape.head_dim for shape in shapes if shape.softcap} == {128, 256}
    assert {shape.window for shape in shapes} == {None, 128, 512, 1024, 4096}
    assert {shape.seq_q for shape in shapes} >= {512, 1024, 2048, 4096, 8192, 16384, 32768, 3000}
    assert {shape.batch for shape in shapes} >= {1, 2, 4, 8, 32}


def test_the_paged_problems_are_those_of_models() -> None:
    paged = {title: [cell.shape for cell in grid()[title]] for title in (problems.DECODE, problems.PREFILL)}
    decode, prefill = ([each for each in found if isinstance(each, PagedShape)] for found in paged.values())
    assert (len(decode), len(prefill)) == (100, 70)
    assert {shape.kv_dtype for shape in decode} == {"bfloat16", "float8_e4m3fn"}
    assert {shape.kv_dtype for shape in prefill} == {"bfloat16"}
    for shapes in (decode, prefill):
        assert {shape.page_size for shape in shapes} == {16, 64, 256}
        assert {shape.max_context for shape in shapes} >= {1024, 4096, 16384, 65536, 131072}
        for name in ("softcap", "sinks", "alibi", "window"):
            assert any(getattr(shape, name) for shape in shapes)
        assert {shape.head_dim for shape in shapes} == {64, 96, 128, 192, 256}
    assert min(shape.evenness for shape in decode) == 0.25


def test_features_are_those_of_named_models() -> None:
    named = {
        (model.heads, model.kv_heads, model.head_dim, window)
        for model in MODELS.values()
        for window in (model.window, None)
    }
    for cell in every():
        shape = cell.shape
        if isinstance(shape, PagedShape) and (shape.window or shape.softcap or shape.sinks or shape.alibi):
            assert (shape.heads, shape.kv_heads, shape.head_dim, shape.window) in named


def test_any_beginning_has_a_part_of_all_classes() -> None:
    def classes(cells: Sequence[GridCell]) -> set[tuple[object, ...]]:
        return {(cell.title, cell.group, cell.shape.as_dict()["head_dim"]) for cell in cells}

    assert len(classes(every())) == 54
    assert classes(every()[:104]) == classes(every())
    begin = [cell.title for cell in every()[:156]]
    assert [begin.count(title) for title in grid()] == [71, 50, 35]


def test_no_problem_takes_long_by_the_estimate() -> None:
    assert all(device_seconds(cell.title, cell.shape) <= problems.MAX_SECONDS for cell in every())
    assert max(launch_seconds(cell.title, cell.shape) for cell in every()) < 0.04
    assert 500 < sum(device_seconds(cell.title, cell.shape) for cell in every()) < 800


def test_every_other_problem_is_the_farthest_from_all_before() -> None:
    shapes: list[Shape] = [sample.shape(seq, batch=1) for seq in (2048, 512, 1024, 4096, 32768)]
    found = spread(shapes, 9)
    assert found[:2] == [shapes[0], shapes[4]]
    assert spread(shapes, 3, draws=False) == [shapes[0], shapes[4], shapes[1]]
    assert len(set(found)) == len(found) == 5
    assert found == spread(shapes, 5)
    assert spread(shapes, 2) == found[:2]


def points_of(model: ModelShape, title: str) -> Iterator[Shape]:
    """Attention of a named model: each kind of its layers, 36 batches and lengths."""
    heads: dict[str, Any] = {name: getattr(model, name) for name in ("heads", "kv_heads", "head_dim", "head_dim_v")}
    for window in dict.fromkeys((model.window, None) if model.mixes_windows else (model.window,)):
        features: dict[str, Any] = {**heads, "window": window, "softcap": model.softcap is not None}
        for batch, length in itertools.product((1, 2, 4, 8, 16, 32), (512, 1024, 2048, 4096, 8192, 16384)):
            if title == problems.DENSE:
                yield AttentionShape(batch=batch, seq_q=length, causal=model.causal, **features)
            elif model.causal and not model.latent:
                yield PagedShape(batch=batch, max_context=length, sinks=model.sinks, alibi=model.alibi, **features)


@pytest.mark.slow
@pytest.mark.parametrize(("title", "begin"), [(problems.DENSE, 200), (problems.DECODE, 240)])
def test_once_recorded_it_speaks_for_nearly_all_shapes_of_named_models(title: str, begin: int) -> None:
    """Of at least 95 % an expected regret is known, after a good part of the list already."""
    implementation = get_implementation(*title.split("/"))
    rows = [
        sample.assignment(
            cell.shape,  # type: ignore[arg-type] # of paged decode, too
            implementation.space.default(cell.shape, H100),
            operation=implementation.operation,
            device=H100,
        )
        for cell in every()[:begin]
        if cell.title == title
    ]
    points = [shape for model in MODELS.values() for shape in points_of(model, title)]
    known = [left_out_regret(rows, rows[0], shape, H100)[1] > 0 for shape in points]
    assert len(points) > 1500
    assert sum(known) >= 0.95 * len(points)


class Gpu:
    """A GPU whose times are a formula: the more a config differs from the best of a length, the longer it takes."""

    name = "gpu"
    device = H100
    toolchain = sample.TOOLCHAIN
    policy = Policy()
    capacity = 4
    worker = "host:1"

    def __init__(self) -> None:
        self.reached: dict[str, float] = {}
        self.shape: Shape
        self.implementation: Any = DENSE
        self.queue: deque[Candidate] = deque()
        self.asked: list[tuple[Shape, Candidate]] = []
        self.raced: list[list[Candidate]] = []
        self.on_collect: Callable[[], None] = lambda: None
        self.closed = False

    def toolchain_of(self, implementation: str) -> Toolchain:
        return self.toolchain

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        self.shape, self.implementation = shape, get_implementation(operation.name, "triton")
        self.queue.clear()

    def submit(self, candidate: Candidate) -> None:
        assert self.implementation.space.why_invalid(candidate.config, self.shape, H100) is None
        self.queue.append(candidate)
        self.asked.append((self.shape, candidate))

    def collect(self, timeout: float | None = None) -> Outcome | None:
        self.on_collect()
        return self.outcome(self.queue.popleft())

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        assert baselines == "none"
        self.raced.append(candidates)
        return Race(tuple(map(self.outcome, candidates)))

    def outcome(self, candidate: Candidate) -> Outcome:
        if candidate.config == WRONG:
            return Outcome(candidate=candidate, status=Status.WRONG_RESULT, message="off", error=1.0, error_limit=0.1)
        return Outcome(candidate=candidate, status=Status.OK, timing=sample.timing(self.microseconds(candidate.config)))

    def microseconds(self, config: Config) -> float:
        space = self.implementation.space
        best = GOOD if self.implementation is DENSE else space.default(self.shape, H100)
        steps = [abs(a - b) for a, b in zip(space.order(config), space.order(best), strict=True)]
        return 100.0 * (1.0 + 0.05 * float(sum(steps)))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    dispatch.reload()
    made = Gpu()
    monkeypatch.setattr(grid_recording, "RESULTS", tmp_path / "shipped")
    monkeypatch.setattr(record, "open_gpu", lambda settings: made)
    monkeypatch.setattr(record, "require_gpu", lambda name: None)
    monkeypatch.setattr(record, "compiling_ahead", lambda executor: contextlib.nullcontext(None))
    yield made
    dispatch.reload()


def dense(seq: int, **changes: Any) -> AttentionShape:
    return sample.shape(seq, **{"batch": 4, "heads": 32, "kv_heads": 8, **changes})


def cells(count: int = 4) -> list[GridCell]:
    return [GridCell(DENSE.title, "causal", dense(512 * 2**number)) for number in range(count)]


def recording(gpu: Gpu, tmp_path: Path, **options: Any) -> GridRecording:
    return GridRecording(gpu, Store(tmp_path / "store"), tmp_path / "results", **options)


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
    words = ("--head-dim", "128", "--only", "causal:", "--minutes", "9", "--part", "1/3")
    assert command(monkeypatch, tmp_path, *words) == 0
    assert gpu.closed
    wide = [cell for cell in every() if cell.group == "causal" and cell.shape.as_dict()["head_dim"] == 128]
    recorded = {cell.shape for cell in wide[: len(wide) // 3]}
    results = tmp_path / "results"
    winners = shipped_winners("flash_attention", results=results)
    assert {trial.shape for trial in winners} == recorded
    assert all(trial.config == GOOD and trial.default_timing and trial.heuristic_timing for trial in winners)
    assert {grid_path(trial) for trial in shipped_grid("flash_attention", results=results)} == {
        Path("nvidia_h100_80gb_hbm3/flash_attention/grids/triton.parquet")
    }
    assert "a search gained" in capsys.readouterr().out
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
    assert len(found) == 3
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


def test_what_ships_of_this_device_is_not_missing_where_results_go_elsewhere(gpu: Gpu, tmp_path: Path) -> None:
    """As on a lent machine, whose results come back in a folder of their own."""
    assert GridRecording(gpu, Store(tmp_path / "first"), tmp_path / "shipped").record(cells(2))
    second = GridRecording(gpu, Store(tmp_path / "second"), tmp_path / "results")
    assert second.missing(cells(3)) == cells(3)[2:]
    assert {each.best for each in second.part(DENSE.title).knowledge.recordings.values()} == {GOOD}


def test_rows_of_the_same_name_under_another_power_cap_stay(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recording(gpu, tmp_path).record(cells(1))
    capped = replace(H100, power_cap_watts=310)
    monkeypatch.setattr(gpu, "device", capped)
    assert GridRecording(gpu, Store(tmp_path / "capped"), tmp_path / "results").record(cells(2))
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


def test_a_search_goes_on_only_where_it_paid(gpu: Gpu, tmp_path: Path) -> None:
    made = recording(gpu, tmp_path)
    assert made.record(cells(6))
    gains = made.part(DENSE.title).knowledge.gains
    assert gains[0][1] > 0.03
    knowledge = Knowledge(DENSE, H100)
    assert knowledge.is_search_worth(cells()[0].shape)
    for cell in cells(ENOUGH):
        knowledge.note_gain(cell.shape, 0.0)
    assert not knowledge.is_search_worth(cells(4)[3].shape)
    assert knowledge.is_search_worth(dense(4096, head_dim=64))  # of another class
    for cell in cells(ENOUGH):
        knowledge.note_gain(cell.shape, 0.2)
    assert knowledge.is_search_worth(cells(4)[3].shape)


def test_the_first_configs_are_the_defaults_members_winners_and_neighbours(gpu: Gpu) -> None:
    shape = cells()[2].shape
    knowledge = Knowledge(DENSE, H100)
    alone = knowledge.first(shape)
    space = DENSE.space
    assert alone[0] == space.default(shape, H100)
    assert set(space.heuristics(shape, H100)) <= set(alone)
    knowledge.learn([sample.sweep(sample.shape(seq)) for seq in (1024, 4096)])
    found = knowledge.first(shape)
    assert sample.FAST in found
    assert len(found) == FIRST == len(set(found))
    assert set(found) & set(neighbours(space, sample.FAST, shape, H100))
    assert all(space.why_invalid(config, shape, H100) is None for config in found)
    other = dense(2048, dtype="float32")  # a class in which nothing is recorded
    assert all(space.why_invalid(config, other, H100) is None for config in knowledge.first(other))
    assert likeness(other, H100).kind != likeness(shape, H100).kind


def test_neighbours_differ_in_one_parameter_by_one_step() -> None:
    shape = cells()[2].shape
    order = DENSE.space.order
    found = neighbours(DENSE.space, GOOD, shape, H100)
    assert found
    for config in found:
        assert sum(abs(a - b) for a, b in zip(order(config), order(GOOD), strict=True)) == 1


def test_grids_of_two_gpus_are_merged_in_any_order(
    gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1):
        folder = tmp_path / str(number)
        GridRecording(gpu, Store(folder / "store"), folder).record(cells()[2 * number : 2 * number + 2])
    merged = []
    for order in ((0, 1), (1, 0, 1)):
        results = tmp_path / f"merged{len(order)}"
        merge.main([*(str(tmp_path / str(number)) for number in order), "--results", str(results)])
        merged.append((results / grid_path(shipped_grid("flash_attention", results=results)[0])).read_bytes())
    assert merged[0] == merged[1]
    assert "flash_attention: 4 winners, 0 sweeps, a grid of 4 problems\n" in capsys.readouterr().out


def test_listing_needs_no_gpu_and_another_implementation_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, tmp_path, "--list", "--operation", "paged_prefill", "--head-dim", "96") == 0
    assert capsys.readouterr().out.endswith(" of 70 problems\n")
    assert command(monkeypatch, tmp_path, "--implementation", "flex") == 2
    assert "the grid is of 'triton', not of --implementation flex" in capsys.readouterr().err


class Pool:
    """In place of a pool of compilers: what was asked of it, and as many answers as a test lets come."""

    def __init__(self, device: Any, *, jobs: int, timeout: float) -> None:
        self.jobs, self.in_flight, self.answers = jobs, 0, 0
        self.asked: list[tuple[Shape, bool]] = []

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        assert self.in_flight == 0, "a problem that is opened stops the compiles of the last one"
        self.shape = shape

    def submit(self, candidate: Candidate, *, every_output: bool = False) -> None:
        self.in_flight += 1
        self.asked.append((self.shape, every_output))

    def receive(self, timeout: float) -> Outcome | None:
        if not self.answers:
            return None
        self.answers -= 1
        self.in_flight -= 1
        return Outcome(candidate=sample.candidate(), status=Status.OK)

    def close(self) -> None:
        pass


def test_what_comes_next_is_compiled_ahead_problem_by_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_ahead, "CompilePool", Pool)
    ahead = CompileAhead(H100, jobs=2)
    pool: Any = ahead._pool
    first, second = (cell.shape for cell in cells(2))
    for shape in (first, second):
        ahead.want(FLASH, shape, [sample.candidate(GOOD), sample.candidate()])
    ahead.want(FLASH, second, [])
    assert pool.asked == [(first, False)] * 2
    pool.answers = 1
    ahead.advance()
    assert len(pool.asked) == 2
    for expected in (4, 6, 8, 8):
        pool.answers = pool.in_flight
        ahead.advance()
        assert len(pool.asked) == expected
    assert pool.asked[2:] == [(first, True)] * 2 + [(second, False)] * 2 + [(second, True)] * 2
    ahead.close()


def test_a_problem_with_nothing_correct_is_an_error_and_its_verdicts_are_kept(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Gpu, candidate: Candidate) -> Outcome:
        return Outcome(candidate=candidate, status=Status.NAN_RESULT, message="NaN")

    monkeypatch.setattr(Gpu, "outcome", refuse)
    store = Store(tmp_path / "store")
    with pytest.raises(SearchError, match="no config of flash_attention/triton came to the end of a race"):
        record_problem(FLASH, cells()[0].shape, gpu, store, Knowledge(DENSE, H100))
    rows = store.trials("flash_attention", H100)
    assert len(rows) == FIRST
    assert {row.status for row in rows} == {Status.NAN_RESULT}
    assert math.isfinite(len(gpu.raced))
