"""Small networks that rank the candidates of one shape, as they ship beside the spaces whose defaults they choose.

Each network estimates the logarithm of a candidate's time over that of the best for the same shape, up to an amount
that all candidates of a shape share. Candidates are ranked by the mean of the estimates and what they differ by: of
many the one that seems the fastest is likely one that is little known, and there the networks disagree.
``benchmarks.fit_decode`` and ``benchmarks.fit_dense`` fit them to what ships in ``results/``.
"""

import warnings
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple
from zipfile import BadZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from autotune.device import Device
from autotune.errors import one_line
from autotune.shape import Shape

RESTORE: Final = "`git checkout -- search_spaces` in the clone, or installing the package again, brings it back"
# Standard deviations of estimates. Of the configs chosen for 111 decodes that gained recordings after a fit, 5 of the
# 77 timed took over 1.2 times the best where the mean alone chose, 1 of 70 with this (NVIDIA H200, 2026-11-29).
CAUTION: Final = 2.0
AGREED: Final = 64  # the best by the mean, on whose mean all networks are made to agree
# Rows at a time: OpenBLAS, which NumPy's wheels have, computes products of up to so many multiplications on one thread.
# A server's cores are busy, and several threads wait for each other there: a look-up took 30 to 100 ms instead of 9 to
# 20 (two cores of a Xeon, 2026-11-29).
PIECE, ONE_THREAD = 64, 2**18

Numbers = NDArray[np.floating[Any]]  # of single precision, which takes a third of the time of double


class Networks(NamedTuple):
    """Networks of two hidden layers, a slice each, and the range of what they were fitted to."""

    low: Numbers  # [features]
    high: Numbers
    mean: Numbers
    scale: Numbers
    first: Numbers  # [networks, features + 1, hidden]: the last row is added
    second: Numbers  # [networks, hidden + 1, hidden]
    last: Numbers  # [networks, hidden]
    linear: Numbers  # [features]: of what all networks add, where an estimate is among the features

    def rank(self, given: Numbers) -> Numbers:
        """Return a number for each row of features of one shape's candidates, the least for what is to be preferred."""
        scaled = (np.clip(given.astype(np.float32), self.low, self.high) - self.mean) / self.scale
        pieces = [self._estimate(scaled[begin : begin + PIECE]) for begin in range(0, len(scaled), PIECE)]
        estimates = np.concatenate(pieces, axis=1)
        best = np.argsort(estimates.mean(axis=0), kind="stable")[:AGREED]
        estimates -= estimates[:, best].mean(axis=1, keepdims=True)  # what a network adds to all of a shape
        ranks: Numbers = estimates.mean(axis=0) + CAUTION * estimates.std(axis=0)
        return ranks

    def _estimate(self, scaled: Numbers) -> Numbers:
        """Return each network's estimate for each row of scaled features."""
        hidden = _swish(scaled @ self.first[:, :-1] + self.first[:, -1:])
        hidden = _swish(hidden @ self.second[:, :-1] + self.second[:, -1:])
        estimates: Numbers = (hidden @ self.last[:, :, None])[:, :, 0]
        return estimates + scaled @ self.linear


def _swish(values: Numbers) -> Numbers:
    """Return x * sigmoid(x) (Ramachandran, Zoph and Le, "Searching for Activation Functions", 2017)."""
    return values / (1.0 + np.exp(-values))


@cache
def read_arrays(package: str, name: str) -> Mapping[str, NDArray[Any]]:
    """Read the arrays of a file that ships in a package; none of one that is gone or damaged, with a warning."""
    path = files(package) / name
    try:
        with path.open("rb") as file:
            if not is_zipfile(file):
                raise BadZipFile("it is no archive of arrays")
            with np.load(file, allow_pickle=False) as arrays:
                found = {each: arrays[each] for each in arrays.files}
        _check(found)
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, BadZipFile, zlib.error) as error:
        wrong = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged: {one_line(error)}"
        warnings.warn(f"{path}: {wrong}, so that rules choose defaults; {RESTORE}", RuntimeWarning, stacklevel=2)
        return {}
    return found


def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise ValueError or KeyError where arrays are no networks."""
    networks = networks_in(arrays)
    (features,), (count, _, hidden) = networks.scale.shape, networks.first.shape
    expected = {
        **dict.fromkeys(("low", "high", "mean", "scale", "linear"), (features,)),
        "first": (count, features + 1, hidden),
        "second": (count, hidden + 1, hidden),
        "last": (count, hidden),
    }
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} has the shape {arrays[name].shape}, expected {shape}")
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} has a number that is not finite")


def networks_in(arrays: Mapping[str, NDArray[Any]]) -> Networks:
    """Return the networks among the arrays of a file."""
    return Networks(**{name: arrays[name] for name in Networks._fields})


def name_of(implementation: str, shape: Shape, device: Device) -> str:
    """Name a shape on a model of device, of which an implementation has a choice or a loss in a file."""
    return f"{implementation}: {device.model!r}: {shape!r}"
