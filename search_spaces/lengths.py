"""The lengths of sequences that a shape with a longest and a mean length stands for."""

import math


def spread_lengths(batch: int, longest: int, mean: int) -> tuple[int, ...]:
    """Return the lengths of a batch, ascending, of which the last is ``longest`` and whose mean is about ``mean``.

    The others are as even parts of a distribution: uniform from 1 to twice their mean, or where ``longest`` is less
    than that ``longest * u ** p``, whose mean is ``longest / (p + 1)``. A single sequence is as long as the longest.
    Those of random inputs are these in a random order, so that the cost of a shape is theirs.
    """
    others = batch - 1
    if not others or mean >= longest:
        return (longest,) * batch
    rest = max(1.0, (mean * batch - longest) / others)  # the mean of the others
    parts = [(index + 0.5) / others for index in range(others)]
    if 2.0 * rest <= longest:
        drawn = [2.0 * rest * part for part in parts]
    else:
        drawn = [longest * part ** (longest / rest - 1.0) for part in parts]
    return (*(min(longest, max(1, math.ceil(length))) for length in drawn), longest)
