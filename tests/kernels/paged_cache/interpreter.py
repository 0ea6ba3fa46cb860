"""A child process that appends to paged caches in Triton's interpreter; see ``tests.kernels.interpreter``."""

from typing import Any

import torch

from tests.kernels.interpreter import TASKS, main
from tests.kernels.paged_cache.numerics import (
    Case,
    attention_failure,
    case_failure,
    distant_failure,
    every_half_failure,
    one_element_failure,
    prefill_failure,
)


def run_case(fields: dict[str, Any]) -> str | None:
    return case_failure(Case(**fields), "cpu")


def run_every_half(kv_dtype: str) -> str | None:
    return every_half_failure(kv_dtype, "cpu")


def run_distant() -> str | None:
    return distant_failure("cpu")


def run_attention(kv_dtype: str) -> str | None:
    return attention_failure(kv_dtype, "cpu", torch.float16)


def run_prefill() -> str | None:
    return prefill_failure("cpu", torch.float16)


def run_one_element() -> str | None:
    return one_element_failure("cpu")


TASKS.update({"case": run_case, "every half": run_every_half, "distant": run_distant})
TASKS.update({"attention": run_attention, "prefill": run_prefill, "one element": run_one_element})

if __name__ == "__main__":
    main()
