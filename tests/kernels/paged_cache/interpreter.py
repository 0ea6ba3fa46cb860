"""A child process that appends to paged caches in Triton's interpreter; see ``tests.kernels.interpreter``."""

from typing import Any

from tests.kernels.interpreter import TASKS, main
from tests.kernels.paged_cache.numerics import Case, case_failure, distant_failure, every_half_failure


def run_case(fields: dict[str, Any]) -> str | None:
    return case_failure(Case(**fields), "cpu")


def run_every_half(kv_dtype: str) -> str | None:
    return every_half_failure(kv_dtype, "cpu")


def run_distant() -> str | None:
    return distant_failure("cpu")


TASKS.update({"case": run_case, "every half": run_every_half, "distant": run_distant})

if __name__ == "__main__":
    main()
