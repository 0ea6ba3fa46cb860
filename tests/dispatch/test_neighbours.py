"""Where a search begins: at the configs of the nearest tuned shapes."""

from dataclasses import replace

from autotune.device import NVIDIA_H200
from autotune.dispatch import neighbour_configs
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from tests import sample
from tests.dispatch.tables import CAPPED, SLOWER, THIRD, Tables


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
