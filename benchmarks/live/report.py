"""Findings of the parts: figures and verdicts, printed and kept in one JSON file that outlives a failed part."""

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: a value that is to be at most, or at least, a limit."""

    name: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """Return True if the value is within the limit; NaN never is."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        verdict = "met" if self.is_met else "missed"
        return f"target {self.name}: {self.value:.4g}{self.unit}, {bound} {self.limit:g}{self.unit}: {verdict}"


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of one part: plain data for the file, targets, and lines for the reader."""

    figures: dict[str, Any]
    targets: tuple[Goal, ...] = ()
    lines: tuple[str, ...] = ()


class Report:
    """The JSON file: an entry for each part, written as it ends; those of earlier runs stay until they are replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def figures(self, name: str) -> dict[str, Any] | None:
        """Return the figures of a part that ended well, in this run or an earlier one."""
        part = self._parts.get(name, {})
        return None if part.get("error", "") else part.get("figures")

    def run(self, name: str, part: Callable[[], Findings]) -> bool:
        """Run a part, print and keep its findings or its failure; return True if it ended and met its targets."""
        print(f"== {name}", flush=True)
        started = time.monotonic()
        try:
            found, error = part(), ""
        except Exception as exception:  # the next part may still tell something
            found, error = Findings({}), f"{type(exception).__name__}: {exception}"
            traceback.print_exc()
        seconds = time.monotonic() - started
        targets = [{**asdict(target), "met": target.is_met} for target in found.targets]
        self._parts[name] = {"seconds": seconds, "error": error, "figures": found.figures, "targets": targets}
        self._path.write_text(json.dumps(self._parts, indent=2, default=str) + "\n")
        print(*found.lines, *found.targets, sep="\n")
        if error:
            print(f"target {name}: not measured, {error}")
        print(f"-- {name} took {seconds:.1f} s", flush=True)
        return not error and all(target.is_met for target in found.targets)
