"""Results of tuning, as plain data that reads well when printed."""

from dataclasses import dataclass

from autotune.executor.several_gpus import GpuUse
from autotune.search import Confirmation, SearchResult
from autotune.shape import Shape
from autotune.trial import PriorPick, Timing, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedShape:
    """The result for one shape.

    Attributes:
        operation: the name of what is computed.
        asked: the shape that was asked for.
        shape: the shape that was searched: in a replay the recorded one that is nearest to ``asked``.
        search: the result of its search; None where there was none, or it found nothing. Shapes that one recorded
            shape answers share it.
        served: what the tables served for ``shape`` before this call; None where that was not asked.
        confirmation: what this machine confirmed of a replayed winner.
        failure: the reason why there is no winner, or why a sweep could not ship; empty otherwise.
    """

    operation: str
    asked: Shape
    shape: Shape
    search: SearchResult | None = None
    served: PriorPick | None = None
    confirmation: Confirmation | None = None
    failure: str = ""

    @property
    def winner(self) -> Trial | None:
        """The row that is stored and served: its candidate, its time, and the baseline of its race."""
        return None if self.search is None else self.search.winner

    @property
    def ties(self) -> tuple[Trial, ...]:
        """The rows of the race that measurement cannot tell from the winner's."""
        return () if self.search is None else self.search.ties

    @property
    def default_ratio(self) -> float | None:
        """The time of the winner's default over the winner's; None where either is unknown."""
        return self._ratio(None if self.winner is None else self.winner.default_timing)

    @property
    def baseline_ratio(self) -> float | None:
        """The time of the fastest baseline in the race, ``winner.baseline``, over the winner's; None likewise."""
        return self._ratio(None if self.winner is None else self.winner.baseline_timing)

    def _ratio(self, other: Timing | None) -> float | None:
        ours = None if self.winner is None else self.winner.timing
        return None if other is None or ours is None else other.median_us / ours.median_us

    def __str__(self) -> str:
        lines = [f"{self.operation}: {self.asked}"]
        if self.asked != self.shape:
            lines.append("not recorded; answered by the nearest sweep")
        if self.winner is not None and self.winner.timing is not None:
            place = self.winner.device.name
            how = f"on an {place}" if self.winner.executor != "replay" else f"replayed as recorded on an {place}"
            if self.asked != self.shape:
                how += f", of {self.shape}, not of the shape asked for"
            lines += [f"winner {self.winner.candidate}", f"time {self.winner.timing.median_us:.2f} us, {how}"]
            ratios = {
                "the default": self.default_ratio,
                "the config that people write by hand": self._ratio(self.winner.heuristic_timing),
                self.winner.baseline: self.baseline_ratio,
            }
            lines += [f"{ratio:.2f}x the speed of {name}" for name, ratio in ratios.items() if ratio is not None]
        if self.confirmation is not None:
            lines.append(f"checked {self.confirmation.checked}")
        elif self.winner is not None and self.winner.executor == "replay":
            lines.append("checked nothing here; its numbers were checked where it was timed")
        if self.failure:
            lines.append(f"failed: {self.failure}")
        return "\n  ".join(lines)


@dataclass(frozen=True, slots=True)
class Tuning:
    """The results of ``tune``, one for each shape that was asked for, in that order.

    ``interrupted``: Ctrl-C ended it early; what was measured until then is kept. ``gpus``: the part of each, where they
    were named.
    """

    results: tuple[TunedShape, ...]
    interrupted: bool = False
    gpus: tuple[GpuUse, ...] = ()

    @property
    def failures(self) -> tuple[TunedShape, ...]:
        """The results with a message in place of a winner, or of tables that ship."""
        return tuple(result for result in self.results if result.failure)

    @property
    def holds(self) -> bool:
        """False if a replayed winner did not compile, or its numbers were wrong, on this machine."""
        return all(result.confirmation is None or result.confirmation.holds for result in self.results)

    def __str__(self) -> str:
        ending = ["interrupted: what was measured is kept, the same call continues"] if self.interrupted else []
        return "\n".join([*map(str, self.results), *map(str, self.gpus), *ending]) or "nothing to tune"
