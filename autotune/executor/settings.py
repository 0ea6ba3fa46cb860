"""The settings of what measures on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from autotune.executor.compile_pool import COMPILE_SECONDS
from autotune.trial import Policy

GpuNames = Literal["all"] | Sequence[int]  # of one host; indices as torch counts them
SCREEN_SECONDS: Final = 20.0  # numbers and time of one candidate; the problem's inputs are there already


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The use of a GPU.

    Attributes:
        policy: how times are taken.
        jobs: compilers to run at once, of all GPUs together; all cores but one for each GPU by default, and never more
            than the free memory holds.
        compile_seconds: after which a compiler is killed with what it started.
        screen_seconds: after which a worker that is silent over one candidate hangs.
        early_stop: cut a candidate short that is far behind the best so far (a sweep measures everything).
        index: of the GPU as torch counts them; the current one by default.
    """

    policy: Policy = field(default_factory=Policy)
    jobs: int | None = None
    compile_seconds: float = COMPILE_SECONDS
    screen_seconds: float = SCREEN_SECONDS
    early_stop: bool = True
    index: int | None = None
