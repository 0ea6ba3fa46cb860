"""A child process that runs paged prefill in Triton's interpreter; see ``tests.kernels.interpreter``."""

from pathlib import Path
from typing import Any

from tests.kernels.interpreter import TASKS, main
from tests.kernels.paged_prefill.bounds import HOSTILE, first_offset_failure, hostile_failure
from tests.kernels.paged_prefill.cases import Case
from tests.kernels.paged_prefill.mutants import BUGS, judge_copy
from tests.kernels.paged_prefill.numerics import (
    bounds_failure,
    call_failure,
    case_failure,
    many_failure,
    order_failure,
    shared_failure,
)


def run_case(fields: dict[str, Any]) -> str | None:
    return case_failure(Case(**fields), "cpu")


def run_call() -> str | None:
    return call_failure("cpu")


def run_many() -> str | None:
    return many_failure("cpu")


def run_bounds() -> str | None:
    return bounds_failure("cpu")


def run_first_offset() -> str | None:
    return first_offset_failure("cpu")


def run_hostile(name: str) -> str | None:
    return hostile_failure(*HOSTILE[name], "cpu")


def run_order(order: str) -> str | None:
    return order_failure(order, "cpu")


def run_shared() -> str | None:
    return shared_failure("cpu")


def run_gate(bug: str | None, shape: str, folder: str) -> tuple[str, str]:
    chosen = next((item for item in BUGS if item.name == bug), None)
    verdict = judge_copy(chosen, shape, Path(folder), "cpu")
    return verdict.status, verdict.message


TASKS.update(
    {"case": run_case, "call": run_call, "many": run_many, "bounds": run_bounds, "order": run_order, "gate": run_gate}
)
TASKS.update({"shared": run_shared, "first_offset": run_first_offset, "hostile": run_hostile})

if __name__ == "__main__":
    main()
