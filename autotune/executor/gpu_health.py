"""The rule by which one of several GPUs is dropped while it still answers: its times are disturbed, again and again."""

from collections.abc import Callable
from typing import Final

from autotune.trial import Conditions

IN_A_ROW: Final = 3  # measurements that are disturbed; a race is one. Less is marked in its rows, as on a single GPU
AT_THE_CAP: Final = "power"  # a GPU that works hard runs at its power cap, which is part of what a device is


class GpuHealth:
    """Counts how often in a row a GPU was shared with another process, or slowed down for another reason than its cap.

    Args:
        may_leave: asked once the GPU is to be dropped; where it returns False the GPU is the last, and stays.

    Example:
        >>> health = GpuHealth()
        >>> [health.judge(Conditions(throttle_reasons="thermal, power")) for _ in range(3)]
        ['', '', 'it was slowed down (thermal) in 3 measurements in a row']
    """

    def __init__(self, may_leave: Callable[[], bool] = lambda: True) -> None:
        self._may_leave = may_leave
        self._shared = self._slowed = 0

    def judge(self, conditions: Conditions) -> str:
        """Take note of a measurement; return the reason to drop the GPU, or nothing."""
        reason = self._note(conditions)
        return reason if reason and self._may_leave() else ""

    def _note(self, conditions: Conditions) -> str:
        reasons = [each for each in conditions.throttle_reasons.split(", ") if each and each != AT_THE_CAP]
        self._shared = self._shared + 1 if conditions.contended else 0
        self._slowed = self._slowed + 1 if reasons else 0
        if self._shared >= IN_A_ROW:
            return f"another process used it during {IN_A_ROW} measurements in a row"
        if self._slowed >= IN_A_ROW:
            return f"it was slowed down ({', '.join(reasons)}) in {IN_A_ROW} measurements in a row"
        return ""
