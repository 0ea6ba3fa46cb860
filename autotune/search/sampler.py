"""Samplers by name, apart from what they import: plans and grid files name them and ask none."""

from typing import Final, Literal, get_args

Sampler = Literal["gp", "tpe", "random", "exhaustive"]
SAMPLERS: Final[tuple[Sampler, ...]] = get_args(Sampler)
DEFAULT_SAMPLER: Final[Sampler] = "gp"  # docs/search-efficiency.md
