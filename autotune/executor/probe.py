"""The least kernel there is: where it does not compile, the machine is to blame and not a candidate."""

# Triton's language: the jit decorator and its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import time
from collections.abc import Sequence
from typing import Any, Final, cast

import torch
import triton
import triton.language as tl

from autotune.implementation import Kernel
from autotune.space import Config
from autotune.trial import Candidate

PROBE: Final = Candidate("probe", Config())


@triton.jit
def _store(out_ptr, NUMBER: tl.constexpr):
    tl.store(out_ptr, NUMBER)


class Probe:
    """The part of ``autotune.implementation.Kernel`` that a compiler uses."""

    def warmup(self, config: Config, shape: Any, *, every_output: bool = False) -> Sequence[Any]:
        """Compile a number that no cache holds, so that every tool is used."""
        out = torch.empty(1, dtype=torch.int64, device="meta")
        return (_store.warmup(out, NUMBER=time.time_ns(), grid=(1,)),)


KERNEL: Final = cast(Kernel, Probe())
