"""Shipped tables of finished sweeps."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Final

from autotune.errors import SearchError, TableError
from autotune.registry import get_implementation
from autotune.search.recorder import NO_VERDICT
from autotune.search.result import SearchResult
from autotune.shape import Shape
from autotune.table import Sweep, write_shipped
from autotune.trial import Candidate, Policy, Stage

FOLLOWS: Final = {
    "kv_heads": "heads",
    "seq_kv": "seq_q",
    "mean_context": "max_context",
    "mean_seq_q": "max_seq_q",
    "max_seq_kv": "max_seq_q",
    "mean_seq_kv": "max_seq_kv",
    "head_dim_v": "head_dim",
    "kv_dtype": "dtype",
}
SIZES: Final = {"batch": "b", "heads": "h", "max_context": "c", "seq_q": "s", "head_dim": "d"}  # the name begins so
UNSAFE: Final = re.compile(r"[^\w.+-]")  # what a user's shape may hold, and no file's name
ORDER: Final = ("seq_q", "page_size", "layout")  # after those that follow, as names have had it; all others come last


def ship_sweep(result: SearchResult, results: Path) -> None:
    """Write a finished sweep below ``results``, a table for each implementation: all verdicts, and their race.

    Raises:
        SearchError: it is not complete or not decided, or another process used the GPU; nothing is written.
        TableError: a file cannot be written or read, or holds a sweep of another shape or device, which stays.
    """
    winner = result.winner
    name = f"sweep of {result.shape}"
    if winner is None:
        raise SearchError(f"the {name} has no winner yet; run it again to continue")
    names = [part.implementation for part in result.implementations if not part.skipped]
    valid = {
        Candidate(each, config)
        for each in names
        for config in get_implementation(result.operation.name, each).space.configs(result.shape, winner.device)
    }
    screened = (trial for trial in result.recorded if trial.stage is Stage.SCREEN)
    missing = valid - {trial.candidate for trial in screened if trial.status not in NO_VERDICT}
    contended = sum(trial.outcome.conditions.contended for trial in result.recorded)
    if not result.is_decided and not contended:
        raise SearchError(f"the {name} does not ship: its last race came to no result; run it again")
    if missing or contended:
        why = f"{len(missing)} of {len(valid)} configs have no verdict, {contended} rows were contended"
        raise SearchError(f"the {name} does not ship: {why}; run it again on a quiet GPU")
    folder = Path(winner.device.slug) / result.operation.name / "sweeps"
    paths = {each: folder / f"{sweep_name(each, result.shape, winner.policy)}.parquet" for each in names}
    for each, path in paths.items():
        there = Sweep(result.operation.name, each, path, results).trials() if (results / path).exists() else []
        for shape, device in {(trial.shape, trial.device) for trial in there} - {(result.shape, winner.device)}:
            raise TableError(
                f"{results / path}: holds {shape} on {device.name} at {device.power_cap_watts} W, which {result.shape} "
                f"at {winner.device.power_cap_watts} W does not replace; name another folder"
            )
    for each, path in paths.items():
        write_shipped(path, [trial for trial in result.recorded if trial.implementation == each], results=results)


def sweep_name(implementation: str, shape: Shape, policy: Policy) -> str:
    """Name a sweep's file by the problem it is of, and by the policy of its times where it is not the usual one.

    Of a shape of any operation: which fields it has is its own matter.

    Example:
        >>> sweep_name("triton", AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True), Policy())
        'triton_b16_h16_s1024_d128_causal_bfloat16'
    """
    values = shape.as_dict()
    is_paged = "max_context" in values
    sizes = {name: letter for name, letter in SIZES.items() if name in values and not (is_paged and name == "seq_q")}
    named = {*sizes, "dtype", *(() if is_paged else ("causal",))}
    usual = {field.name: field.default for field in fields(shape)} | dict(shape.ABSENT)
    usual |= {name: values[source] for name, source in FOLLOWS.items() if source in values}
    others = [
        name if values[name] is True else f"{name}{values[name]}"
        for name in dict.fromkeys([*FOLLOWS, *ORDER, *values])
        if name in values and name not in named and values[name] != usual[name]
    ]
    parts = [*(f"{letter}{values[name]}" for name, letter in sizes.items()), *others]
    if "causal" in values and not is_paged:
        parts.append("causal" if values["causal"] else "full")
    if "dtype" in values:
        parts.append(str(values["dtype"]))
    if policy != Policy():
        parts += [policy.mode, policy.cache]
    return "_".join([implementation, *(UNSAFE.sub("-", str(part)) for part in parts)])
