"""Winners of others are kept once a check here confirms them, dropped where it refutes them, and else kept apart."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.correctness import Verdict
from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.errors import SearchError
from autotune.search import Confirmation
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.table import Store, export
from autotune.table.foreign import keep_unconfirmed, unconfirmed_trials
from autotune.table.parquet import encode
from autotune.trial import Outcome, Resources, Stage, Status, Trial
from autotune.tuning import imports
from autotune.tuning.imports import Imported, import_tables
from tests import sample
from tests.dispatch.tables import SLOWER, Tables, served_from
from tests.test_revalidation import NewerGpu


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    with served_from(Tables(tmp_path)) as found:
        yield found


@pytest.fixture(autouse=True)
def confirmations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The answers of a compiler and an interpreter, in turn; by default the CPU confirms everything."""
    answers: list[Any] = []

    def confirm(operation: Any, shape: Any, device: Any, finalists: Any, winner: Any, settings: Any) -> Any:
        compiled = (Outcome(candidate=winner, status=Status.OK, resources=Resources()),)
        return answers.pop(0) if answers else Confirmation(compiled, Verdict(Status.OK), "float16")

    monkeypatch.setattr(imports, "confirm", confirm)
    return answers


def bring(tables: Tables, *trials: Trial, **options: Any) -> Imported:
    theirs = tables.home.parent / "theirs"
    Store(theirs).append(trials or [sample.trial(chosen=SLOWER, race_id="theirs")])
    return import_tables([theirs], Store(tables.home), **options)


def served() -> tuple[object, str]:
    kernel = get_kernel(sample.shape(), device="NVIDIA H200")
    return kernel.config, kernel.provenance.origin


def test_what_the_interpreter_confirms_wins_over_what_ships(tables: Tables) -> None:
    tables.ship(sample.trial())
    found = bring(tables)
    assert (found.count("confirmed"), served()) == (1, (SLOWER, "user"))
    assert "numbers ok in Triton's interpreter" in found.checked[0].how


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_what_ships_is_neither_checked_nor_kept(form: str, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export of what is served holds what ships, too: a check of each row takes seconds."""
    theirs = sample.trial(chosen=SLOWER, race_id="theirs")
    shipped = [sample.trial(sample.shape(seq)) for seq in (2048, 4096)]
    monkeypatch.setattr(imports, "shipped_winners", lambda operation, *, implementation, on_damaged: shipped)
    path = tables.home.parent / f"served.{form}"
    path.write_bytes(encode([theirs, *shipped]) if form == "parquet" else export([theirs, *shipped], "json").encode())
    store = Store(tables.home)
    keep_unconfirmed(store, shipped[0])
    found = import_tables([path], store)
    assert unconfirmed_trials(store) == []
    assert {each.how for each in found.checked if each.trial in shipped} == {"ships with this version"}
    assert found.count("confirmed") == 3
    assert [trial.shape for trial in store.trials("flash_attention")] == [theirs.shape]


def test_what_is_refuted_is_dropped(tables: Tables, confirmations: list[Any]) -> None:
    tables.ship(sample.trial())
    candidate = sample.candidate(SLOWER)
    failed = Outcome(candidate=candidate, status=Status.OUT_OF_RESOURCES, message="too much shared memory")
    for answer in (
        Confirmation((), Verdict(Status.WRONG_RESULT, error=1.0, error_limit=0.1), "float16"),
        Confirmation((failed,), Verdict(Status.OK), "float16"),
    ):
        confirmations.append(answer)
        found = bring(tables)
        assert (found.count("refuted"), served()) == (1, (sample.FAST, "shipped"))
        assert Store(tables.home).trials("flash_attention") == unconfirmed_trials(Store(tables.home)) == []


def test_what_cannot_be_checked_is_kept_and_not_served(tables: Tables, confirmations: list[Any]) -> None:
    tables.ship(sample.trial(sample.shape(4096)))
    confirmations += [None, Confirmation((), None, unchecked="triton is not installed")]
    for _ in range(2):
        assert bring(tables).count("not confirmed") == 1
        assert [each.config for each in unconfirmed_trials(Store(tables.home))] == [SLOWER]
        assert served()[1] != "user"
    found = import_tables([tables.home / ".unconfirmed"], Store(tables.home))  # elsewhere, or later
    assert (found.count("confirmed"), served()) == (1, (SLOWER, "user"))
    assert unconfirmed_trials(Store(tables.home)) == []


def test_a_gpu_of_the_architecture_checks_the_numbers_itself(tables: Tables, confirmations: list[Any]) -> None:
    confirmations.append(AssertionError)  # never asked
    assert bring(tables, executor=NewerGpu({SLOWER: 1.0})).checked[0].how == "numbers right on NVIDIA H200"
    assert served() == (SLOWER, "user")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(Status.NAN_RESULT, "refuted"), (Status.HANG, "refuted"), (Status.WORKER_DIED, "not confirmed")],
)
def test_a_gpu_refutes_what_fails_and_keeps_apart_what_it_gave_no_verdict_on(
    tables: Tables, status: Status, verdict: str
) -> None:
    found = bring(tables, executor=NewerGpu({SLOWER: status}))
    assert [each.verdict for each in found.checked] == [verdict]
    assert Store(tables.home).trials("flash_attention") == []


def test_a_problem_that_cannot_be_opened_is_passed_over(tables: Tables) -> None:
    class SmallGpu(NewerGpu):
        def collect(self, timeout: float | None = None) -> Outcome | None:
            if self.shape == sample.shape(4096):
                raise SearchError("the inputs of flash_attention cannot be made on this GPU: out of memory")
            return super().collect(timeout)

    trials = [sample.trial(sample.shape(seq), SLOWER, race_id="theirs") for seq in (4096, 1024)]
    found = bring(tables, *trials, executor=SmallGpu({SLOWER: 1.0}))
    verdicts = {each.trial.shape: (each.verdict, each.how) for each in found.checked}
    assert verdicts[sample.shape(1024)][0] == "confirmed"
    verdict, how = verdicts[sample.shape(4096)]
    assert (verdict, how.endswith("cannot be made on this GPU: out of memory")) == ("not confirmed", True)


def test_a_gpu_of_another_architecture_leaves_it_to_the_cpu(tables: Tables) -> None:
    device = dataclasses.replace(NVIDIA_H200, name="NVIDIA A100-SXM4-80GB", arch="sm_80", sm_count=108)
    found = bring(tables, sample.trial(chosen=sample.config(loads="pointer"), device=device), executor=NewerGpu({}))
    assert [each.how.startswith("numbers ok in Triton") for each in found.checked] == [True]


def test_a_config_that_is_invalid_for_its_own_shape_is_refuted(tables: Tables) -> None:
    huge = sample.config(BLOCK_Q=256, BLOCK_K=256, num_warps=4)
    space_says = IMPLEMENTATION.space.why_invalid
    assert space_says(huge, sample.shape(), NVIDIA_H200) is not None
    (checked,) = bring(tables, sample.trial(chosen=huge)).checked
    assert checked.verdict == "refuted"
    assert "invalid for its own shape" in checked.how


def test_only_winners_are_taken(tables: Tables) -> None:
    rows = [sample.trial(chosen=SLOWER), sample.trial(number=2, timing=sample.timing(300.0))]
    bring(tables, *rows, sample.trial(number=3, stage=Stage.SCREEN, race_id=""))
    assert [trial.config for trial in Store(tables.home).trials("flash_attention")] == [SLOWER]


def test_an_export_as_json_is_imported(tables: Tables, tmp_path: Path) -> None:
    path = tmp_path / "winners.json"
    path.write_text(export([sample.trial(chosen=SLOWER)], "json"))
    assert import_tables([path], Store(tables.home)).count("confirmed") == 1
    assert served() == (SLOWER, "user")


def test_what_was_confirmed_before_is_not_checked_again(tables: Tables, confirmations: list[Any]) -> None:
    first, second = (sample.trial(sample.shape(seq), SLOWER, race_id="theirs") for seq in (1024, 4096))
    bring(tables, first)
    confirmations += [Confirmation((), Verdict(Status.OK), "float16")]  # one answer, for the other
    read: list[int] = []
    found = bring(tables, first, second, on_read=lambda foreign: read.append(len(foreign.winners)))
    how = {each.trial.shape.as_dict()["seq_q"]: each.how for each in found.checked}
    assert (read, found.count("confirmed"), confirmations) == ([2], 2, [])
    assert how[1024] == "in these tables already"
    assert how[4096] != how[1024]
