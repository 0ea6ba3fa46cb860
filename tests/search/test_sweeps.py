"""A sweep ships whole or not at all, under the name of its problem, and of its policy where that is not the usual."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from autotune.errors import SearchError, TableError
from autotune.search import Limits, SearchResult, search, sweeps
from autotune.search.sweeps import ship_sweep, sweep_name
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.table import Store, shipped_sweeps
from autotune.trial import Policy, Stage, Status
from autotune.varlen_shape import VarlenShape
from tests.search.synthetic import SHAPE, SMALL, SYNTHETIC_SMALL, FakeExecutor, valid

PLAIN = {"batch": 2, "heads": 8, "seq_q": 64, "head_dim": 128}


@pytest.mark.parametrize(
    ("changes", "policy", "name"),
    [
        ({}, Policy(), "b2_h8_s64_d128_full_bfloat16"),
        ({"causal": True, "dtype": "float16"}, Policy(), "b2_h8_s64_d128_causal_float16"),
        ({"kv_heads": 2, "seq_kv": 128}, Policy(), "b2_h8_s64_d128_kv_heads2_seq_kv128_full_bfloat16"),
        ({"window": 32, "softcap": True}, Policy(), "b2_h8_s64_d128_window32_softcap_full_bfloat16"),
        ({}, Policy("eager", "warm"), "b2_h8_s64_d128_full_bfloat16_eager_warm"),
    ],
)
def test_a_sweep_is_named_after_its_problem(changes: dict[str, object], policy: Policy, name: str) -> None:
    shape = AttentionShape(**{**PLAIN, **changes})  # type: ignore[arg-type]
    assert sweep_name("triton", shape, policy) == f"triton_{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Shape):
    """A user's."""

    FAMILY: ClassVar[tuple[str, ...]] = ()

    rows: int
    width: int = 8
    kind: str = "plain"


VARLEN: dict[str, Any] = {"batch": 4, "heads": 8, "max_seq_q": 1024, "head_dim": 128}
PAGED: dict[str, Any] = {"batch": 1, "heads": 8, "kv_heads": 1, "max_context": 8192, "head_dim": 128}


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (VarlenShape(**VARLEN), "b4_h8_d128_max_seq_q1024_full_bfloat16"),
        (
            VarlenShape(**VARLEN, mean_seq_q=512, causal=True),
            "b4_h8_d128_mean_seq_q512_mean_seq_kv512_max_seq_q1024_causal_bfloat16",
        ),
        (PagedShape(**PAGED), "b1_h8_c8192_d128_kv_heads1_bfloat16"),
        (PagedShape(**PAGED, mean_context=4096), "b1_h8_c8192_d128_kv_heads1_mean_context4096_bfloat16"),
        (Rows(rows=4), "rows4"),
        (Rows(rows=4, width=16, kind="a/b"), "rows4_width16_kinda-b"),
    ],
)
def test_a_sweep_of_any_operation_has_a_name(shape: Shape, name: str) -> None:
    assert sweep_name("mine", shape, Policy()) == f"mine_{name}"


def swept(store: Store, *, contended: bool = False) -> SearchResult:
    executor = FakeExecutor(contended=contended)
    return search(SYNTHETIC_SMALL, SHAPE, executor, store, limits=Limits(), sampler="exhaustive")


def test_a_sweep_ships_one_verdict_a_config_and_its_race(tmp_path: Path) -> None:
    store, results = Store(tmp_path / "home"), tmp_path / "results"
    search(
        SYNTHETIC_SMALL, SHAPE, FakeExecutor(), store, limits=Limits(trials=5)
    )  # its race is older and does not ship
    ship_sweep(swept(store), results)
    (sweep,) = shipped_sweeps(SMALL.operation, results=results)
    rows = sweep.trials()
    screened = [trial.config for trial in rows if trial.stage is Stage.SCREEN]
    assert sorted(map(str, screened)) == sorted(map(str, valid(SMALL)))
    assert len({trial.race_id for trial in rows if trial.stage is Stage.RACE}) == 1


def test_a_sweep_whose_race_was_lost_does_not_ship_an_older_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    search(SYNTHETIC_SMALL, SHAPE, FakeExecutor(), store, limits=Limits(trials=5))  # its race stands
    lost = FakeExecutor(race_failures=dict.fromkeys(valid(SMALL), Status.WORKER_DIED))
    result = search(SYNTHETIC_SMALL, SHAPE, lost, store, limits=Limits(), sampler="exhaustive")
    assert result.winner is not None
    assert result.winner in result.ties
    with pytest.raises(SearchError, match="its last race came to no result; run it again"):
        ship_sweep(result, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_sweep_does_not_replace_one_of_another_shape_or_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, results = swept(Store(tmp_path / "a")), tmp_path / "results"
    for _ in range(2):  # the same sweep again replaces itself
        ship_sweep(result, results)
    before = (results / "SHA256SUMS").read_bytes()
    other = FakeExecutor()
    other.device = replace(other.device, power_cap_watts=600)
    cooler = search(SYNTHETIC_SMALL, SHAPE, other, Store(tmp_path / "b"), limits=Limits(), sampler="exhaustive")
    with pytest.raises(TableError, match=r"bfloat16.parquet: holds .* at 700 W, which .* at 600 W does not replace"):
        ship_sweep(cooler, results)
    monkeypatch.setattr(sweeps, "sweep_name", lambda *_: sweep_name("valley", SHAPE, Policy()))
    longer = replace(SHAPE, seq_q=2 * SHAPE.seq_q)
    grown = search(
        SYNTHETIC_SMALL, longer, FakeExecutor(), Store(tmp_path / "c"), limits=Limits(), sampler="exhaustive"
    )
    with pytest.raises(TableError, match=f"holds {SHAPE} on NVIDIA H200 at 700 W, which {longer} at"):
        ship_sweep(grown, results)
    assert (results / "SHA256SUMS").read_bytes() == before


def test_a_sweep_that_is_incomplete_or_contended_does_not_ship(tmp_path: Path) -> None:
    result = swept(Store(tmp_path / "a"))
    for bad, why in (
        (replace(result, recorded=result.recorded[1:]), "1 of .* configs have no verdict"),
        (swept(Store(tmp_path / "b"), contended=True), "rows were contended"),
        (replace(result, winner=None), "has no winner yet"),
    ):
        with pytest.raises(SearchError, match=why):
            ship_sweep(bad, tmp_path / "results")
    assert not (tmp_path / "results").exists()
