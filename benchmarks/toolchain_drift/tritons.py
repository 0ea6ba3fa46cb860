"""Versions of Triton in folders of their own, and rows compiled by each: a process a version, beside torch's build."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune.implementation import installed_version
from autotune.trial import Trial
from benchmarks.toolchain_drift.series_compiler import request_of

INDEX_SECONDS = 600.0


class UnavailableError(RuntimeError):
    """A version of Triton that cannot be fetched."""


def fetch(series: str, folder: Path) -> Path | None:
    """Return the folder that holds a series of Triton, ``3.9``; None where the installed one is of it.

    A folder below ``folder`` that holds it already is used again; otherwise pip fetches the newest release into one.

    Raises:
        UnavailableError: pip cannot fetch it.
    """
    if installed_version("triton").startswith(f"{series}."):
        return None
    target = folder / f"triton-{series}"
    if not any(target.glob(f"triton-{series}.*.dist-info")):
        install(f"triton=={series}.*", target)
    return target


def install(requirement: str, target: Path) -> None:
    """Let pip install one package into a folder, without what it asks for."""
    program = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", str(target)]
    try:
        subprocess.run([*program, requirement], check=True, capture_output=True, text=True, timeout=INDEX_SECONDS)
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"{requirement} cannot be fetched: {error.stderr.strip()}") from error
    except (subprocess.SubprocessError, OSError) as error:
        raise UnavailableError(f"{requirement} cannot be fetched: {error}") from error


def compile_with(packages: Path | None, trials: Sequence[Trial]) -> Iterator[tuple[str, Trial, dict[str, Any]]]:
    """Compile rows, with a folder of packages before the installed ones; yield Triton's version, the row, its answer.

    Raises:
        RuntimeError: the process ended early; what it printed stands on standard error.
    """
    first = [] if packages is None else [str(packages)]
    searched = os.pathsep.join([*first, *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.toolchain_drift.series_compiler"],
        env={**os.environ, "PYTHONPATH": searched},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            json.dump([request_of(trial) for trial in trials], process.stdin)
            process.stdin.close()
            version = ""
            answered = 0
            for line in process.stdout:
                answer = json.loads(line)
                if not version:
                    version = answer["triton"]
                    continue
                yield version, trials[answered], answer
                answered += 1
        finally:
            process.terminate()
        if answered < len(trials):
            raise RuntimeError(f"triton {version or 'of no known version'} compiled {answered} of {len(trials)} rows")
