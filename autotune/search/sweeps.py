"""A finished sweep becomes a table that ships."""

from pathlib import Path
from typing import Any

from autotune.operation import Operation
from autotune.search.session import SearchResult
from autotune.shape import Shape
from autotune.table import Store, write_shipped
from autotune.trial import Policy


def ship_sweep(result: SearchResult, store: Store, results: Path) -> None:
    """Write every row of a finished sweep below ``results`` as a shipped table.

    Raises:
        TableError: a file cannot be written.
    """
    winner = result.winner
    assert winner is not None
    rows = [row for row in store.trials(winner.operation, winner.device) if row.study == winner.study]
    name = f"{sweep_name(result.operation, result.shape, winner.policy)}.parquet"
    write_shipped(Path(winner.device.slug) / "sweeps" / name, rows, results=results)


def sweep_name(operation: Operation[Any], shape: Shape, policy: Policy) -> str:
    """A file name that says which problem a sweep is of, and the policy of its times where it is not the usual one."""
    fields = shape.as_dict()
    mask = "causal" if fields["causal"] else "full"
    sizes = f"b{fields['batch']}_h{fields['heads']}_s{fields['seq_q']}_d{fields['head_dim']}"
    follows = {"kv_heads": "heads", "seq_kv": "seq_q", "head_dim_v": "head_dim"}
    others = [f"_{name}{fields[name]}" for name, source in follows.items() if fields[name] != fields[source]]
    others += [f"_window{fields['window']}"] if fields["window"] else []
    others += [f"_{name}" for name in ("softcap", "varlen") if fields[name]]
    how = "" if policy == Policy() else f"_{policy.mode}_{policy.cache}"
    return f"{operation.name}_{sizes}{''.join(others)}_{mask}_{fields['dtype']}{how}"
