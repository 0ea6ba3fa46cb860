"""Winners as JSON files of the form that vLLM and SGLang keep tuned Triton kernels in: one a device and problem.

Their fused mixture-of-experts kernels read ``E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json``: a mapping from
one size, the number of tokens, to the config of it; a size between is served its nearest neighbour. Here the file is
named by all fields of the shape but that size, then the device and the dtype.
"""

import json
from collections.abc import Sequence
from typing import Final

from autotune.errors import UsageError
from autotune.registry import get_operation
from autotune.table.exchange import require_one
from autotune.table.schema import INTEGER, shape_columns
from autotune.table.vendored import one_cap, plain_config
from autotune.trial import Trial

LAST: Final = "dtype"  # of a name, behind the device


def engine_files(trials: Sequence[Trial], key: str | None = None) -> dict[str, str]:
    """Return winners of one implementation as file names with their contents, one file for all sizes of ``key``.

    ``key`` is a size of the shape, by default the one that makes the fewest files. A field that is equal to it in most
    rows, as keys are as many as queries, follows it: it is in the names of rows alone in which it is not.

    Raises:
        UsageError: the trials are of several implementations or there is none, one has no time, or ``key`` is no size.
    """
    operation, _ = require_one(trials)
    shape_class = get_operation(operation).shape_class
    sizes = [
        column.name
        for column in shape_columns(shape_class)
        if column.domain is INTEGER and not column.nullable and column.name not in shape_class.FAMILY
    ]
    if key is not None and key not in sizes:
        raise UsageError(f"key={key!r} is no size of a {shape_class.__name__}; expected {', '.join(sizes) or 'none'}")
    rows = one_cap(trials)
    candidates = [key] if key is not None else sizes
    if not candidates:
        raise UsageError(f"a {shape_class.__name__} has no size to be a key")
    files = min((_files(rows, each, sizes) for each in candidates), key=len)
    return {name: json.dumps(found, indent=4) + "\n" for name, found in files.items()}


def _files(rows: Sequence[Trial], key: str, sizes: Sequence[str]) -> dict[str, dict[str, dict[str, object]]]:
    shapes = [row.shape.as_dict() for row in rows]
    following = {name for name in sizes if 2 * sum(shape[name] == shape[key] for shape in shapes) > len(shapes)}
    files: dict[str, dict[str, dict[str, object]]] = {}
    in_order = sorted(zip(shapes, rows, strict=True), key=lambda each: int(each[0][key] or 0))
    for shape, row in in_order:
        left_out = {key, *(name for name in following if shape[name] == shape[key])}
        found = files.setdefault(_name(shape, left_out, row.device.name), {})
        if (size := str(shape[key])) in found:
            raise UsageError(f"key={key!r}: two winners are of one file and size, such as of {row.shape}")
        found[size] = plain_config(row)
    return dict(sorted(files.items()))


def _name(shape: dict[str, int | float | str | bool | None], left_out: set[str], device: str) -> str:
    named = {name: value for name, value in shape.items() if name not in left_out and value not in (None, False)}
    dtype = named.pop(LAST, None)
    parts = [*(f"{name}={_plain(str(value))}" for name, value in named.items()), f"device_name={_plain(device)}"]
    return ",".join([*parts, *([] if dtype is None else [f"{LAST}={_plain(str(dtype))}"])]) + ".json"


def _plain(text: str) -> str:
    """Return a text as a part of a file's name: letters, digits, '.', '-' and '_'."""
    return "".join(char if char.isascii() and (char.isalnum() or char in ".-") else "_" for char in text)
