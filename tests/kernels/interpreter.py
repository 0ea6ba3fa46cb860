"""A child process that runs kernels in Triton's interpreter; started with TRITON_INTERPRET=1, read when triton loads.

A line of standard input names a ``task`` and its ``arguments``; the line that follows holds the ``answer``, or the
traceback that was ``raised``.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from autotune.executor.messages import die_with_parent, send, take_standard_output
from tests.kernels.cases import Case
from tests.kernels.mutants import MUTANTS, judge_copy
from tests.kernels.numerics import call_failure, case_failure, distant_failure


def run_case(fields: dict[str, Any]) -> str | None:
    return case_failure(Case(**fields), "cpu")


def run_call() -> str | None:
    return call_failure("cpu")


def run_distant(axis: str, stride: int, loads: str) -> str | None:
    return distant_failure(axis, stride, loads, "cpu")


def run_gate(mutant: str | None, shape: str, folder: str) -> tuple[str, str]:
    chosen = next((item for item in MUTANTS if item.name == mutant), None)
    verdict = judge_copy(chosen, shape, Path(folder), "cpu")
    return verdict.status, verdict.message


TASKS: Final[dict[str, Callable[..., Any]]] = {
    "call": run_call,
    "case": run_case,
    "distant": run_distant,
    "gate": run_gate,
}


def main() -> None:
    """Answer until standard input ends."""
    assert os.environ["TRITON_INTERPRET"] == "1"
    die_with_parent(os.getppid())
    messages = take_standard_output()
    torch.set_num_threads(1)  # pytest's workers take the cores
    for line in sys.stdin:
        request = json.loads(line)
        try:
            send(messages, {"answer": TASKS[request["task"]](*request["arguments"])})
        except Exception:
            send(messages, {"raised": traceback.format_exc()})


if __name__ == "__main__":
    main()
