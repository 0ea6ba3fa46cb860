"""Fit the networks that rank configs of paged decode to all recordings: ``python -m benchmarks.fit_decode``.

They ship beside the space (``autotune.search_spaces.paged_decode.decode_ranking``) and are its default on Hopper. Needs
no GPU, and a quarter of an hour of a core. A sixteenth of the recorded shapes at a time is left out as well: what
networks that never saw them would serve, among the configs that were timed there, is printed and kept beside the
networks, where portfolios find what to expect of them (``benchmarks.fitted_defaults``). Then what is lost at shapes
that one model of GPU alone recorded, where networks are fitted to the recordings of all others.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.registry import get_implementation
from autotune.search_spaces.networks import Networks, name_of
from autotune.search_spaces.paged_decode import decode_ranking
from autotune.search_spaces.paged_decode.decode_features import ConfigColumns, features
from autotune.search_spaces.paged_decode.decode_ranking import IMPLEMENTATION, TILE, choice_of, tile_of
from autotune.search_spaces.paged_decode.triton import reject
from autotune.shape import PagedShape
from benchmarks import network_fit
from benchmarks.fitted_defaults import DECODE_NETWORKS
from benchmarks.merge import RESULTS
from benchmarks.network_fit import FittedShape, Matrix
from benchmarks.portfolios import tables_of
from benchmarks.recorded_shapes import read_recordings

NEAR, LEAST_SHAPES = 1.03, 8  # a tile is a candidate that came so near to the best of so many shapes
LEAST_CANDIDATES: Final = 2  # which can be compared


def read(results: Path = RESULTS) -> list[FittedShape]:
    """Read every shape that networks rank."""
    implementation = get_implementation("paged_decode", IMPLEMENTATION)
    found = []
    for each in read_recordings(implementation, tables_of(implementation, results)):
        shape, device = each.shape, each.device
        timed = tuple(config for config, ratio in each.ratios.items() if ratio < math.inf)
        if isinstance(shape, PagedShape) and decode_ranking.is_ranked(shape, device):
            losses = np.log([each.ratios[config] for config in timed])
            given = features(shape, device, ConfigColumns.of(timed))
            found.append(FittedShape(shape, device, timed, given, losses))
    return found


def choose_tiles(recordings: Iterable[FittedShape]) -> NDArray[np.int64]:
    """List the tiles that came near to the best of enough shapes."""
    counts = Counter[tuple[int, ...]]()
    for each in recordings:
        near = zip(each.candidates, each.losses, strict=True)
        counts.update({tile_of(config) for config, loss in near if loss <= math.log(NEAR)})
    return np.array(sorted(tile for tile, count in counts.items() if count >= LEAST_SHAPES), dtype=np.int64)


def save(
    networks: Networks,
    tiles: NDArray[np.int64],
    ranked: Iterable[tuple[FittedShape, Matrix]],
    path: Path = DECODE_NETWORKS,
) -> None:
    """Write networks, and what was lost at the shapes that time enough configs to say; no choices yet."""
    regrets = {
        name_of(IMPLEMENTATION, each.shape, each.device): network_fit.lost(each.losses, ranks)
        if each.is_broad
        else math.nan
        for each, ranks in ranked
    }
    arrays = {
        **networks._asdict(),
        "tiles": tiles,
        "left_out": np.array(list(regrets)),
        "left_out_regret": np.array(list(regrets.values())),
        "recorded": np.array([], dtype=np.str_),
        "chosen": np.zeros((0, len(TILE) + 2), dtype=np.int64),
    }
    network_fit.write_arrays(path, arrays)


def add_choices(recordings: Iterable[FittedShape]) -> None:
    """Add to the networks that ship what they choose for recorded shapes, which is asked for when tables are read."""
    decode_ranking.forget()
    chosen = {}
    for each in recordings:
        assert isinstance(each.shape, PagedShape)
        if (config := decode_ranking.first_valid(each.shape, each.device, reject)) is not None:
            chosen[name_of(IMPLEMENTATION, each.shape, each.device)] = choice_of(config)
    choices = {"recorded": np.array(list(chosen)), "chosen": np.array(list(chosen.values()))}
    network_fit.add_arrays(DECODE_NETWORKS, choices)
    decode_ranking.forget()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fit_decode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the tables [default: results/]")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # sums in one order, whatever a machine has
    recordings = read(given.results)
    several = [each for each in recordings if len(each.candidates) >= LEAST_CANDIDATES]
    networks, tiles = network_fit.fit(several, network_fit.NETWORK_COUNT), choose_tiles(several)
    ranked = list(network_fit.leave_out(several))
    save(networks, tiles, ranked)
    add_choices(recordings)
    size = DECODE_NETWORKS.stat().st_size
    print(f"{len(recordings)} shapes, {len(tiles)} tiles: {DECODE_NETWORKS.name}, {size} bytes")
    network_fit.print_lost("left out", ranked)
    network_fit.print_lost("fitted to other devices", network_fit.leave_out_devices(several))


if __name__ == "__main__":
    main()
