"""Winners as one Python module without dependencies, for engines that vendor their tables."""

from collections.abc import Sequence
from pprint import pformat
from typing import Any, Final

from autotune.errors import UsageError
from autotune.registry import get_operation
from autotune.shape import AttentionShape
from autotune.table.exchange import require_one
from autotune.table.schema import shape_columns
from autotune.trial import Trial

_SOURCE: Final = '''"""Winners of ``OWNER``; `autotune export --format python` wrote this module.

It needs Python alone. ``config_for(**shape)`` returns the config of the nearest tuned shape.
"""

import math

OWNER = {owner}
FIELDS = {fields}
ABSENT = {absent}  # fields that joined later, which a call may leave out, and what they then are
FAMILY = {family}  # what two shapes must share for one to take the config of the other
ROWS = {rows}


def config_for(*, device=None, max_distance=1.0, **shape):
    """Return the config of the nearest tuned shape as a dict, or None where none is near enough.

    Every field of FIELDS is an argument, of which those of ABSENT may be left out. Fields of FAMILY must be equal, and
    so must what is no size; of sizes the distance is measured in factors of two, Euclidean over all of them, and 0 is
    the very shape. ``device`` is a GPU's name, which may be left out where all rows are of one.
    """
    given, shape = shape, {{**ABSENT, **shape}}
    if set(shape) != set(FIELDS):
        raise TypeError("config_for takes %s; got %s" % (", ".join(FIELDS), ", ".join(sorted(given)) or "nothing"))
{dropped}    devices = sorted({{row["device"] for row in ROWS}})
    if device is None and len(devices) > 1:
        raise TypeError("device is needed; expected one of " + ", ".join(devices))
    best, nearest = None, max_distance
    for row in ROWS:
        if device in (None, row["device"]):
            distance = _distance(shape, row["shape"])
            if distance < nearest or (distance == nearest and best is None):
                best, nearest = row["config"], distance
    return None if best is None else dict(best)


def _distance(shape, other):
    total = 0.0
    for name in FIELDS:
        ours, theirs = shape[name], other[name]
        if ours == theirs:
            continue
        if name in FAMILY or not _is_size(ours) or not _is_size(theirs):
            return math.inf
        total += math.log2(ours / theirs) ** 2
    return math.sqrt(total)


def _is_size(value):
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
'''

# What ``AttentionShape`` drops.
_IDLE_WINDOW: Final = """    farthest = shape["seq_kv"] if shape["causal"] else max(shape["seq_q"], shape["seq_kv"])
    if shape["window"] is not None and shape["window"] >= farthest:
        shape["window"] = None  # it hides no key
"""


def vendored_source(trials: Sequence[Trial]) -> str:
    """Return winners of one implementation as the source of a module; of a device under several caps the highest.

    Raises:
        UsageError: the trials are of several implementations or there is none, or one has no time.
    """
    operation, implementation = require_one(trials)
    shape_class = get_operation(operation).shape_class
    return _SOURCE.format(
        owner=ascii(f"{operation}/{implementation}"),  # names are of others: as text they cannot end a docstring
        fields=repr(tuple(column.name for column in shape_columns(shape_class))),
        absent=repr(dict(shape_class.ABSENT)),
        family=repr(tuple(shape_class.FAMILY)),
        dropped=_IDLE_WINDOW if issubclass(shape_class, AttentionShape) else "",
        rows=pformat([_row(trial) for trial in one_cap(trials)], width=116, sort_dicts=False),
    )


def one_cap(trials: Sequence[Trial]) -> list[Trial]:
    """Return one row for each shape and name of a device: that of the highest power cap, in the order given."""
    chosen: dict[tuple[object, ...], Trial] = {}
    for trial in trials:
        if trial.timing is None:
            raise UsageError(f"config={trial.config} has no time: only winners are exported as what kernels are given")
        key = (trial.shape, trial.device.name)
        if key not in chosen or (trial.device.power_cap_watts or 0) > (chosen[key].device.power_cap_watts or 0):
            chosen[key] = trial
    return list(chosen.values())


def plain_config(trial: Trial) -> dict[str, Any]:
    """Return the parameters of a row that apply there."""
    return {name: value for name, value in trial.config.items() if value is not None}


def _row(trial: Trial) -> dict[str, Any]:
    assert trial.timing is not None
    return {
        "device": trial.device.name,
        "shape": trial.shape.as_dict(),
        "config": plain_config(trial),
        "median_us": round(trial.timing.median_us, 3),
        "triton": trial.toolchain.triton,
    }
