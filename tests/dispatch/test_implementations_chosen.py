"""The default that is served where several implementations have portfolios: the one that was faster near the shape."""

from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import alternatives_for, choose
from autotune.dispatch.provenance import Alternative
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.registry import our_implementations
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION as GLUON
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter
from autotune.table import Assignment, Served
from tests import sample
from tests.outside.row_scale.space import IMPLEMENTATION as PLAIN
from tests.outside.row_scale.space import RowShape

SHORT, LONG = sample.shape(512), sample.shape(8192)
SERVED: Final = Served(sample.trial(LONG), "shipped")


def of_gluon(problem: AttentionShape, behind: float | None, **changes: Any) -> Assignment:
    config = GLUON.space.default(problem, NVIDIA_H200)
    names: dict[str, Any] = {"implementation": GLUON.name, "source_hash": GLUON.source_hash}
    return sample.assignment(problem, config, **names, is_default=True, behind=behind, **changes)


def first_of_both(asked: AttentionShape, *rows: Assignment) -> Alternative:
    return alternatives_for(asked, NVIDIA_H200, [], [IMPLEMENTATION, GLUON], portfolio=rows)[0]


def test_the_implementation_that_was_faster_at_the_shapes_near_is_served_with_what_it_was_behind() -> None:
    """Of two that met in races at a short and a long shape; without races the first one is."""
    rows = [
        *(sample.assignment(SHORT, behind=0.0), sample.assignment(LONG, behind=0.2)),
        *(of_gluon(SHORT, 0.1), of_gluon(LONG, 0.0)),
    ]
    for seq, name in ((600, "triton"), (6000, "gluon_hopper")):
        assert first_of_both(sample.shape(seq), *rows).candidate.implementation == name
    unraced = [replace(row, behind=None) for row in rows]
    assert first_of_both(sample.shape(6000), *unraced).candidate.implementation == "triton"
    assert first_of_both(sample.shape(6000), *rows[:2], *unraced[2:]).candidate.implementation == "triton"


def test_of_a_class_without_recordings_the_implementation_comes_first_that_is_faster_in_others() -> None:
    shapes = [sample.shape(seq) for seq in (512, 1024, 8192)]
    rows = [
        *(sample.assignment(shape, behind=behind) for shape, behind in zip(shapes, (0.0, 0.2, 0.3), strict=True)),
        *(of_gluon(shape, behind) for shape, behind in zip(shapes, (0.1, 0.0, 0.0), strict=True)),
    ]
    asked = sample.shape(head_dim=64)
    found = first_of_both(asked, *rows)
    assert found.candidate.implementation == "gluon_hopper"
    assert found.candidate.config == GLUON.space.default(asked, NVIDIA_H200)
    assert found.provenance.expectation.recorded == (None, 0)
    assert first_of_both(asked, *rows[:2], *rows[3:5]).candidate.implementation == "triton"  # two shapes say too little
    of_class = [
        sample.assignment(sample.shape(512, head_dim=64), behind=0.0),
        of_gluon(sample.shape(512, head_dim=64), 0.1),
    ]
    assert first_of_both(asked, *rows, *of_class).candidate.implementation == "triton"


def test_before_a_row_of_a_far_shape_stand_the_choices_of_all_implementations() -> None:
    """So that the far row is not what a call gets that the first one declines."""
    far = Served(sample.trial(sample.shape(6000)), "shipped")
    chosen = sample.config(num_stages=4)
    rows = [sample.assignment(LONG, chosen, behind=0.2), of_gluon(LONG, 0.0)]
    found = alternatives_for(LONG, NVIDIA_H200, [far], [IMPLEMENTATION, GLUON], portfolio=rows)
    default = GLUON.space.default(LONG, NVIDIA_H200)
    assert [each.candidate.config for each in found][:3] == [default, chosen, far.trial.config]
    # Of an implementation without a choice the far row comes before the space's default.
    found = alternatives_for(LONG, NVIDIA_H200, [far], [GLUON, IMPLEMENTATION], portfolio=rows[1:])
    assert [each.candidate.config for each in found][:2] == [default, far.trial.config]


@pytest.mark.parametrize(
    ("rivals", "behind", "expected"),
    [
        ([of_gluon(LONG, None)], 0.5, (pytest.approx(1.01 * 1.5 - 1.0), 3)),
        (None, 0.5, (pytest.approx(0.01), 3)),  # nothing else is admitted
        ([of_gluon(LONG, None)], None, (None, 0)),  # it met no other: nothing says how far behind it is
    ],
    ids=["rivals", "none", "unmet"],
)
def test_what_an_implementation_is_behind_is_lost_where_another_is_admitted(
    rivals: list[Assignment] | None, behind: float | None, expected: tuple[object, int]
) -> None:
    several = [sample.assignment(sample.shape(seq), behind=behind) for seq in (2048, 4096, 8192)]
    found = choose(several, IMPLEMENTATION, sample.shape(4096), NVIDIA_H200, rivals=rivals)
    assert found is not None
    assert found.expectation.recorded == expected


def test_each_shape_tells_of_the_implementation_that_would_be_served_there() -> None:
    rows = [
        sample.assignment(sample.shape(seq), behind=0.0, left_out_regret=0.03125, is_chosen=True)
        for seq in (2048, 4096, 8192)
    ]
    rows.append(sample.assignment(sample.shape(1024), behind=0.4, left_out_regret=0.03125, is_chosen=False))
    served = of_gluon(sample.shape(1024), 0.0, left_out_regret=0.15625, is_chosen=True)
    of_another_triton = replace(served, triton_version="3.5.0")
    for rivals, expected in (
        ([served], (0.0625, 4)),
        ([replace(served, is_chosen=False)], (0.03125, 3)),
        ([of_another_triton], (0.03125, 3)),
        (None, (0.03125, 4)),
    ):
        found = choose(rows, IMPLEMENTATION, sample.shape(4000), NVIDIA_H200, rivals=rivals)
        assert found is not None
        assert found.expectation.recorded == expected


@pytest.mark.parametrize("change", [{"softcap": True}, {"window": 128}], ids=str)
def test_a_feature_may_turn_round_which_is_faster(change: dict[str, Any]) -> None:
    """Without any shape that has it, those of others say which is."""
    rows = [sample.assignment(LONG, behind=0.4), of_gluon(LONG, 0.0)]
    asked = sample.shape(**{"seq": 8192, "causal": True, **change})
    assert first_of_both(asked, *rows).candidate.implementation == "gluon_hopper"
    rows += [
        each
        for seq in (512, 2048)
        for each in (sample.assignment(sample.shape(seq), behind=0.4), of_gluon(sample.shape(seq), 0.0))
    ]
    for seq in (512, 2048):
        there = sample.shape(**{"seq": seq, "causal": True, **change})
        rows += [sample.assignment(there, behind=0.0), of_gluon(there, 0.2)]
    assert first_of_both(asked, *rows).candidate.implementation == "triton"
    assert first_of_both(sample.shape(4000), *rows).candidate.implementation == "gluon_hopper"


def test_a_row_does_not_give_way_for_what_shapes_of_other_features_say() -> None:
    rows = [sample.assignment(LONG, behind=0.4, left_out_regret=None), of_gluon(LONG, 0.0, left_out_regret=None)]
    asked = sample.shape(8192, causal=True, softcap=True)
    served = Served(sample.trial(asked), "shipped")
    found = alternatives_for(asked, NVIDIA_H200, [served], [IMPLEMENTATION, GLUON], portfolio=rows)
    assert [each.candidate.implementation for each in found[:2]] == ["triton", "gluon_hopper"]


def test_a_users_row_stays_where_a_trend_of_other_features_says_otherwise() -> None:
    """At the only shape of its features the row's implementation won."""
    plain = [sample.shape(seq, causal=True) for seq in (512, 1024, 2048, 4096, 16384)]
    rows = [each for there in plain for each in (sample.assignment(there, behind=0.4), of_gluon(there, 0.0))]
    capped = sample.shape(512, causal=True, softcap=True)
    rows += [sample.assignment(capped, behind=0.0), of_gluon(capped, 0.05)]
    asked = sample.shape(8192, causal=True, softcap=True)
    own = Served(sample.trial(asked), "user")
    found = alternatives_for(asked, NVIDIA_H200, [own], [IMPLEMENTATION, GLUON], portfolio=rows)
    assert found[0].provenance.row == own.trial


def test_what_is_served_second_expects_what_its_own_was_behind() -> None:
    seqs = (1024, 2048, 4096, 8192)
    rows = [sample.assignment(sample.shape(seq), behind=0.5, is_chosen=False) for seq in seqs]
    rows += [of_gluon(sample.shape(seq), 0.0, left_out_regret=0.03125, is_chosen=True) for seq in seqs]
    first, second, *_ = alternatives_for(sample.shape(4000), NVIDIA_H200, [], [IMPLEMENTATION, GLUON], portfolio=rows)
    assert (first.candidate.implementation, second.candidate.implementation) == ("gluon_hopper", "triton")
    assert first.provenance.expectation.recorded == (0.03125, 4)
    regret, count = second.provenance.expectation.recorded
    assert (regret == pytest.approx(1.01 * 1.5 - 1.0), count) == (True, 4)


def test_an_expectation_by_another_implementations_shapes_ends_with_its_source() -> None:
    rows = [
        sample.assignment(sample.shape(seq), behind=0.0, left_out_regret=0.03125, is_chosen=True)
        for seq in (2048, 4096, 8192)
    ]
    for source_hash, notes in ((GLUON.source_hash, 0), ("f" * 64, 1)):
        rival = replace(of_gluon(sample.shape(1024), 0.0, is_chosen=True), source_hash=source_hash)
        found = choose(rows, IMPLEMENTATION, sample.shape(4000), NVIDIA_H200, rivals=[rival])
        assert found is not None
        about = [note for note in found.expectation.notes if note.startswith("of gluon_hopper, which shapes near by")]
        assert len(about) == notes


def test_the_other_16_bit_type_is_served_what_was_faster_and_expects_nothing() -> None:
    rows = [sample.assignment(LONG, behind=0.4), of_gluon(LONG, 0.0)]
    found = first_of_both(sample.shape(8192, dtype="float16"), *rows)
    assert found.candidate.implementation == "gluon_hopper"
    assert found.provenance.expected_regret is None


def test_an_implementation_without_recordings_leaves_the_others_in_order() -> None:
    """Of few queries three of ours are admitted, and of the splitting one nothing is recorded."""
    small = sample.config(BLOCK_Q=64, num_warps=4)
    rows = [sample.assignment(SHORT, small, behind=0.4), of_gluon(SHORT, 0.0)]
    asked = sample.shape(seq_q=64, seq_kv=512, batch=64)
    ours = [each for each in our_implementations("flash_attention") if each.supports(asked, NVIDIA_H200) is None]
    assert [each.name for each in ours] == ["triton", "gluon_hopper", "triton_split_keys"]
    for admitted in (ours, [ours[2], *ours[:2]]):
        found = alternatives_for(asked, NVIDIA_H200, [], admitted, portfolio=rows)
        unknown = [each.name for each in admitted].index("triton_split_keys")
        expected = ["gluon_hopper", "triton"]
        expected.insert(unknown, "triton_split_keys")
        assert [each.candidate.implementation for each in found][:3] == expected


@pytest.mark.parametrize(
    ("behind", "asked", "is_first"),
    [
        (0.4, LONG, True),
        (0.4, sample.shape(7800), True),  # a row near by gives way as well
        (0.005, LONG, False),  # no race tells so little apart
        (0.0, LONG, False),
        (None, LONG, False),
    ],
)
def test_a_row_gives_way_to_an_implementation_that_was_not_in_its_race_and_was_faster_elsewhere(
    behind: float | None, asked: AttentionShape, is_first: bool
) -> None:
    rows = [sample.assignment(LONG, behind=behind, left_out_regret=None)]
    rows.append(of_gluon(LONG, None if behind is None else 0.0, left_out_regret=None))
    found = alternatives_for(asked, NVIDIA_H200, [SERVED], [IMPLEMENTATION, GLUON], portfolio=rows)
    assert (found[0].candidate.implementation == "gluon_hopper") == is_first
    stored = found[1 if is_first else 0]
    assert (stored.candidate, stored.provenance.row) == (SERVED.trial.candidate, SERVED.trial)
    if is_first:
        assert found[0].provenance.cause.startswith("gluon_hopper is expected faster than what triton has tuned for")


@pytest.mark.parametrize(
    ("faster", "first"),
    [(100.0, "gluon_hopper"), (230.0, "triton"), (199.0, "triton")],  # no race tells half a percent apart
)
def test_a_near_row_that_lost_its_race_to_what_is_invalid_here_gives_way(faster: float, first: str) -> None:
    """Blocks of 64 keys are valid up to 512 tokens alone; the portfolio knows that gluon_hopper is faster."""
    asked = sample.shape(513)
    short = Config({**GLUON.space.default(SHORT, NVIDIA_H200), "BLOCK_K": 64, "slots": 4})
    assert GLUON.space.why_invalid(short, SHORT, NVIDIA_H200) is None
    assert GLUON.space.why_invalid(short, asked, NVIDIA_H200) is not None
    won = sample.trial(SHORT, short, implementation=GLUON.name, timing=sample.timing(faster))
    lost = sample.trial(SHORT, timing=sample.timing(200.0))
    rows = [sample.assignment(LONG, behind=0.4), of_gluon(LONG, 0.0)]
    for stored in ([lost, won], [won, lost]):
        served = [Served(each, "user") for each in stored]
        found = alternatives_for(asked, NVIDIA_H200, served, [IMPLEMENTATION, GLUON], portfolio=rows)
        assert found[0].candidate.implementation == first
        assert ("was faster in the race" in found[0].provenance.cause) == (first == "gluon_hopper")
    alone = alternatives_for(asked, NVIDIA_H200, served, [IMPLEMENTATION], portfolio=rows)
    assert alone[0].provenance.row == lost


def test_a_row_of_both_decides_whatever_was_faster_elsewhere() -> None:
    theirs = GLUON.space.default(LONG, NVIDIA_H200)
    slower = sample.trial(LONG, theirs, implementation=GLUON.name, timing=sample.timing(230.0))
    rows = [sample.assignment(LONG, behind=0.4), of_gluon(LONG, 0.0)]
    both = [SERVED, Served(slower, "shipped")]
    found = alternatives_for(LONG, NVIDIA_H200, both, [IMPLEMENTATION, GLUON], portfolio=rows)
    assert [each.candidate.implementation for each in found[:2]] == ["triton", "gluon_hopper"]


def test_a_row_of_one_that_raced_alone_gives_way_to_the_others_row_of_an_earlier_race() -> None:
    """Tuning one implementation says nothing of the others: what both were in before still decides."""
    alone = Served(sample.trial(LONG, race_id="race-alone"), "user")
    config = Config({**GLUON.space.default(LONG, NVIDIA_H200), "section": 4})
    theirs = Served(sample.trial(LONG, config, implementation=GLUON.name, timing=sample.timing(230.0)), "shipped")
    rows = [sample.assignment(LONG, behind=0.4), of_gluon(LONG, 0.0)]
    found = alternatives_for(LONG, NVIDIA_H200, [alone, theirs], [IMPLEMENTATION, GLUON], portfolio=rows)
    assert (found[0].candidate.config, found[0].provenance.rung) == (config, "exact")
    assert found[1].provenance.row == alone.trial
    raced = [Served(replace(each.trial, race_id="race-both"), each.origin) for each in (alone, theirs)]
    found = alternatives_for(LONG, NVIDIA_H200, raced, [IMPLEMENTATION, GLUON], portfolio=rows)
    assert found[0].provenance.row == raced[0].trial


def test_an_implementation_of_which_nothing_recorded_is_valid_is_not_passed_over() -> None:
    """Of few queries the recorded configs of the first one are invalid: nothing says that the other is faster."""
    asked = sample.shape(seq_q=16, seq_kv=8192)
    assert choose([sample.assignment(LONG)], IMPLEMENTATION, asked, NVIDIA_H200) is None
    found = first_of_both(asked, sample.assignment(LONG, behind=0.3), of_gluon(LONG, 0.0))
    assert found.candidate.implementation == "triton"
    assert found.provenance.default == "space's default"


def test_what_choices_lost_counts_beside_what_the_best_ones_did() -> None:
    rows = [sample.assignment(LONG, behind=0.02, left_out_regret=0.0), of_gluon(LONG, 0.0, left_out_regret=0.05)]
    assert first_of_both(LONG, *rows).candidate.implementation == "triton"


def _with_default(config: Config, *values: int) -> Implementation[RowShape]:
    """An implementation whose default is this config, and whose space has these values alone."""
    parameters = (Parameter("ROWS", values or (1, 2, 4, 8)),)
    return replace(PLAIN, space=replace(PLAIN.space, parameters=parameters, default=lambda shape, device: config))


def test_an_invalid_default_is_not_served() -> None:
    wrong = _with_default(Config(ROWS=3))
    (found,) = alternatives_for(RowShape(rows=64, width=8), NVIDIA_H200, [], [wrong], portfolio=[])
    assert found.candidate.config == Config(ROWS=1)
    assert "the first valid config, as the space's default is invalid here: ROWS=3 is not one of (1, 2, 4, 8)" in (
        found.provenance.reason
    )


def test_what_has_no_valid_config_leaves_the_others_alone() -> None:
    none, shape = _with_default(Config(ROWS=8), 8), RowShape(rows=2, width=8)
    (found,) = alternatives_for(shape, NVIDIA_H200, [], [none, PLAIN], portfolio=[])
    assert found.candidate.config == Config(ROWS=1)
    with pytest.raises(
        InvalidShapeError, match=r"^no config is valid for rows 2, width 8, .*: of plain's default, ROWS=8 is more "
    ):
        alternatives_for(shape, NVIDIA_H200, [], [none], portfolio=[])
