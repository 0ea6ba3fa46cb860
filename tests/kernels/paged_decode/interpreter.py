"""A child process that runs paged decode in Triton's interpreter; see ``tests.kernels.interpreter``."""

from pathlib import Path
from typing import Any

from tests.kernels.interpreter import TASKS, main
from tests.kernels.paged_decode.bounds import lengths_failure
from tests.kernels.paged_decode.cases import Case
from tests.kernels.paged_decode.mutants import MUTANTS, judge_copy
from tests.kernels.paged_decode.numerics import (
    call_failure,
    case_failure,
    distant_failure,
    order_failure,
    poison_failure,
    shared_failure,
)


def run_case(fields: dict[str, Any]) -> str | None:
    return case_failure(Case(**{**fields, "lengths": tuple(fields["lengths"])}), "cpu")


def run_call() -> str | None:
    return call_failure("cpu")


def run_distant(axis: str, stride: int) -> str | None:
    return distant_failure(axis, stride, "cpu")


def run_lengths(schedule: str, combine: str, name: str) -> str | None:
    return lengths_failure(schedule, combine, name, "cpu")


def run_order(schedule: str, combine: str) -> str | None:
    return order_failure(schedule, combine, "cpu")


def run_poison(kv_dtype: str, where: str) -> str | None:
    return poison_failure(kv_dtype, where, "cpu")


def run_shared(schedule: str, combine: str) -> str | None:
    return shared_failure(schedule, combine, "cpu")


def run_gate(mutant: str | None, schedule: str, shape: str, folder: str) -> tuple[str, str]:
    chosen = next((item for item in MUTANTS if item.name == mutant), None)
    verdict = judge_copy(chosen, schedule, shape, Path(folder), "cpu")
    return verdict.status, verdict.message


TASKS.update({"case": run_case, "call": run_call, "distant": run_distant, "order": run_order, "gate": run_gate})
TASKS.update({"poison": run_poison, "shared": run_shared, "lengths": run_lengths})

if __name__ == "__main__":
    main()
