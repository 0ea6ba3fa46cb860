"""The default that is served where several implementations have portfolios: the one that was faster near the shape."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import alternatives_for, choose
from autotune.dispatch.kernel import Alternative
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION as GLUON
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter
from autotune.table import Assignment
from tests import sample
from tests.outside.row_scale.space import IMPLEMENTATION as PLAIN
from tests.outside.row_scale.space import RowShape

SHORT, LONG = sample.shape(512), sample.shape(8192)


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
    several = [sample.assignment(sample.shape(seq), behind=0.5) for seq in (2048, 4096, 8192)]
    found = choose(several, IMPLEMENTATION, sample.shape(4096), NVIDIA_H200)
    assert found is not None
    regret, count = found.expectation.recorded
    assert count == 3
    assert regret == pytest.approx(1.01 * 1.5 - 1.0)


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
        InvalidShapeError, match=r"^no config is valid for RowShape.*: of plain's default, ROWS=8 is more "
    ):
        alternatives_for(shape, NVIDIA_H200, [], [none], portfolio=[])
