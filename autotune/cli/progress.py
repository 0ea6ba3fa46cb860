"""Progress of ``autotune search`` and ``sweep``: a live line on a terminal, plain lines elsewhere."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.cli.confirmed import compiled_text, confirmation_lines, why_uncompiled
from autotune.cli.results import ending_line, interruption_line, is_of_several, result_lines, served_lines
from autotune.console.shape_options import OPERATION
from autotune.console.winners import candidate_text, status_text
from autotune.device import Device
from autotune.dispatch import MAX_DISTANCE
from autotune.errors import AutotuneError
from autotune.executor.several_gpus import GpuUse
from autotune.operation import Operation
from autotune.registry import get_implementation
from autotune.search import Confirmation, Observer, SearchResult
from autotune.shape import Shape
from autotune.trial import Candidate, Outcome, Status, Trial
from autotune.tuning_command import naming_options
from autotune.units import count_text

PLAIN_EVERY = 10  # trials between two plain lines, where nothing better was found


class Progress(Observer):
    """Prints what ``autotune.tune`` does on a console.

    Args:
        seconds: the budget of each shape, which is counted down.
        started: ``time.monotonic()`` at which the budget of the first began to run; now by default.
    """

    def __init__(self, console: Console, seconds: float | None = None, started: float | None = None) -> None:
        self._console = console
        self._seconds = seconds
        self._started = time.monotonic() if started is None else started
        self._is_replay = self._are_several = False
        self._live: Live | None = None
        self._prefix = ""  # of each line, where several GPUs search at once
        self._reset()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_live()

    def _reset(self) -> None:
        self._counts: Counter[Status] = Counter()
        self._best: Trial | None = None
        self._known = 0

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, *lines: str) -> None:
        self._console.print(*(f"{self._prefix}{line}" for line in lines), sep="\n")

    def of_gpu(self, index: int) -> "Progress":
        """Return the progress of the searches on one of several GPUs: plain lines that begin with its index."""
        progress = Progress(self._console, self._seconds, self._started)
        progress._prefix = f"[{index}] "
        return progress

    def on_gpu_dropped(self, index: int, reason: str) -> None:
        self._print(f"dropped   GPU {index}: {reason}; the others continue its search")

    def on_gpus(self, uses: Sequence[GpuUse]) -> None:
        self._print(*(f"gpu       {use}" for use in uses))

    def on_replay(self, device: Device, *, compiles: bool) -> None:
        self._is_replay, self._started = True, time.monotonic()  # nothing was begun for it before
        here = "; compiling and checking happen on this CPU" if compiles else ""
        self._print(f"no GPU here: times come from a sweep recorded on an {device.name}{here}")

    def on_nearest(self, shape: Shape, recorded: Shape, *, is_tuned: bool) -> None:
        what = "which is tuned above already" if is_tuned else "tuning that"
        distance = shape.distance(recorded)
        far = "" if distance <= MAX_DISTANCE else f" (beyond {MAX_DISTANCE:g} a winner is not served for your shape)"
        self._print(f"not recorded: {shape}; the nearest sweep is {distance:.2f} away in powers of two{far}, {what}")

    def on_skipped(self, implementation: str, reason: str) -> None:
        self._print(f"skipped   {reason}")

    def on_short_budget(self, reason: str) -> None:
        self._print(f"budget    {reason}")

    def on_start(
        self, operation: Operation[Any], shape: Shape, *, valid: Mapping[str, int], resumed: int, best: Trial | None
    ) -> None:
        self._reset()
        self._known, self._best = resumed, best
        configs = count_text(sum(valid.values()), "valid config")
        self._are_several = len(valid) > 1
        if self._are_several:
            configs += f" ({', '.join(f'{count} of {name}' for name, count in valid.items())})"
        again = f", {resumed} known from an earlier run; best {self._best_text()}" if resumed else ""
        self._print(f"{operation.name}: {shape}", f"{configs}{again}")
        if self._console.is_terminal and not self._prefix:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()

    def on_trial(self, trial: Trial) -> None:
        self._counts[trial.status] += 1
        better = self._is_better(trial)
        if better:
            self._best = trial
        if self._live is not None:
            self._live.update(Text(self._line()))
        elif better or sum(self._counts.values()) % PLAIN_EVERY == 0:
            self._print(self._line())

    def on_race(self, candidates: Sequence[Candidate]) -> None:
        defaults = "the defaults" if len({each.implementation for each in candidates}) > 1 else "the default"
        among = f", {defaults} among them," if len(candidates) > 1 else ""
        text = f"racing {count_text(len(candidates), 'finalist')}{among} against the fastest baseline"
        if self._live is not None:
            self._live.update(Text(text))
        else:
            self._print(text)

    def on_result(self, result: SearchResult, *, is_asked: bool) -> None:
        self._stop_live()
        self._started = time.monotonic()  # of the next shape's budget
        self._print(ending_line(result))
        if result.contended and not self._is_replay:  # a replay's are those of its recording
            during = f"another process was using the GPU during {count_text(result.contended, 'measurement')}"
            self._print(f"contended {during}; rows are marked and a later uncontended race replaces them")
        if result.interrupted:
            self._print(interruption_line(result))
        if result.winner is not None:
            self._print(*result_lines(result, is_asked=is_asked))

    def on_confirming(self, result: SearchResult) -> None:
        winner = _winner_of(result)
        where = f"recorded on an {winner.device.name} with triton {winner.toolchain.triton}"
        self._print(f"recorded  times were not measured here but {where}")
        if get_implementation(winner.operation, winner.implementation).compiles_ahead:
            self._print("compiling the finalists and checking the winner's numbers ...")

    def on_confirmed(self, result: SearchResult, confirmation: Confirmation | None) -> None:
        winner = _winner_of(result)
        implementation = get_implementation(winner.operation, winner.implementation)
        several = is_of_several(result)
        self._print(*confirmation_lines(confirmation, implementation, winner.device, of_several=several))

    def on_compiled(self, result: SearchResult, target: Device, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            winner = _winner_of(result)
            reason = why_uncompiled(get_implementation(winner.operation, winner.implementation))
            self._print(f"target    nothing is compiled for {target.name}: {reason}")
        for outcome in outcomes:
            space = get_implementation(result.operation.name, outcome.implementation).space
            why = space.why_invalid(outcome.config, result.shape, target)
            text = compiled_text(outcome, target) + (f" (outside its space: {why})" if why else "")
            of_several = is_of_several(result) or outcome.implementation != _winner_of(result).implementation
            self._print(f"target    {candidate_text(outcome.candidate, of_several=of_several)}: {text}")

    def on_saved(self, result: SearchResult, folder: Path) -> None:
        replayed = "a replay: where a measured row ships for the shape, that one is served and shown"
        name = result.operation.name
        of = "" if name == OPERATION else f" {naming_options(name)}"
        note = replayed if self._is_replay else f"`autotune show{of}` lists it"
        self._print(*(served_lines(result) if self._is_replay else ()), f"saved     {folder} ({note})\n")

    def on_failure(self, shape: Shape, error: AutotuneError) -> None:
        self._stop_live()
        self._started = time.monotonic()
        self._print(*_indented("failed", str(error)), "")

    def on_interrupted(self, result: SearchResult | None) -> None:
        self._stop_live()
        if result is None:
            self._print("interrupted: everything that was measured is kept, run the same command to continue")
        else:
            self._print("interrupted: the winner stands, but not all of it was compiled and checked here")

    def _is_better(self, trial: Trial) -> bool:
        if trial.status is not Status.OK or trial.timing is None:
            return False
        if self._best is None or self._best.timing is None:
            return True
        return trial.timing.median_us < self._best.timing.median_us

    def _line(self) -> str:
        trials = count_text(self._known + sum(self._counts.values()), "trial")
        known, left = f"{self._known} known, " if self._known else "", ""
        if self._seconds is not None:
            left = f", {max(0.0, self._seconds - (time.monotonic() - self._started)):.0f} s left"
        return f"{trials} ({known}{status_text(self._counts)}){left}; best {self._best_text()}"

    def _best_text(self) -> str:
        if self._best is None or self._best.timing is None:
            return "none yet"
        best = candidate_text(self._best.candidate, of_several=self._are_several)
        return f"{self._best.timing.median_us:.1f} us, {best}"


def _indented(title: str, text: str) -> list[str]:
    """Return a text of several lines, such as a compiler's, behind its title: no line of it passes for one of ours."""
    lines = text.splitlines() or [""]
    return [f"{name:10}{line}" for name, line in zip([title, *[""] * len(lines)], lines, strict=False)]


def _winner_of(result: SearchResult) -> Trial:
    assert result.winner is not None
    return result.winner
