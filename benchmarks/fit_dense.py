"""Fit the networks that rank candidates of dense attention on Hopper: ``python -m benchmarks.fit_dense``.

They ship beside the spaces (``autotune.search_spaces.flash_attention.hopper_ranking``), and are the default of
``gluon_hopper`` and of ``triton`` there, and what tells which of both is the faster. Needs no GPU, and some minutes of
a core. A sixteenth of the recorded shapes at a time is left out as well: what networks that never saw them would serve,
among the candidates that were timed there, is printed, and what each implementation loses against its own best is kept
beside the networks, where portfolios find what to expect of it (``benchmarks.fitted_defaults``). Then what is lost at
shapes that one model of GPU alone recorded, where networks are fitted to the recordings of all others.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from autotune.implementation import Implementation
from autotune.registry import get_implementation
from autotune.search_spaces.flash_attention import hopper_ranking
from autotune.search_spaces.flash_attention.hopper_features import ESTIMATE, GLUON, TRITON, features
from autotune.search_spaces.flash_attention.hopper_ranking import ShapeClass, class_of_shape, is_rankable, text_of
from autotune.search_spaces.networks import Networks, name_of
from autotune.shape import AttentionShape
from autotune.table.portfolios import BROAD
from autotune.trial import Candidate
from benchmarks import network_fit
from benchmarks.fitted_defaults import HOPPER_NETWORKS
from benchmarks.merge import RESULTS
from benchmarks.network_fit import FittedShape, Matrix
from benchmarks.portfolios import tables_of
from benchmarks.recorded_regret import recorded_times
from benchmarks.recorded_shapes import RecordedShape, read_recordings

NEAR, LEAST_SHAPES = 1.03, 3  # a config is a candidate that came so near to the best of so many shapes
LEAST_OF_CLASS: Final = 4  # shapes, of a class that is ranked

Recordings = Mapping[str, Sequence[RecordedShape]]  # of each implementation, by its name


def ranked_implementations() -> list[Implementation[Any]]:
    """Return the implementations whose candidates are ranked together."""
    return [get_implementation("flash_attention", name) for name in (GLUON, TRITON)]


def read(results: Path = RESULTS) -> Recordings:
    """Read what both implementations recorded of shapes whose candidates networks may rank."""
    return {
        each.name: [
            recording
            for recording in read_recordings(each, tables_of(each, results))
            if isinstance(recording.shape, AttentionShape) and is_rankable(recording.shape, recording.device)
        ]
        for each in ranked_implementations()
    }


def join(recordings: Recordings) -> list[FittedShape]:
    """Join what both implementations recorded of shapes of classes that are recorded well enough."""
    found = []
    for (shape, device), times in recorded_times(recordings).items():
        timed = {candidate: time for candidate, time in times.items() if time < math.inf}
        assert isinstance(shape, AttentionShape)
        if len(timed) > 1:
            losses = np.log(list(timed.values()))
            given = features(shape, device, tuple(timed))
            found.append(FittedShape(shape, device, tuple(timed), given, losses - losses.min()))
    known = set(classes_of(found))
    return [each for each in found if _class_of(each) in known]


def choose_candidates(recordings: Iterable[FittedShape]) -> list[Candidate]:
    """List the configs that came near to the best of enough shapes, of all or of their implementation."""
    counts = Counter[Candidate]()
    for each in recordings:
        for name in (GLUON, TRITON):
            _, losses = _own(each, name)
            near = min(losses.values(), default=0.0) + math.log(NEAR)
            counts.update(candidate for candidate, loss in losses.items() if loss <= near)
    return sorted((candidate for candidate, count in counts.items() if count >= LEAST_SHAPES), key=text_of)


def _own(recording: FittedShape, name: str) -> tuple[list[int], dict[Candidate, float]]:
    """Return the places of an implementation's candidates, and what each loses."""
    places = [place for place, each in enumerate(recording.candidates) if each.implementation == name]
    return places, {recording.candidates[place]: float(recording.losses[place]) for place in places}


def classes_of(recordings: Iterable[FittedShape]) -> list[ShapeClass]:
    """List the classes that enough shapes are of."""
    counts = Counter(_class_of(each) for each in {each.shape: each for each in recordings}.values())
    return sorted(each for each, count in counts.items() if count >= LEAST_OF_CLASS)


def _class_of(recording: FittedShape) -> ShapeClass:
    assert isinstance(recording.shape, AttentionShape)
    return class_of_shape(recording.shape)


def save(
    networks: Networks,
    recordings: Sequence[FittedShape],
    ranked: Iterable[tuple[FittedShape, Matrix]],
    path: Path = HOPPER_NETWORKS,
) -> None:
    """Write networks, and what each implementation lost where enough of its configs were timed; no choices yet."""
    regrets = {}
    for each, ranks in ranked:
        for name in (GLUON, TRITON):
            places, losses = _own(each, name)
            if losses:
                of_name = np.array(list(losses.values()))
                lost = network_fit.lost(of_name, ranks[places]) if len(losses) > BROAD else math.nan
                regrets[name_of(name, each.shape, each.device)] = lost
    arrays = {
        **networks._asdict(),
        "candidates": np.array([text_of(each) for each in choose_candidates(recordings)]),
        "classes": np.array(classes_of(recordings), dtype=np.int64),
        "left_out": np.array(list(regrets)),
        "left_out_regret": np.array(list(regrets.values())),
        "recorded": np.array([], dtype=np.str_),
        "chosen": np.array([], dtype=np.int64),
    }
    network_fit.write_arrays(path, arrays)


def add_choices(recordings: Recordings) -> None:
    """Add to the networks that ship what they choose for recorded shapes, which is asked for when tables are read."""
    hopper_ranking.forget()
    places = {candidate: place for place, candidate in enumerate(hopper_ranking.candidates())}
    chosen = {}
    for shape, device in dict.fromkeys((each.shape, each.device) for own in recordings.values() for each in own):
        assert isinstance(shape, AttentionShape)
        for implementation in ranked_implementations():
            reject, name = implementation.space.reject, implementation.name
            config = hopper_ranking.first_valid(name, shape, device, reject)
            if config is not None and implementation.supports(shape, device) is None:
                chosen[name_of(name, shape, device)] = places[Candidate(name, config)]
    choices = {"recorded": np.array(list(chosen)), "chosen": np.array(list(chosen.values()), dtype=np.int64)}
    network_fit.add_arrays(HOPPER_NETWORKS, choices)
    hopper_ranking.forget()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fit_dense",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the tables [default: results/]")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # sums in one order, whatever a machine has
    with hopper_ranking.nothing_ranked():  # whatever the networks that ship were fitted to
        recordings = read(given.results)
    joined = join(recordings)
    networks = network_fit.fit(joined, network_fit.NETWORK_COUNT, ESTIMATE)
    ranked = list(network_fit.leave_out(joined, ESTIMATE))
    save(networks, joined, ranked)
    add_choices(recordings)
    size, count = HOPPER_NETWORKS.stat().st_size, len(hopper_ranking.candidates())
    print(f"{len(joined)} shapes, {count} candidates: {HOPPER_NETWORKS.name}, {size} bytes")
    network_fit.print_lost("left out", ranked)
    network_fit.print_lost("fitted to other devices", network_fit.leave_out_devices(joined, ESTIMATE))


if __name__ == "__main__":
    main()
