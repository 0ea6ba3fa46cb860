"""Samplers by name, apart from what they import: plans and grid files name them and ask none."""

from typing import Final, Literal, get_args

from autotune.errors import UnknownNameError

Sampler = Literal["gp", "tpe", "random", "exhaustive"]
SAMPLERS: Final[tuple[Sampler, ...]] = get_args(Sampler)
DEFAULT_SAMPLER: Final[Sampler] = "gp"  # docs/search-efficiency.md


def read_sampler(name: str) -> Sampler:
    """Return the sampler of a name; UnknownNameError for a name that none has."""
    for sampler in SAMPLERS:
        if name == sampler:
            return sampler
    raise UnknownNameError(f"sampler={name!r} is unknown; allowed: {', '.join(SAMPLERS)}")
