"""T4 documents have what the schema requires, in its words and in milliseconds."""

import json

import pytest

from autotune.errors import UsageError
from autotune.table import shipped_sweeps
from autotune.table.t4 import INVALIDITY, to_t4
from autotune.trial import Resources, Stage, Status
from tests.table import sample

# From results-schema.json of T4 1.0.0 (github.com/odgaard/TuningSchema).
REQUIRED = {"configuration", "times", "invalidity", "correctness"}
WORDS = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}


def test_a_result_has_the_values_of_its_trial() -> None:
    trial = sample.trial(compile_seconds=1.5, judge_seconds=0.25, resources=Resources(shared_bytes=1024), tflops=2.0)
    (result,) = to_t4([trial])["results"]
    assert result["configuration"] == {"BLOCK": 32, "num_warps": 4, "loads": "pointer"}
    assert (result["invalidity"], result["correctness"], result["objectives"]) == ("correct", 1, ["time"])
    assert result["times"]["compilation_time"] == 1500.0
    assert result["times"]["benchmark"] == 250.0
    assert result["times"]["runtimes"] == [0.1]
    measured = {entry["name"]: (entry["value"], entry["unit"]) for entry in result["measurements"]}
    assert measured["time"] == (0.1, "ms")
    assert measured["shared_memory"] == (1024, "bytes")
    assert measured["tflops"] == (2.0, "TFLOP/s")
    assert "registers" not in measured


def test_every_status_has_a_word_of_the_schema() -> None:
    assert set(INVALIDITY) == set(Status)
    assert set(INVALIDITY.values()) == WORDS


def test_a_failure_has_no_time() -> None:
    (result,) = to_t4([sample.trial(status=Status.COMPILE_ERROR, timing=None)])["results"]
    assert (result["invalidity"], result["correctness"], result["times"]["runtimes"]) == ("compile", 0, [])
    assert "time" not in {entry["name"] for entry in result["measurements"]}


def test_screening_stands_where_some_configs_were_raced() -> None:
    screened = [sample.trial(0, stage=Stage.SCREEN), sample.trial(1, stage=Stage.SCREEN, config=sample.config(64))]
    raced = sample.trial(2, timing=sample.timing(90.0))
    results = to_t4([*screened, raced])["results"]
    assert [result["times"]["runtimes"] for result in results] == [[0.1], [0.1]]


def test_several_problems_are_refused() -> None:
    with pytest.raises(UsageError, match="one shape on one device"):
        to_t4([sample.trial(), sample.trial(1, device=sample.CAPPED_H200)])
    with pytest.raises(UsageError, match="no trials"):
        to_t4([])


def test_a_shipped_sweep_is_what_the_schema_requires() -> None:
    sweep = min(shipped_sweeps("flash_attention"), key=lambda sweep: sweep.name)
    trials = sweep.trials()
    document = json.loads(json.dumps(to_t4(trials)))
    assert document["schema_version"] == "1.0.0"
    assert len(document["results"]) == sum(trial.stage is Stage.SCREEN for trial in trials)
    for result in document["results"]:
        assert result.keys() >= REQUIRED
        assert result["invalidity"] in WORDS
        assert isinstance(result["times"]["runtimes"], list)
        assert all(isinstance(value, float) for name, value in result["times"].items() if name != "runtimes")
        assert all(entry.keys() == {"name", "value", "unit"} for entry in result["measurements"])
    configurations = [json.dumps(result["configuration"]) for result in document["results"]]
    assert len(set(configurations)) == len(configurations)
