# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Masks of scores by the distance of a key from its query."""

import triton
import triton.language as tl


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
