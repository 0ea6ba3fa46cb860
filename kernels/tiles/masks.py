# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The keys that the rows of a tile see: their bounds, and a mask of scores."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Bounds(NamedTuple):
    """Some row sees a key of ``low <= key < high``, every row all of ``full_low <= key < full_high``."""

    low: Any
    full_low: Any
    full_high: Any
    high: Any


@triton.jit
def bound_keys(first, last, diagonal, length, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Return the bounds of the rows ``first`` to ``last``; out of order, or negative, where no row sees all of any.

    Row i is at the position ``i + diagonal``. ``length`` is the number of keys; None where the mask is causal and no
    row lies past the keys.
    """
    low = 0
    full_low = 0
    high = length
    full_high = length
    if CAUSAL:
        high = last + diagonal + 1 if length is None else tl.minimum(length, last + diagonal + 1)
        full_high = first + diagonal + 1 if length is None else tl.minimum(length, first + diagonal + 1)
    if WINDOW:
        low = tl.maximum(0, first + diagonal - window + 1)
        full_low = tl.maximum(0, last + diagonal - window + 1)
        if not CAUSAL:
            high = tl.minimum(length, last + diagonal + window)
            full_high = tl.minimum(length, first + diagonal + window)
    return Bounds(low, full_low, full_high, tl.maximum(high, 0))


@triton.jit
def hide_keys(scores, visible, ahead, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Set to -inf what a query may not see: keys that are not ``visible``, in its future, or outside its window.

    ``ahead`` is how far a key lies in the query's future; ``visible`` is None where nothing else hides a key.
    """
    if CAUSAL:
        is_past = ahead <= 0
        visible = is_past if visible is None else visible & is_past
    if WINDOW:
        visible = visible & (ahead > -window)
        if not CAUSAL:
            visible = visible & (ahead < window)
    return tl.where(visible, scores, float("-inf"))
