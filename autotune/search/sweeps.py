"""Shipped tables of finished sweeps."""

from pathlib import Path

from autotune.errors import SearchError
from autotune.registry import get_implementation
from autotune.search.recorder import NO_VERDICT
from autotune.search.result import SearchResult
from autotune.shape import Shape
from autotune.table import write_shipped
from autotune.trial import Candidate, Policy, Stage


def ship_sweep(result: SearchResult, results: Path) -> None:
    """Write a finished sweep below ``results``, a table for each implementation: all verdicts, and their race.

    Raises:
        SearchError: it is not complete or not decided, or another process used the GPU; nothing is written.
        TableError: a file cannot be written.
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
    for each in names:
        rows = [trial for trial in result.recorded if trial.implementation == each]
        file = f"{sweep_name(each, result.shape, winner.policy)}.parquet"
        write_shipped(folder / file, rows, results=results)


def sweep_name(implementation: str, shape: Shape, policy: Policy) -> str:
    """Name a sweep's file by the problem it is of, and by the policy of its times where it is not the usual one.

    Example:
        >>> sweep_name("triton", AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True), Policy())
        'triton_b16_h16_s1024_d128_causal_bfloat16'
    """
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
    others += [f"_{name}" for name in ("softcap", "sinks", "alibi") if fields.get(name)]
    mask = "" if is_paged else "_causal" if fields["causal"] else "_full"
    how = "" if policy == Policy() else f"_{policy.mode}_{policy.cache}"
    return f"{implementation}_{sizes}{''.join(others)}{mask}_{fields['dtype']}{how}"
