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
    lines = []
    for name, reason in dict.fromkeys(item for reasons in absent.values() for item in reasons.items()):
        places = [place for place, reasons in absent.items() if reasons.get(name) == reason]
        where = "" if len(places) == len(absent) else f" {', '.join(places)}"
        lines.append(f"not run: {name}{where}: {without_name(name, reason)}")
    return lines


def absence_lines_by_shape(absent: Mapping[Shape, Mapping[str, str]]) -> list[str]:
    """Return ``absence_lines`` of what did not run over these shapes."""
    return absence_lines({f"over {shape}": reasons for shape, reasons in absent.items()})


def without_name(name: str, reason: str) -> str:
    """Return a reason without the name that it begins with."""
    return reason[len(name) + 1 :] if reason.lower().startswith(f"{name.lower()} ") else reason
