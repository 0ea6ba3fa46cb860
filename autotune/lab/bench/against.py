"""The choice of baselines by name."""

from collections.abc import Sequence

from autotune.errors import UnknownNameError
from autotune.operation import Baseline

ALL = "all"


def choose_names(known: Sequence[Baseline], against: Sequence[str]) -> list[str]:
    """Choose baselines: the usual ones if ``against`` is empty, all for ``all``, else the named ones, in their order.

    A name may have hyphens for its spaces.

    Raises:
        UnknownNameError: the operation has no such baseline.

    Example:
        >>> choose_names(load_baselines("flash_attention"), ["sdpa-flash", "naive"])
        ['sdpa flash', 'naive']
    """
    names = [baseline.name for baseline in known]
    if not against:
        return [baseline.name for baseline in known if baseline.is_usual]
    wanted = {name.replace("-", " ").strip() for name in against}
    for name in wanted - {ALL, *names}:
        raise UnknownNameError(f"against={name!r} is unknown; allowed: {', '.join([ALL, *names])}")
    return [name for name in names if ALL in wanted or name in wanted]
