"""Where a search begins: at the configs of the nearest tuned shapes."""

from dataclasses import replace

import pytest

from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import get_kernel, neighbour_configs, other_kinds_configs
from autotune.dispatch.nearest import nearest_configs
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.table import Served
from autotune.tuning.beginnings import find_neighbours
from tests import sample
from tests.dispatch.tables import CAPPED, SLOWER, THIRD, Tables

H100 = replace(NVIDIA_H200, name="NVIDIA H100 80GB HBM3", memory_mib=81559)
MI300X = Device(name="AMD Instinct MI300X", arch="gfx942", sm_count=304, memory_mib=196592)
A100 = replace(NVIDIA_H200, name="NVIDIA A100-SXM4-80GB", arch="sm_80", sm_count=108)


def test_neighbours_are_distinct_configs_of_the_model_nearest_first(tables: Tables) -> None:
    tables.ship(
        sample.trial(sample.shape(4096), THIRD),
        sample.trial(sample.shape(2048), SLOWER),
        sample.trial(sample.shape(1024), SLOWER, device=CAPPED),
        sample.trial(sample.shape(16384), sample.FAST),
        sample.trial(sample.shape(1024, causal=False), sample.config(num_stages=3)),
    )
    assert neighbour_configs(IMPLEMENTATION, sample.shape(), NVIDIA_H200) == [SLOWER, THIRD, sample.FAST]
    assert neighbour_configs(IMPLEMENTATION, sample.shape(), NVIDIA_H200, count=2) == [SLOWER, THIRD]
    other = replace(NVIDIA_H200, name="NVIDIA H100")
    assert neighbour_configs(IMPLEMENTATION, sample.shape(), other) == []


@pytest.mark.parametrize("shipped", [True, False])
def test_only_what_ships_is_left_out_of_a_replay(shipped: bool) -> None:
    rows = [
        Served(sample.trial(sample.shape(1024), SLOWER), "user"),
        Served(sample.trial(sample.shape(2048), THIRD), "site"),
        Served(sample.trial(sample.shape(4096), sample.FAST), "shipped"),
    ]
    found = nearest_configs(rows, IMPLEMENTATION, sample.shape(), NVIDIA_H200, of_model=True, shipped=shipped)
    assert found == [SLOWER, THIRD, *([sample.FAST] if shipped else [])]


def test_winners_of_other_kinds_are_proposed_first_where_there_is_none_and_never_served(tables: Tables) -> None:
    fourth = sample.config(num_stages=3)
    tables.cover(sample.assignment(chosen=fourth))
    tables.tune(
        sample.trial(sample.shape(1024), SLOWER, device=H100),
        sample.trial(sample.shape(2048), THIRD, device=H100, race_id="b"),
        sample.trial(sample.shape(1024, causal=False), sample.FAST, device=H100, race_id="c"),
    )
    shape = sample.shape()
    assert other_kinds_configs(IMPLEMENTATION, shape, NVIDIA_H200) == [SLOWER, THIRD]
    assert find_neighbours(IMPLEMENTATION, shape, NVIDIA_H200, measures=True) == [SLOWER, THIRD, fourth]
    assert get_kernel(shape).provenance.rung == "default"
    tables.tune(sample.trial(sample.shape(4096), sample.FAST, race_id="d"))
    assert find_neighbours(IMPLEMENTATION, shape, NVIDIA_H200, measures=True) == [fourth, sample.FAST, SLOWER, THIRD]


def test_a_replay_begins_with_no_shipped_winner_of_another_kind(tables: Tables) -> None:
    tables.ship(sample.trial(chosen=SLOWER))
    assert find_neighbours(IMPLEMENTATION, sample.shape(), H100, measures=False) == []
    assert find_neighbours(IMPLEMENTATION, sample.shape(), H100, measures=True) == [SLOWER]


def test_the_same_architecture_comes_first_and_what_is_invalid_here_is_left_out(tables: Tables) -> None:
    pointers = sample.config(loads="pointer")
    tables.tune(
        sample.trial(chosen=pointers, device=A100),
        sample.trial(chosen=SLOWER, device=NVIDIA_H200, race_id="b"),
    )
    assert other_kinds_configs(IMPLEMENTATION, sample.shape(), H100) == [SLOWER, pointers]
    assert other_kinds_configs(IMPLEMENTATION, sample.shape(), MI300X) == []  # whose configs say more
