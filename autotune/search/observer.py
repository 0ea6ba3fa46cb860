"""Progress: the calls that a search, and ``tune`` around it, make on an observer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.device import Device
from autotune.errors import AutotuneError
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.trial import Candidate, Outcome, Trial

if TYPE_CHECKING:
    from autotune.executor.several_gpus import GpuUse
    from autotune.search.offline import Confirmation
    from autotune.search.result import SearchResult


class Observer:
    """Receives the progress of a search, and of a call of ``tune``; does nothing unless a method is overridden.

    All calls come from the thread that searches, or called ``tune``, one at a time. Where several GPUs search side by
    side, the calls of their searches interleave, a moment after what they tell of: ``of_gpu`` keeps them apart.
    """

    def of_gpu(self, index: int) -> "Observer":
        """Return what receives the progress of the searches on one of several GPUs; this one by default."""
        return self

    def on_gpu_dropped(self, index: int, reason: str) -> None:
        """One of several GPUs is not used any more; the others continue its search."""

    def on_gpus(self, uses: "Sequence[GpuUse]") -> None:
        """All searches on several GPUs have ended; these are their parts."""

    def on_replay(self, device: Device, *, compiles: bool) -> None:
        """Times come from sweeps recorded on a device; with ``compiles`` winners are compiled and checked here."""

    def on_nearest(self, shape: Shape, recorded: Shape, *, is_tuned: bool) -> None:
        """A replay tunes the recorded shape nearest to one that was asked for, or has done so already."""

    def on_skipped(self, implementation: str, reason: str) -> None:
        """Nothing of an implementation can be tried for the shape whose search has started."""

    def on_short_budget(self, reason: str) -> None:
        """The budget of the shape whose search starts next may not hold it; the reason says what would."""

    def on_start(
        self, operation: Operation[Any], shape: Shape, *, valid: Mapping[str, int], resumed: int, best: Trial | None
    ) -> None:
        """A search starts.

        Args:
            valid: the number of valid configs of each implementation.
            resumed: how many of them are known from earlier runs.
            best: the fastest of those by screening.
        """

    def on_trial(self, trial: Trial) -> None:
        """A candidate was judged, and its trial is on disk."""

    def on_race(self, candidates: Sequence[Candidate]) -> None:
        """A race of these finalists starts."""

    def on_result(self, result: "SearchResult", *, is_asked: bool) -> None:
        """A search ended; ``is_asked`` is False where its shape stands for another one (``on_nearest``)."""

    def on_confirming(self, result: "SearchResult") -> None:
        """A replayed winner is compiled, and its numbers are checked, on this machine."""

    def on_confirmed(self, result: "SearchResult", confirmation: "Confirmation | None") -> None:
        """This was confirmed; None where the winner's implementation compiles only where it runs."""

    def on_compiled(self, result: "SearchResult", target: Device, outcomes: Sequence[Outcome]) -> None:
        """The default and the finalists were compiled for another target; none where only the device compiles."""

    def on_saved(self, result: "SearchResult", folder: Path) -> None:
        """The winner is in the tables of this folder, where ``get_kernel`` looks from now on."""

    def on_failure(self, shape: Shape, error: AutotuneError) -> None:
        """A shape has no result, or its sweep cannot ship; other shapes follow."""

    def on_interrupted(self, result: "SearchResult | None") -> None:
        """Ctrl-C ended the tuning: after the search of ``result`` or, with None, outside any search."""
