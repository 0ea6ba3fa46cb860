"""The command that tunes a shape, as its user would type it."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from autotune.registry import find_kernel, registering_module
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.varlen_shape import VarlenShape

# Fields whose option on the command line has another name.
OPTIONS: Final[Mapping[type[Shape], Mapping[str, str]]] = {
    AttentionShape: {"seq_q": "seq"},
    VarlenShape: {
        "max_seq_q": "seq",
        "mean_seq_q": "mean_seq",
        "max_seq_kv": "seq_kv",
        "mean_seq_kv": "mean_seq_kv",
    },
    PagedShape: {"seq_q": "queries", "max_context": "context"},
}
FOLLOWS: Final = {
    "seq_kv": "seq_q",
    "mean_context": "max_context",
    "kv_dtype": "dtype",
}  # left out where they are equal


def tuning_command(operation: str, shape: Shape) -> str:
    """Return the command that searches a shape; for one with a text that ``--shape`` cannot hold, the call in Python.

    Example:
        >>> tuning_command("flash_attention", AttentionShape(batch=1, heads=8, kv_heads=2, seq_q=512, head_dim=64))
        'autotune search --batch 1 --heads 8 --kv-heads 2 --seq 512 --head-dim 64 --dtype bfloat16 --no-causal'
    """
    fields = shape.as_dict()
    if type(shape) not in OPTIONS or fields["head_dim_v"] != fields["head_dim"]:
        if shape_text(shape) is None:
            return f"autotune.tune({shape!r}, operation={operation!r})"
        return f"autotune search {operation_options(operation, shape, is_exact=True)}"
    words = ["autotune", "search", *(() if operation == "flash_attention" else (naming_options(operation),))]
    for name, value in fields.items():
        if name == "head_dim_v" or (name in FOLLOWS and value == fields[FOLLOWS[name]]):
            continue
        flag = OPTIONS[type(shape)].get(name, name).replace("_", "-")
        if name == "causal":
            words += [] if value else ["--no-causal"]
        elif value is True:
            words.append(f"--{flag}")
        elif value is not None and value is not False:
            words += [f"--{flag}", str(value)]
    return " ".join(words)


def operation_options(operation: str, shape: Shape, *, is_exact: bool = False) -> str:
    """Return a command's options for an operation, with the shape where its sizes have no default, or ``is_exact``.

    Example:
        >>> operation_options("paged_decode", PagedShape(batch=1, heads=8, max_context=512, head_dim=64))
        '--operation paged_decode'
    """
    named = naming_options(operation)
    is_usual = type(shape) in OPTIONS and not is_exact
    return named if is_usual else f"{named} --shape {shlex.quote(shape_text(shape) or '...')}"


def naming_options(operation: str) -> str:
    """Return a command's options that name an operation: one of the user's by its kernel, or with what registers it.

    Example:
        >>> naming_options("paged_decode")
        '--operation paged_decode'
    """
    if (kernel := find_kernel(operation)) is not None and (reference := kernel.reference):
        return f"--kernel {shlex.quote(reference)}"
    module = registering_module(operation)
    return f"{f'--import {shlex.quote(module)} ' if module else ''}--operation {shlex.quote(operation)}"


def shape_text(shape: Shape) -> str | None:
    """Return a shape as ``--shape`` takes it, without the fields that have their default; None where it cannot be said.

    Example:
        >>> shape_text(AttentionShape(batch=1, heads=8, kv_heads=2, seq_q=512, head_dim=64, causal=True))
        'batch=1,heads=8,kv_heads=2,seq_q=512,seq_kv=512,head_dim=64,head_dim_v=64,causal=true'
    """
    given = {each.name: getattr(shape, each.name) for each in fields(shape) if each.init}
    defaults = {each.name: each.default for each in fields(shape)}
    words = {name: _value_text(value) for name, value in given.items() if value != defaults[name]}
    words = words or {name: _value_text(value) for name, value in given.items()}
    return None if None in words.values() else ",".join(f"{name}={text}" for name, text in words.items())


def _value_text(value: object) -> str | None:
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return text if re.fullmatch(r"[\w.+-]+", text) and (value is None or text != "none") and text != "..." else None
