"""Fit the networks that rank configs of paged decode to all recordings: ``python -m benchmarks.fit_decode``.

They ship beside the space (``autotune.search_spaces.paged_decode.decode_ranking``) and are its default on Hopper. Needs
no GPU, and a quarter of an hour of a core. A sixteenth of the recorded shapes at a time is left out as well: what
networks that never saw them would serve, among the configs that were timed there, is printed and kept beside the
networks, where portfolios find what to expect of them (``benchmarks.fitted_defaults``). Then what is lost at shapes
that one model of GPU alone recorded, where networks are fitted to the recordings of all others.

A network is fitted to two ends at once: its estimates differ from the logarithms of times as little as possible, near
the best above all, up to an amount that each shape's share; and what is served, softly, loses the least.
"""

import argparse
import io
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.registry import get_implementation
from autotune.search_spaces.paged_decode import decode_ranking
from autotune.search_spaces.paged_decode.decode_features import ConfigColumns, features
from autotune.search_spaces.paged_decode.decode_ranking import TILE, Networks, choice_of, name_of, tile_of
from autotune.search_spaces.paged_decode.triton import reject
from autotune.shape import PagedShape
from autotune.space import Config
from autotune.table.files import write_bytes
from autotune.tuning import nearest_rank
from benchmarks.console import print_head, print_row
from benchmarks.fitted_defaults import DECODE_NETWORKS
from benchmarks.merge import RESULTS
from benchmarks.portfolios import tables_of
from benchmarks.recorded_shapes import RecordedShape, read_recordings

OPERATION, IMPLEMENTATION = "paged_decode", "triton"
NEAR, LEAST_SHAPES = 1.03, 8  # a tile is a candidate that came so near to the best of so many shapes
NETWORK_COUNT: Final = 10
HIDDEN: Final = 32
EPOCHS: Final = 100
SHAPES_AT_ONCE: Final = 16
LEARNING_RATE: Final = 6e-3
DROPPED: Final = 0.1  # of hidden values
MOST: Final = 1.2  # of logarithms: what is slower is bad alike
NEARNESS: Final = 2.0  # how fast the weight of a time falls as it grows
SOFTNESS: Final = 0.01  # of estimates that are as good as the least
FITTING: Final = 10.0  # the weight of times beside that of what is served
FOLDS, NETWORKS_OF_FOLD = 16, 5

Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FittedShape:
    """The features of the configs that were timed for a shape, and the logarithms of their times over the best's."""

    shape: RecordedShape
    configs: tuple[Config, ...]
    given: NDArray[np.float64]  # [configs, features]
    losses: NDArray[np.float64]  # [configs]


def read(results: Path = RESULTS) -> list[FittedShape]:
    """Read every shape that networks rank."""
    implementation = get_implementation(OPERATION, IMPLEMENTATION)
    found = []
    for each in read_recordings(implementation, tables_of(implementation, results)):
        shape, device = each.shape, each.device
        timed = tuple(config for config, ratio in each.ratios.items() if ratio < math.inf)
        if isinstance(shape, PagedShape) and decode_ranking.is_ranked(shape, device):
            losses = np.log([each.ratios[config] for config in timed])
            found.append(FittedShape(each, timed, features(shape, device, ConfigColumns.of(timed)), losses))
    return found


def choose_tiles(recordings: Iterable[FittedShape]) -> list[tuple[int, ...]]:
    """List the tiles that came near to the best of enough shapes."""
    counts = Counter[tuple[int, ...]]()
    for each in recordings:
        near = zip(each.configs, each.losses, strict=True)
        counts.update({tile_of(config) for config, loss in near if loss <= math.log(NEAR)})
    return sorted(tile for tile, count in counts.items() if count >= LEAST_SHAPES)


def fit(recordings: Sequence[FittedShape], networks: int) -> Networks:
    """Fit so many networks, each by a seed of its own."""
    given = np.concatenate([each.given for each in recordings])
    low, high, mean, scale = (
        np.asarray(each, dtype=np.float32)
        for each in (given.min(axis=0), given.max(axis=0), given.mean(axis=0), given.std(axis=0) + 1e-6)
    )
    scaled = [((each.given - mean) / scale).astype(np.float32) for each in recordings]
    losses = [np.minimum(each.losses, MOST).astype(np.float32) for each in recordings]
    fitted = [_layers(_fit_one(scaled, losses, seed)) for seed in range(networks)]
    first, second, last = (np.stack(layers) for layers in zip(*fitted, strict=True))
    tiles = np.array(choose_tiles(recordings), dtype=np.int64)
    return Networks(low, high, mean, scale, first, second, last, tiles)


def _fit_one(given: Sequence[Matrix], losses: Sequence[Matrix], seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    shuffled = random.Random(seed)
    network = torch.nn.Sequential(
        *(torch.nn.Linear(given[0].shape[1], HIDDEN), torch.nn.SiLU(), torch.nn.Dropout(DROPPED)),
        *(torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.SiLU(), torch.nn.Dropout(DROPPED)),
        torch.nn.Linear(HIDDEN, 1),
    )
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    steps = EPOCHS * math.ceil(len(given) / SHAPES_AT_ONCE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for _ in range(EPOCHS):
        order = list(range(len(given)))
        shuffled.shuffle(order)
        for begin in range(0, len(order), SHAPES_AT_ONCE):
            some = order[begin : begin + SHAPES_AT_ONCE]
            optimizer.zero_grad()
            lost = _objective(network, [given[place] for place in some], [losses[place] for place in some])
            lost.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return network.eval()


def _objective(network: torch.nn.Module, given: Sequence[Matrix], losses: Sequence[Matrix]) -> torch.Tensor:
    """Return the mean over shapes of what estimates and what is served lose."""
    shapes = len(given)
    of_shape = torch.repeat_interleave(torch.arange(shapes), torch.tensor([len(each) for each in losses]))
    estimates = network(torch.from_numpy(np.concatenate(given)))[:, 0]
    wanted = torch.from_numpy(np.concatenate(losses))

    def sum_by_shape(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(shapes).index_add(0, of_shape, values)

    weights = torch.exp(-NEARNESS * wanted)
    weights = weights / sum_by_shape(weights)[of_shape]
    errors = estimates - wanted
    errors = errors - sum_by_shape(weights * errors)[of_shape]
    least = torch.full((shapes,), math.inf).scatter_reduce(0, of_shape, estimates.detach(), "amin")
    served = torch.exp((least[of_shape] - estimates) / SOFTNESS)
    served = served / sum_by_shape(served)[of_shape]
    lost: torch.Tensor = ((FITTING * weights * errors**2).sum() + (served * wanted).sum()) / shapes
    return lost


def _layers(network: torch.nn.Sequential) -> tuple[Matrix, Matrix, Matrix]:
    """Return the weights of the three layers, each with what is added as its last row; nothing is in the last layer,
    since a shape's configs are compared with each other alone."""
    first, second, last = (layer for layer in network if isinstance(layer, torch.nn.Linear))
    with_added = [torch.cat((layer.weight.T, layer.bias[None])).detach().numpy() for layer in (first, second)]
    return with_added[0], with_added[1], last.weight[0].detach().numpy()


def leave_out(recordings: Sequence[FittedShape]) -> Iterator[tuple[FittedShape, float]]:
    """Yield each recording, and what is lost where networks that never saw its shape choose among its timed configs."""
    shapes = sorted({repr(each.shape.shape) for each in recordings})
    random.Random(0).shuffle(shapes)
    for fold in range(FOLDS):
        out = set(shapes[fold::FOLDS])
        networks = fit([each for each in recordings if repr(each.shape.shape) not in out], NETWORKS_OF_FOLD)
        for each in recordings:
            if repr(each.shape.shape) in out:
                yield each, _lost(networks, each)


def leave_out_devices(recordings: Sequence[FittedShape]) -> Iterator[tuple[FittedShape, float]]:
    """Yield each recording of a shape that one device alone recorded, and what is lost there where networks choose that
    know other devices' recordings alone."""
    for name in sorted({each.shape.device.name for each in recordings}):
        others = [each for each in recordings if each.shape.device.name != name]
        known = {each.shape.shape for each in others}
        alone = [each for each in recordings if each.shape.device.name == name and each.shape.shape not in known]
        if others and alone:
            networks = fit(others, NETWORK_COUNT)
            yield from ((each, _lost(networks, each)) for each in alone)


def _lost(networks: Networks, recording: FittedShape) -> float:
    return math.expm1(recording.losses[np.argmin(networks.rank(recording.given))])


def save(networks: Networks, lost: Iterable[tuple[FittedShape, float]], path: Path = DECODE_NETWORKS) -> None:
    """Write networks, and what was lost at the shapes that time enough configs to say; no choices yet."""
    regrets = {
        name_of(each.shape.shape, each.shape.device): regret if each.shape.is_broad else math.nan
        for each, regret in lost
    }
    _write(
        path,
        **networks._asdict(),
        left_out=np.array(list(regrets)),
        left_out_regret=np.array(list(regrets.values())),
        recorded=np.array([], dtype=np.str_),
        chosen=np.zeros((0, len(TILE) + 2), dtype=np.int64),
    )


def add_choices(recordings: Iterable[FittedShape]) -> None:
    """Add to the networks that ship what they choose for recorded shapes, which is asked for when tables are read."""
    decode_ranking.forget()
    chosen = {}
    for each in recordings:
        shape, device = each.shape.shape, each.shape.device
        assert isinstance(shape, PagedShape)
        if (config := decode_ranking.first_valid(shape, device, reject)) is not None:
            chosen[name_of(shape, device)] = choice_of(config)
    with np.load(DECODE_NETWORKS, allow_pickle=False) as arrays:
        others = {name: arrays[name] for name in arrays.files}
    others |= {"recorded": np.array(list(chosen)), "chosen": np.array(list(chosen.values()))}
    _write(DECODE_NETWORKS, **others)
    decode_ranking.forget()


def _write(path: Path, **arrays: NDArray[Any]) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def print_lost(what: str, lost: Iterable[tuple[FittedShape, float]]) -> None:
    """Print what is lost by device, of shapes that timed enough configs to say."""
    regrets: dict[str, list[float]] = {}
    for recording, regret in lost:
        if recording.shape.is_broad:
            regrets.setdefault(recording.shape.device.name, []).append(regret)
    print_head(f"{what}, on an", "shapes", "median", "95th percentile", "worst")
    for name, each in sorted(regrets.items()):
        print_row(name, len(each), *(f"{nearest_rank(each, share):.1%}" for share in (0.5, 0.95, 1.0)))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fit_decode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the tables [default: results/]")
    given = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order, whatever a machine has
    recordings = read(given.results)
    several = [each for each in recordings if len(each.configs) > 1]  # which can be compared
    networks, lost = fit(several, NETWORK_COUNT), list(leave_out(several))
    save(networks, lost)
    add_choices(recordings)
    size = DECODE_NETWORKS.stat().st_size
    print(f"{len(recordings)} shapes, {len(networks.tiles)} tiles: {DECODE_NETWORKS.name}, {size} bytes")
    print_lost("left out", lost)
    print_lost("fitted to other devices", leave_out_devices(several))


if __name__ == "__main__":
    main()
