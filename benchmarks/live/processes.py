"""Modules run as processes of their own, with empty caches."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
DRAIN_SECONDS: Final = 10.0
TAIL: Final = 1500


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a process; ``code`` is None where it was killed at its time limit."""

    module: str
    code: int | None
    seconds: float
    output: str
    errors: str

    def require(self) -> "Finished":
        """Return itself if it ended well; else raise RuntimeError with its last words."""
        if self.code != 0:
            raise RuntimeError(f"{self.module} ended with {self.code} after {self.seconds:.0f} s: {self.tail()}")
        return self

    def tail(self) -> str:
        return f"{self.output[-TAIL:]}\n{self.errors[-TAIL:]}".strip()

    def answer(self) -> Any:
        return json.loads(self.output.strip().splitlines()[-1])


def cold(folder: Path) -> dict[str, str]:
    """Return the environment of a process that starts with an empty store and an empty Triton cache."""
    return {"TRITON_CACHE_DIR": str(folder / "triton"), "AUTOTUNE_HOME": str(folder / "home")}


def start(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """Start ``python -m module arguments`` from the repository's root."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(module: str, *arguments: str, seconds: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Run a module to its end, or kill it after so many seconds."""
    started = time.monotonic()
    with start(module, *arguments, environment=environment) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            code, (output, errors) = None, process.communicate(timeout=DRAIN_SECONDS)
        except BaseException:
            process.kill()
            raise
    return Finished(module, code, time.monotonic() - started, output, errors)
