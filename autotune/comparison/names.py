"""Which baselines are asked for."""

from collections.abc import Sequence

from autotune.errors import UnknownNameError
from autotune.operation import Baseline

ALL = "all"


def choose_names(known: Sequence[Baseline], against: Sequence[str]) -> list[str]:
    """The names of the baselines that ``against`` asks for: none, the usual ones; ``all``; or some, in their own order.

    A name may be written with hyphens for its spaces.

    Raises:
        UnknownNameError: the operation has no such baseline.

    Example:
        >>> choose_names(KERNEL.baselines(), ["sdpa-flash", "naive"])
        ['sdpa flash', 'naive']
    """
    names = [baseline.name for baseline in known]
    if not against:
        return [baseline.name for baseline in known if baseline.is_usual]
    wanted = {name.replace("-", " ").strip() for name in against}
    for name in wanted - {ALL, *names}:
        raise UnknownNameError(f"against={name!r} is unknown; allowed: {', '.join([ALL, *names])}")
    return [name for name in names if ALL in wanted or name in wanted]
