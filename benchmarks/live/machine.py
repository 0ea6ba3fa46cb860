"""The parts ``shared_memory`` and ``contention``, which compare our answers with the machine's."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from autotune.search import compile_all
from autotune.table import Store
from autotune.trial import Candidate, Outcome, Status
from benchmarks.live import processes
from benchmarks.live.problem import ATTENTION, MAIN, from_plain, optimum, valid_configs, write_configs
from benchmarks.live.report import Findings, Goal
from benchmarks.shipped_problems import OPERATION, TRITON

PREDICTIONS: Final = {
    Status.OK: "fits",
    Status.OUT_OF_RESOURCES: "shared memory",
    Status.COMPILE_ERROR: "does not compile",
}
SMALL_SEARCH: Final = ("search", "--seq", "1024", "--trials", "20", "--budget", "20s")
WORDS: Final = ("contended", "another process")
MARKED: Final = 0.9  # of the rows: NVML samples about once a second


def run_shared_memory(work: Path) -> Findings:
    """Compare the pool's prediction for every config with the device's answer."""
    configs = valid_configs()
    compiled = compile_all(ATTENTION, MAIN, optimum().device, [Candidate(TRITON, config) for config in configs])
    listing = write_configs(work / "valid.json", configs)
    finished = processes.run("benchmarks.live.launches", str(listing), seconds=240)
    rows = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"config"')]
    answers = {from_plain(row.pop("config")): row for row in rows}  # Triton prints what ptxas refuses between them
    differences = [difference for outcome in compiled if (difference := compare(outcome, answers.get(outcome.config)))]
    predicted = Counter(PREDICTIONS.get(outcome.status, outcome.status) for outcome in compiled)
    answered = Counter(row["answer"] for row in answers.values())
    return Findings(
        {
            "configs": len(configs),
            "predicted": dict(predicted),
            "answered": dict(answered),
            "differences": differences,
            "device_limit": next((row["limit"] for row in answers.values() if "limit" in row), None),
            "our_limit": optimum().device.shared_memory_bytes,
            "exit": finished.code,
        },
        (Goal(f"shared_memory, differences in {len(configs)} configs", len(differences), 0),),
        (
            f"predicted {dict(predicted)}",
            f"answered  {dict(answered)}",
            *map(str, differences[:5]),
            *([] if finished.code == 0 else [finished.tail()]),
        ),
    )


def compare(predicted: Outcome, answer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Describe the difference of a prediction and the device's answer, if there is one; no answer is one."""
    expected = PREDICTIONS.get(predicted.status, str(predicted.status))
    answer = answer or {"answer": "no answer"}
    same_bytes = answer.get("required", predicted.resources.shared_bytes) == predicted.resources.shared_bytes
    if expected == answer["answer"] and same_bytes:
        return None
    return {
        "config": dict(predicted.config),
        "predicted": expected,
        "shared_bytes": predicted.resources.shared_bytes,
        "device": answer,
    }


def run_contention(work: Path) -> Findings:
    """Run a small search beside a busy process, then alone."""
    with loaded() as is_busy:
        beside = _search(work / "beside")
        was_busy = is_busy()
    if not was_busy:
        raise RuntimeError("the process that loads the GPU ended before the search did")
    alone = _search(work / "alone")
    return Findings(
        {"beside": beside, "alone": alone},
        (
            Goal("contention, share of rows marked under load", beside["share"], MARKED, at_least=True),
            Goal("contention, output says so (1: yes)", float(beside["says_so"]), 1.0, at_least=True),
            Goal("contention, rows marked without load", alone["marked"], 0),
            Goal("contention, output says so without load (0: no)", float(alone["says_so"]), 0.0),
        ),
        tuple(
            f"{name:6} {search['marked']} of {search['timed']} rows marked; {search['saying']}"
            for name, search in (("beside", beside), ("alone", alone))
        ),
    )


@contextmanager
def loaded() -> Iterator[Callable[[], bool]]:
    """Let another process multiply matrices; yield a function that returns True while it does."""
    process = processes.start("benchmarks.live.load")
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "busy":
            raise RuntimeError(f"the GPU cannot be loaded: {process.communicate()[1][-processes.TAIL :]}")
        yield lambda: process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=processes.DRAIN_SECONDS)


def _search(folder: Path) -> dict[str, Any]:
    """Run the command's small search from a cold start; count its rows, and find its words about contention."""
    environment = processes.cold(folder)
    finished = processes.run("autotune", *SMALL_SEARCH, seconds=150, environment=environment).require()
    rows = Store(Path(environment["AUTOTUNE_HOME"])).trials(OPERATION)
    timed = [row for row in rows if row.timing is not None]
    marked = sum(row.outcome.conditions.contended for row in timed)
    text = finished.output + finished.errors
    saying = [line for line in text.splitlines() if any(word in line for word in WORDS)]
    return {
        "seconds": finished.seconds,
        "timed": len(timed),
        "marked": marked,
        "share": marked / max(1, len(timed)),
        "says_so": bool(saying),
        "saying": saying[:2],
    }
