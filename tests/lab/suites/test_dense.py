"""The suites over dense attention: AMD's exercise, the course assignment, and the search for blocks."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import TunedKernel, get_kernel
from autotune.errors import MissingDependencyError
from autotune.executor import Race
from autotune.lab.bench import entrants
from autotune.lab.formulas import eager_movements, total_bytes
from autotune.lab.memory.peaks import peak_bytes
from autotune.lab.suites import CpuMachine, assignment, blocks, exercise
from autotune.search_spaces.flash_attention.operation import OPERATION
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.table import shipped_sweeps
from autotune.trial import Candidate, Outcome, Stage, Status, Timing
from tests.lab.bench.fake_machine import EXTRA_BYTES, HELD_BYTES, FakeMachine

CASES = ((2, 2, 33, 16), (1, 3, 17, 8))


def test_the_exercise_has_its_own_sizes() -> None:
    assert exercise.CASES == ((1, 8, 128, 64), (2, 16, 256, 64), (4, 32, 512, 64), (2, 16, 1024, 64), (1, 8, 2048, 64))


@pytest.mark.slow
def test_the_exercise_compares_flash_with_standard_attention_with_and_without_projections() -> None:
    tables = list(exercise.measure_exercise(FakeMachine(), CASES))
    assert [table.title for table in tables] == ["attention, float32", "with projections, float32"]
    for table in tables:
        assert table.failures == ()
        first = dict(zip(table.names, table.rows[0], strict=True))
        assert first["B, H, S, D"] == "2, 2, 33, 16"
        assert first["speed-up"] == 2.0  # the fake machine's second call takes twice as long
        assert first["flash peak"] == first["standard peak"] == EXTRA_BYTES + HELD_BYTES + 2 * 2 * 33 * 16 * 4
        assert first["memory ratio"] == 1.0
        assert first["flash tokens/s"] == pytest.approx(2 * 33 / 100e-6)
        assert first["standard tokens/s"] == pytest.approx(2 * 33 / 200e-6)
        assert isinstance(first["flash error"], float)
        assert 0.0 < first["flash error"] < 1e-5
    for table in tables:
        assert [comparison.shape.as_dict()["seq_q"] for comparison in table.comparisons] == [33, 17]
    rates = [[entry.tflops is None for race in table.comparisons for entry in race.timed] for table in tables]
    assert rates == [[False] * 4, [True] * 4]  # the operation's cost leaves projections out


@pytest.mark.slow
def test_standard_attention_is_eager_attention_and_holds_two_matrices_of_scores_and_its_mask() -> None:
    """On the real processor: a third matrix, or a mask that is not counted, makes another ratio."""
    alone, projected = exercise.measure_exercise(CpuMachine(), ((1, 4, 256, 16),))
    scores, mask, out, few = 4 * 256 * 256 * 4, 256 * 256, 4 * 256 * 16 * 4, 4096  # torch's numbers and paddings
    shape = alone.comparisons[0].shape
    assert isinstance(shape, AttentionShape)
    peaks = []
    for table in (alone, projected):
        row = dict(zip(table.names, table.rows[0], strict=True))
        assert isinstance(row["standard peak"], int)
        peaks.append(row["standard peak"])
    assert 0 <= peaks[0] - (mask + 2 * scores + out) < few
    assert abs(peaks[0] - peak_bytes("eager", shape)) < few
    assert 0 <= peaks[1] - (mask + 2 * scores + out) < 4 * out + few  # beside it q, k, v and the output of attention


@pytest.mark.parametrize("suite", ["exercise", "assignment"])
@pytest.mark.slow
def test_a_case_whose_inputs_do_not_fit_costs_no_other(monkeypatch: pytest.MonkeyPatch, suite: str) -> None:
    right = entrants.judge_inputs

    def judge(definition: Any, inputs: Any) -> Any:
        if inputs.q.shape[1] == 33:
            raise RuntimeError("not enough memory:\nyou tried to allocate 1 TB")
        return right(definition, inputs)

    monkeypatch.setattr(entrants, "judge_inputs", judge)
    if suite == "exercise":
        table = next(exercise.measure_exercise(FakeMachine(), CASES))
        where, times = "attention, float32: 2, 2, 33, 16", [row[1:3] for row in table.rows]
        others = times[1]
    else:
        _, table, fusion = assignment.measure_assignment(FakeMachine(), (33, 17))
        where, times = "S 33", [row[4:5] for row in table.rows[:2]]
        others = table.rows[2][4:5] + table.rows[3][4:5]
        assert [row[1:3] == (None, None) for row in fusion.rows] == [True, False]
    assert all(time is None for time in times[0])
    assert all(isinstance(time, Timing) for time in others)
    reason = "inputs and reference cannot be made: RuntimeError: not enough memory: you tried to allocate 1 TB"
    assert table.failures == (f"{where}: {reason}",)
    assert [bool(comparison.timed) for comparison in table.comparisons] == [False, True]


def on_an_h200(shape: AttentionShape, **options: Any) -> TunedKernel:
    return get_kernel(shape, device="NVIDIA H200", **options)


@pytest.mark.slow
def test_the_exercise_says_which_configs_flash_had(monkeypatch: pytest.MonkeyPatch) -> None:
    right = exercise._ways
    monkeypatch.setattr(exercise, "_ways", lambda machine, shape: (on_an_h200(shape), right(machine, shape)[1]))
    for table in exercise.measure_exercise(FakeMachine(), ((2, 2, 33, 16), (1, 3, 40, 8))):
        assert "2 of 2 served configs are untuned: the space's default (2)" in table.notes
        (note,) = (note for note in table.notes if note.startswith("served at "))
        assert note.startswith("served at 2, 2, 33, 16; 1, 3, 40, 8: triton BLOCK_Q=")
        assert note.endswith(" (space's default)")  # no portfolio is of float32


def test_the_assignment_says_which_configs_ours_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that passes for a GPU; the Triton kernels do not run, which is said."""
    right = assignment._entrants
    monkeypatch.setattr(assignment, "get_kernel", on_an_h200)
    monkeypatch.setattr(assignment, "_entrants", lambda shape, served, device: right(shape, served, "cpu"))
    _, kernels, fusion = assignment.measure_assignment(FakeMachine(kind="cuda"), (40, 50))
    for table in (kernels, fusion):
        assert "2 of 2 served configs are untuned: the space's default (2)" in table.notes
        (note,) = (note for note in table.notes if note.startswith("served at "))
        assert note.startswith("served at S 40; S 50: triton BLOCK_Q=")
    assert len(kernels.failures) == 4


@pytest.mark.parametrize("table", [0, 1])
@pytest.mark.slow
def test_the_exercise_fails_where_flash_computes_something_else(monkeypatch: pytest.MonkeyPatch, table: int) -> None:
    right = exercise._sdpa_flash
    monkeypatch.setattr(exercise, "_sdpa_flash", lambda q, k, v: right(q, k, v) * 1.01)
    found = list(exercise.measure_exercise(FakeMachine(), CASES[:1]))[table]
    (failure,) = found.failures
    assert "2, 2, 33, 16: flash: BaselineUnavailableError: largest error" in failure
    assert found.rows[0][1] is None
    assert found.rows[0][3] is None


def test_the_score_matrix_is_that_of_the_assignments_table() -> None:
    rows = assignment.score_matrices().rows
    kilobytes = [(row[0], row[1] / 1024, row[2] / 2**20) for row in rows]
    assert kilobytes == [(128, 64, 0.5), (512, 1024, 8), (1024, 4096, 32), (2048, 16384, 128)]


def test_the_assignment_has_its_own_sizes() -> None:
    sizes = (assignment.LENGTHS, assignment.HEADS, assignment.HEAD_DIM, assignment.MAX_ERROR)
    assert sizes == ((128, 512, 1024), 8, 64, 1e-3)


def test_the_assignment_tells_errors_slow_down_and_what_fusion_changes() -> None:
    """On a CPU "before" is eager, which moves the scores twice more than naive."""
    _, kernels, fusion = assignment.measure_assignment(FakeMachine(), (40,))
    eager, sdpa = kernels.rows
    assert (eager[:2], sdpa[:2]) == ((40, "eager"), (40, "sdpa"))
    assert (eager[3], eager[5], sdpa[5]) == ("yes", 0.5, 1.0)
    assert kernels.failures == ()
    (row,) = fusion.rows
    before, after = row[4:6]
    # Counted: the scores are written thrice and read thrice, Q, K, V are read and the output written once each.
    assert before == 8 * 4 * (4 * 40 * 64 + 6 * 40 * 40)
    assert after == 8 * 4 * 4 * 40 * 64
    assert row[6] == pytest.approx(4 * 40 * 40 * 64 / (4 * (4 * 40 * 64 + 6 * 40 * 40)))
    assert row[3] == 0.5


@pytest.mark.parametrize("seq", assignment.MATRIX_LENGTHS)
def test_what_is_moved_before_fusion_is_what_the_analyses_count(seq: int) -> None:
    """Of naive the scores are written, read, written and read, and Q, K, V and the output move once each."""
    shape = assignment.shape_of(seq)
    assert assignment.moved_before("naive", shape) == 8 * 4 * (4 * seq * 64 + 4 * seq * seq)
    assert assignment.moved_before("eager", shape) == total_bytes(eager_movements(shape))


def test_the_claims_figures_are_those_of_the_formula() -> None:
    shapes = [assignment.shape_of(seq) for seq in (128, 1024)]
    intensities = [OPERATION.cost(shape).flops / assignment.moved_before("naive", shape) for shape in shapes]
    assert [round(intensity, 1) for intensity in intensities] == [10.7, 15.1]
    assert intensities == [pytest.approx(seq * 64 / (4 * (64 + seq))) for seq in (128, 1024)]  # the claim's words
    assert "10.7 at 128, 15.1 at 1024" in assignment.CLAIM


def test_the_assignment_fails_beyond_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "MAX_ERROR", 1e-12)
    kernels = list(assignment.measure_assignment(FakeMachine(), (16,)))[1]
    assert [row[3] for row in kernels.rows] == ["no", "no"]
    assert len(kernels.failures) == 2
    assert kernels.failures[0].startswith("S 16: eager: largest error")


def test_blocks_have_the_exercises_pairs_and_lengths() -> None:
    assert blocks.PAIRS == ((32, 32), (64, 64), (128, 128), (64, 32), (32, 64), (128, 64))
    shape = blocks.shape_of(256)
    assert (blocks.LENGTHS, shape.batch, shape.heads, shape.head_dim) == ((256, 512, 1024), 2, 16, 64)


@pytest.mark.parametrize(("seq", "pairs"), [(256, 6), (64, 4), (32, 1), (16, 0)])
def test_pairs_longer_than_the_sequence_are_skipped_and_the_others_are_valid(seq: int, pairs: int) -> None:
    shape = blocks.shape_of(seq)
    configs = blocks.pair_configs(shape, NVIDIA_H200)
    assert len(configs) == pairs
    for pair, config in configs.items():
        assert (config["BLOCK_Q"], config["BLOCK_K"]) == pair
        assert IMPLEMENTATION.space.why_invalid(config, shape, NVIDIA_H200) is None


def test_the_nearest_recording_is_that_of_the_length() -> None:
    def recorded(seq: int, batch: int, **changes: Any) -> AttentionShape:
        return AttentionShape(**({"batch": batch, "heads": 32, "seq_q": seq, "head_dim": 64} | changes))

    known = [recorded(512, 64), recorded(512, 32), recorded(1024, 16), recorded(256, 2, head_dim=128)]
    assert [blocks.nearest(blocks.shape_of(seq), known) for seq in (256, 512, 1024)] == [known[1], known[1], known[2]]
    far = [*known, recorded(4096, 4, causal=True)]
    assert blocks.nearest(blocks.shape_of(1024), far) == far[-1]  # the only one with the exercise's mask
    with pytest.raises(MissingDependencyError, match="head_dim 64 in bfloat16"):
        blocks.nearest(blocks.shape_of(256), known[3:])


def test_without_a_gpu_the_recorded_sweeps_answer_for_the_blocks() -> None:
    pairs, best = blocks.measure_blocks(FakeMachine())
    assert len(pairs.rows) == 18
    trials = next(
        trials
        for sweep in shipped_sweeps("flash_attention")
        if (trials := sweep.trials())[0].shape.as_dict()
        == {**blocks.shape_of(512).as_dict(), "batch": 32, "heads": 32, "kv_heads": 32}
    )
    wanted = {"loads": "descriptor", "num_warps": 4, "num_stages": 3}
    times = {
        (trial.config["BLOCK_Q"], trial.config["BLOCK_K"]): trial.timing
        for trial in trials
        if trial.stage is Stage.SCREEN
        and trial.timing is not None
        and {name: trial.config[name] for name in wanted} == wanted
    }
    row = next(row for row in pairs.rows if row[0] == 512 and row[3] == "64x64")
    assert row[4] == times[64, 64]
    fastest = min(((64, 64), (128, 128), (64, 32), (128, 64)), key=lambda pair: times[pair].median_us)
    nothing = ("not recorded", None, None, None)
    assert [row[1:] for row in best.rows[::2]] == [nothing, nothing]  # 256 and 1024 are not recorded with that mask
    assert best.rows[1][1:3] == (str(trials[0].shape), f"{fastest[0]}x{fastest[1]}")
    common = "batch (2 asked), heads (16 asked)"
    listed = {row[0]: row[2] for row in pairs.rows}
    assert listed == {256: f"{common}, seq (256 asked)", 512: common, 1024: f"{common}, seq (1024 asked)"}


def test_a_mask_that_is_not_as_asked_is_named_and_has_no_best_pair() -> None:
    asked = blocks.shape_of(256)
    other = replace(asked, causal=False)
    assert blocks.mismatches(asked, other) == "mask (causal asked)"
    timing = Timing(1.0, 0.9, 1.1, 5)
    assert blocks._best_recorded(256, other, {(64, 64): timing}) == (256, "not recorded", None, None, None)
    assert blocks._best_recorded(256, asked, {(64, 64): timing}) == (256, str(asked), "64x64", timing, "none")


class FakeExecutor:
    """A GPU on which small blocks are fast, some level, and 128 x 128 does not run."""

    device: Device = NVIDIA_H200

    def __init__(self) -> None:
        self.opened: list[AttentionShape] = []
        self.is_closed = False

    def open(self, operation: object, shape: AttentionShape) -> None:
        self.opened.append(shape)

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: object) -> Race:
        assert baselines == "none"
        return Race(tuple(map(self._judge, candidates)))

    def _judge(self, candidate: Candidate) -> Outcome:
        config = candidate.config
        size = config.integer("BLOCK_Q") + config.integer("BLOCK_K")
        if size == 256:
            return Outcome(candidate=candidate, status=Status.OUT_OF_RESOURCES, message="too much")
        return Outcome(candidate=candidate, status=Status.OK, timing=Timing(size, size - 0.5, size + 0.5, 15))

    def close(self) -> None:
        self.is_closed = True


def test_on_a_gpu_the_pairs_are_raced_at_the_exercises_problem() -> None:
    executor = FakeExecutor()
    pairs, best = blocks.measure_blocks(FakeMachine(kind="cuda", executor=executor))  # type: ignore[arg-type]
    assert executor.opened == [blocks.shape_of(seq) for seq in (256, 512, 1024)]
    assert executor.is_closed
    assert [row[1] for row in pairs.rows[:6]] == ["32x32", "64x64", "128x128", "64x32", "32x64", "128x64"]
    assert [row[1] for row in best.rows] == ["32x32"] * 3
    assert pairs.failures[0] == "S 256: 128x128 is out_of_resources: too much"
    assert len(pairs.failures) == 3
    level = blocks._best(256, {(64, 32): Timing(96.0, 95.0, 97.0, 15), (32, 64): Timing(96.5, 95.5, 97.5, 15)})
    assert level[1::2] == ("64x32", "32x64")


def test_projections_are_linear_layers_around_attention() -> None:
    """The module's error is judged against fp64 with the same weights: with other weights it would be far off."""
    (entrant, _) = exercise._projected(
        AttentionShape(batch=2, heads=2, seq_q=9, head_dim=8, dtype="float32", causal=True),
        {"flash": lambda: exercise._sdpa_flash, "standard": lambda: exercise._sdpa_flash},
        "cpu",
    )
    out = entrant.prepare()()
    assert out.shape == (2, 9, 16)
    assert entrant.check(out)[0] < 1e-5
    with pytest.raises(Exception, match="largest error"):
        entrant.check(torch.flip(out, [1]))
