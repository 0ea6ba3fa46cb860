"""Fit the networks that rank candidates of one shape: a part of ``benchmarks.fit_decode`` and ``benchmarks.fit_dense``.

A network is fitted to two ends at once: its estimates differ from the logarithms of times as little as possible, near
the best above all, up to an amount that each shape's share; and what is served, softly, loses the least. Where one of
the features is an estimate of the time, networks are fitted to what that leaves.
"""

import io
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.device import Device
from autotune.search_spaces.networks import Networks
from autotune.shape import Shape
from autotune.table.files import write_bytes
from autotune.table.portfolios import BROAD
from autotune.tuning import nearest_rank
from benchmarks.console import print_head, print_row

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
    """The features of the candidates that were timed for a shape, and the logarithms of their times over the best's."""

    shape: Shape
    device: Device
    candidates: tuple[Any, ...]
    given: NDArray[np.float64]  # [candidates, features]
    losses: NDArray[np.float64]  # [candidates]

    @property
    def is_broad(self) -> bool:
        """Return True if it times enough candidates to say what a wrong one costs."""
        return len(self.candidates) > BROAD


def fit(recordings: Sequence[FittedShape], networks: int, estimate: int | None = None) -> Networks:
    """Fit so many networks, each by a seed of its own.

    Args:
        estimate: the place of the feature that is the logarithm to base 2 of an estimated time, if there is one.
    """
    given = np.concatenate([each.given for each in recordings])
    low, high, mean, scale = (
        np.asarray(each, dtype=np.float32)
        for each in (given.min(axis=0), given.max(axis=0), given.mean(axis=0), given.std(axis=0) + 1e-6)
    )
    scaled = [((each.given - mean) / scale).astype(np.float32) for each in recordings]
    losses = [np.minimum(each.losses, MOST).astype(np.float32) for each in recordings]
    linear = np.zeros_like(scale)
    if estimate is not None:
        linear[estimate] = math.log(2) * scale[estimate]  # of scaled features
    fitted = [_layers(_fit_one(scaled, losses, linear, seed)) for seed in range(networks)]
    first, second, last = (np.stack(layers) for layers in zip(*fitted, strict=True))
    return Networks(low, high, mean, scale, first, second, last, linear)


def _fit_one(given: Sequence[Matrix], losses: Sequence[Matrix], linear: Matrix, seed: int) -> torch.nn.Sequential:
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
            features = np.concatenate([given[place] for place in some])
            estimates = network(torch.from_numpy(features))[:, 0] + torch.from_numpy(features @ linear)
            lost = _objective(estimates, [losses[place] for place in some])
            lost.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return network.eval()


def _objective(estimates: torch.Tensor, losses: Sequence[Matrix]) -> torch.Tensor:
    """Return the mean over shapes of what estimates and what is served lose.

    Args:
        estimates: of the candidates of all shapes, one shape after the other.
    """
    shapes = len(losses)
    of_shape = torch.repeat_interleave(torch.arange(shapes), torch.tensor([len(each) for each in losses]))
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
    since a shape's candidates are compared with each other alone."""
    first, second, last = (layer for layer in network if isinstance(layer, torch.nn.Linear))
    with_added = [torch.cat((layer.weight.T, layer.bias[None])).detach().numpy() for layer in (first, second)]
    return with_added[0], with_added[1], last.weight[0].detach().numpy()


def leave_out(recordings: Sequence[FittedShape], estimate: int | None = None) -> Iterator[tuple[FittedShape, Matrix]]:
    """Yield each recording, and how networks that never saw its shape rank its candidates: the least is the best."""
    shapes = sorted({repr(each.shape) for each in recordings})
    random.Random(0).shuffle(shapes)
    for fold in range(FOLDS):
        out = set(shapes[fold::FOLDS])
        networks = fit([each for each in recordings if repr(each.shape) not in out], NETWORKS_OF_FOLD, estimate)
        for each in recordings:
            if repr(each.shape) in out:
                yield each, networks.rank(each.given)


def leave_out_devices(
    recordings: Sequence[FittedShape], estimate: int | None = None
) -> Iterator[tuple[FittedShape, Matrix]]:
    """Yield each recording of a shape that one device alone recorded, and how networks rank its candidates that know
    other devices' recordings alone."""
    for name in sorted({each.device.name for each in recordings}):
        others = [each for each in recordings if each.device.name != name]
        known = {each.shape for each in others}
        alone = [each for each in recordings if each.device.name == name and each.shape not in known]
        if others and alone:
            networks = fit(others, NETWORK_COUNT, estimate)
            yield from ((each, networks.rank(each.given)) for each in alone)


def lost(losses: NDArray[np.float64], ranks: Matrix) -> float:
    """Return what the first of so many candidates loses against the best of them, 0.02 for 2 %.

    Example:
        >>> round(lost(np.log([1.0, 1.1, 1.32]), np.array([0.5, 0.1, 0.3], dtype=np.float32)), 3)
        0.1
    """
    return math.expm1(losses[np.argmin(ranks)] - losses.min())


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as they ship."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def add_arrays(path: Path, more: Mapping[str, NDArray[Any]]) -> None:
    """Replace some arrays of a file."""
    with np.load(path, allow_pickle=False) as arrays:
        others = {name: arrays[name] for name in arrays.files}
    write_arrays(path, {**others, **more})


def print_lost(what: str, ranked: Iterable[tuple[FittedShape, Matrix]]) -> None:
    """Print what is lost by device, of shapes that timed enough candidates to say."""
    regrets: dict[str, list[float]] = {}
    for recording, ranks in ranked:
        if recording.is_broad:
            regrets.setdefault(recording.device.name, []).append(lost(recording.losses, ranks))
    print_head(f"{what}, on an", "shapes", "median", "95th percentile", "worst")
    for name, each in sorted(regrets.items()):
        print_row(name, len(each), *(f"{nearest_rank(each, share):.1%}" for share in (0.5, 0.95, 1.0)))
