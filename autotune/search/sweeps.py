"""A finished sweep becomes a table that ships."""

from pathlib import Path
from typing import Any

from autotune.errors import SearchError
from autotune.operation import Operation
from autotune.search.recorder import NO_VERDICT
from autotune.search.session import SearchResult
from autotune.shape import Shape
from autotune.table import write_shipped
from autotune.trial import Policy, Stage


def ship_sweep(result: SearchResult, results: Path) -> None:
    """Write a finished sweep below ``results`` as a shipped table: a verdict on every valid config, and their race.

    Raises:
        SearchError: it is not complete or not decided, or another process used the GPU; nothing is written.
        TableError: a file cannot be written.
    """
    winner = result.winner
    name = f"sweep of {result.shape}"
    if winner is None:
        raise SearchError(f"the {name} has no winner yet; run it again to continue")
    valid = set(result.operation.space.configs(result.shape, winner.device))
    screened = (trial for trial in result.recorded if trial.stage is Stage.SCREEN)
    missing = valid - {trial.config for trial in screened if trial.status not in NO_VERDICT}
    contended = sum(trial.outcome.conditions.contended for trial in result.recorded)
    if not result.is_decided and not contended:
        raise SearchError(f"the {name} does not ship: its last race came to no result; run it again")
    if missing or contended:
        why = f"{len(missing)} of {len(valid)} configs have no verdict, {contended} rows were contended"
        raise SearchError(f"the {name} does not ship: {why}; run it again on a quiet GPU")
    file = f"{sweep_name(result.operation, result.shape, winner.policy)}.parquet"
    write_shipped(Path(winner.device.slug) / "sweeps" / file, result.recorded, results=results)


def sweep_name(operation: Operation[Any], shape: Shape, policy: Policy) -> str:
    """A file name that says which problem a sweep is of, and the policy of its times where it is not the usual one."""
    fields = shape.as_dict()
    is_paged = "max_context" in fields
    length = f"c{fields['max_context']}" if is_paged else f"s{fields['seq_q']}"
    sizes = f"b{fields['batch']}_h{fields['heads']}_{length}_d{fields['head_dim']}"
    follows = {"kv_heads": "heads", "seq_kv": "seq_q", "mean_context": "max_context", "head_dim_v": "head_dim"}
    follows |= {"kv_dtype": "dtype"}
    others = [
        f"_{name}{fields[name]}"
        for name, source in follows.items()
        if fields.get(name) not in (None, fields.get(source))
    ]
    usual = {"seq_q": 1, "page_size": 16, "layout": "NHD"} if is_paged else {}
    others += [f"_{name}{fields[name]}" for name, value in usual.items() if fields[name] != value]
    others += [f"_window{fields['window']}"] if fields["window"] else []
    others += [f"_{name}" for name in ("softcap", "varlen", "sinks", "alibi") if fields.get(name)]
    mask = "" if is_paged else "_causal" if fields["causal"] else "_full"
    how = "" if policy == Policy() else f"_{policy.mode}_{policy.cache}"
    return f"{operation.name}_{sizes}{''.join(others)}{mask}_{fields['dtype']}{how}"
