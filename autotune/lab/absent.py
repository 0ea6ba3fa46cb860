"""Lines about implementations that did not run, each with its reason."""

from collections.abc import Mapping

from autotune.shape import Shape


def absence_lines(absent: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each name and reason; ``absent`` has both for each place, such as ``at 1024``.

    Places are named only where something holds for some of them.

    Example:
        >>> absence_lines({"at 512": {"sdpa cudnn": "sdpa cudnn needs a GPU"}, "at 1024": {}})
        ['not run: sdpa cudnn at 512: needs a GPU']
    """
    found: dict[tuple[str, str], list[str]] = {}
    for place_name, reasons in absent.items():
        for name, reason in reasons.items():
            found.setdefault((name, reason), []).append(place_name)
    return [
        f"not run: {name}{'' if len(places) == len(absent) else ' ' + ', '.join(places)}: {without_name(name, reason)}"
        for (name, reason), places in found.items()
    ]


def absence_lines_by_shape(absent: Mapping[Shape, Mapping[str, str]]) -> list[str]:
    """Return ``absence_lines`` of what did not run over these shapes."""
    return absence_lines({f"over {shape}": reasons for shape, reasons in absent.items()})


def without_name(name: str, reason: str) -> str:
    """Return a reason without the name that it begins with."""
    return reason[len(name) + 1 :] if reason.lower().startswith(f"{name.lower()} ") else reason
