"""Rows of every implementation's space stay rows when it and its shapes grow, and are listed when they shrink."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.implementation import Implementation
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Candidate, Trial
from tests import sample
from tests.contract.suite import data_of, each_implementation
from tests.test_growth import GROWN, NEW, as_grown, grown, rebuilt, without_value
from tests.test_growth import here as here


def row_of(implementation: Implementation[Any]) -> Trial:
    """A row of the default of the first problem that it supports."""
    shapes = data_of(implementation.operation).compiled
    shape = next(each for each in shapes if implementation.supports(each, NVIDIA_H200) is None)
    config = implementation.space.default(shape, NVIDIA_H200)
    row = sample.trial(operation=implementation.operation, candidate=Candidate(implementation.name, config))
    return replace(row, shape=shape, source_hash=implementation.source_hash)


@each_implementation
def test_a_new_parameter_and_a_new_field_leave_its_rows(
    implementation: Implementation[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = row_of(implementation)
    Store(tmp_path).append([row])
    rebuilt(monkeypatch, grown, lambda found: replace(found, shape_class=GROWN[found.shape_class]))
    (found,) = Store(tmp_path).trials(implementation.operation, implementation=implementation.name)
    assert found.config == Config({**row.config, NEW.name: 0})
    assert found.shape == as_grown(row.shape)
    assert found.timing == row.timing
    assert Store(tmp_path).outsiders(implementation.operation) == []


@each_implementation
def test_a_row_of_a_value_that_is_gone_is_listed_and_kept(
    implementation: Implementation[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = row_of(implementation)
    Store(tmp_path).append([row])
    name, value = next((name, value) for name, value in row.config.items() if value is not None)
    rebuilt(monkeypatch, without_value(name, value))
    assert Store(tmp_path).trials(implementation.operation, implementation=implementation.name) == []
    (outsider,) = Store(tmp_path).outsiders(implementation.operation)
    assert outsider.implementation == implementation.name
    assert name in outsider.reason
