"""``autotune search`` and ``autotune sweep``: fill the tables."""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from autotune.cli import options
from autotune.cli.output import make_console
from autotune.cli.progress import Progress
from autotune.device import NVIDIA_H200, Device, architecture
from autotune.dispatch import neighbour_configs, reload
from autotune.errors import AutotuneError, SearchError, UnknownNameError, UsageError
from autotune.executor import Executor
from autotune.executor.replay import ReplayExecutor
from autotune.hardware import has_gpu
from autotune.operation import Operation
from autotune.registry import operation_names
from autotune.report.summary import result_data, status_text, winner_lines
from autotune.search import DEFAULT_SAMPLER, Confirmation, Limits, Sampler, SearchResult, compile_all, confirm
from autotune.search import search as run_search
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, home, read_misses, shipped_sweeps, write_shipped
from autotune.trial import Status

DEFAULT_TRIALS, DEFAULT_BUDGET = 120, "60s"
NO_MISSES = "nothing to tune: no shape was noted by get_kernel(shape, on_miss='record')"

Trials = Annotated[int, typer.Option("--trials", min=1, help="Configs to measure at most, for each shape.")]
Budget = Annotated[str, typer.Option("--budget", help="Time for each shape, race included: 60, 60s, 2m.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the study.")]
Target = Annotated[str | None, typer.Option("--target", help="Also compile the finalists for sm_80, gfx942, ...")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the tables [default: $AUTOTUNE_HOME].")]
FromMisses = Annotated[bool, typer.Option("--from-misses", help="Tune the shapes that get_kernel noted as missed.")]


@dataclass(frozen=True, slots=True)
class Session:
    """What every study of one command shares."""

    executor: Executor
    store: Store
    limits: Limits
    seed: int
    console: Console
    sampler: Sampler = DEFAULT_SAMPLER


def search(
    operation: options.OperationName = "flash_attention",
    seq: options.Seq = "1024",
    seq_kv: options.SeqKv = None,
    batch: options.Batch = None,
    heads: options.Heads = None,
    kv_heads: options.KvHeads = None,
    head_dim: options.HeadDim = None,
    dtype: options.Dtype = "bfloat16",
    causal: options.Causal = None,
    window: options.Window = None,
    model: options.Model = None,
    tp: options.TensorParallel = 1,
    trials: Trials = DEFAULT_TRIALS,
    budget: Budget = DEFAULT_BUDGET,
    seed: Seed = 0,
    device: options.DeviceName = None,
    target: Target = None,
    out: Out = None,
    from_misses: FromMisses = False,
    as_json: options.Json = False,
) -> None:
    """Search the fastest correct config for each shape and save it.

    With a GPU every config is compiled, checked and timed here. Without one, a sweep that was recorded on the named
    device answers the times, the finalists are compiled for it, and the winner's numbers are checked in Triton's
    interpreter. Press Ctrl-C to stop: what was measured is kept, and the next run continues.
    """
    found, shapes = options.make_shapes(
        operation, seq=seq, seq_kv=seq_kv, batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        dtype=dtype, causal=causal, window=window, model=model, tp=tp,
    )  # fmt: skip
    problems: list[tuple[Operation[Any], Shape]] = [(found, shape) for shape in shapes]
    if from_misses:
        problems = read_misses()
        if not problems:
            print("[]" if as_json else NO_MISSES)
            return
    limits = Limits(trials, options.parse_seconds(budget))
    if target is not None:
        architecture(target)  # refuses an unknown one before anything is searched
    run(problems, limits, device=device, target=target, out=out, seed=seed, as_json=as_json)


def sweep(
    operation: options.OperationName = "flash_attention",
    seq: options.Seq = "1024",
    seq_kv: options.SeqKv = None,
    batch: options.Batch = None,
    heads: options.Heads = None,
    kv_heads: options.KvHeads = None,
    head_dim: options.HeadDim = None,
    dtype: options.Dtype = "bfloat16",
    causal: options.Causal = None,
    window: options.Window = None,
    model: options.Model = None,
    tp: options.TensorParallel = 1,
    out: Out = None,
    results: Annotated[Path | None, typer.Option("--results", help="Also write results/<device>/sweeps here.")] = None,
    as_json: options.Json = False,
) -> None:
    """Measure every valid config of each shape on this GPU: the ground truth that searches are judged by."""
    found, shapes = options.make_shapes(
        operation, seq=seq, seq_kv=seq_kv, batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        dtype=dtype, causal=causal, window=window, model=model, tp=tp,
    )  # fmt: skip
    done = run([(found, s) for s in shapes], Limits(), out=out, seed=0, as_json=as_json, sampler="exhaustive")
    if results is not None:
        for result in done:
            ship_sweep(result, Store(out or home()), results)


def run(
    problems: list[tuple[Operation[Any], Shape]],
    limits: Limits,
    *,
    device: str | None = None,
    target: str | None = None,
    out: Path | None = None,
    seed: int = 0,
    as_json: bool = False,
    sampler: Sampler = DEFAULT_SAMPLER,
) -> list[SearchResult]:
    """One study for each problem over one executor; prints each result as it comes."""
    started = time.monotonic()
    console = make_console(as_json)
    store = Store(out or home())
    require_writable(store.root)
    executor = make_executor(device, early_stop=sampler != "exhaustive")
    session = Session(executor, store, limits, seed, console, sampler)
    results: list[SearchResult] = []
    data: list[dict[str, Any]] = []
    refuted, failed = False, 0
    try:
        for operation, shape in problems:
            try:
                result = _run_one(session, operation, shape, started if not results else None)
            except SearchError as error:
                if len(problems) == 1:
                    raise
                console.print(f"failed    {error}\n")
                failed += 1
                continue
            results.append(result)
            reload()  # the next shape begins with what this one found
            confirmation = _report(session, result)
            if target is not None and result.winner is not None:
                _compile_for(session, result, target)
            refuted = refuted or (confirmation is not None and not confirmation.holds)
            data.append({**result_data(result), "confirmation": _confirmation_data(confirmation)})
            if result.interrupted:
                break
    finally:
        executor.close()
    if as_json:
        print(json.dumps(data, indent=2))
    if results and results[-1].interrupted:
        raise typer.Exit(130)
    if failed:
        raise SearchError(f"{failed} of {len(problems)} shapes have no winner: see the lines `failed`")
    if refuted:
        raise AutotuneError("a winner does not hold on this machine: see the lines `compiled` and `checked`")
    return results


def make_executor(device: str | None, *, early_stop: bool = True) -> Executor:
    """The GPU here if there is one and it is the one that was named; else the recorded sweeps of that device.

    Raises:
        UnknownNameError: the named device is neither here nor recorded.
    """
    if has_gpu():
        from autotune.executor.gpu import GpuExecutor

        executor = GpuExecutor(early_stop=early_stop)
        if device in (None, executor.device.name):
            return executor
        executor.close()
    if not early_stop:
        raise_no_gpu()
    name = device or NVIDIA_H200.name
    recorded = [t for operation in operation_names() for sweep in shipped_sweeps(operation) for t in sweep.trials()]
    devices = {trial.device for trial in recorded}
    named = [candidate for candidate in devices if candidate.name == name]
    if not named:
        known = ", ".join(sorted({candidate.name for candidate in devices})) or "none"
        raise UnknownNameError(f"device={name!r} is neither here nor recorded; recorded: {known}")
    return ReplayExecutor(max(named, key=lambda candidate: candidate.power_cap_watts or 0), recorded)


def raise_no_gpu() -> None:
    """Refuse a command that only measuring can answer."""
    from autotune.errors import MissingDependencyError

    raise MissingDependencyError("this command measures, and no GPU is visible; run `autotune doctor`")


def require_writable(root: Path) -> None:
    """Refuse a folder that cannot hold tables before anything is measured.

    Raises:
        UsageError: the folder cannot be made or written.
    """
    parent = next(path for path in (root, *root.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=parent):  # permissions do not tell of read-only file systems; leaves nothing
            pass
    except OSError as error:
        raise UsageError(f"out={str(root)!r} cannot be written: {error.strerror}; name a folder with --out") from error


def ship_sweep(result: SearchResult, store: Store, results: Path) -> None:
    """Write every row of a finished sweep below ``results`` as a shipped table."""
    winner = result.winner
    assert winner is not None
    rows = [row for row in store.trials(winner.operation, winner.device) if row.study == winner.study]
    name = f"{sweep_name(result.operation, result.shape)}.parquet"
    write_shipped(Path(winner.device.slug) / "sweeps" / name, rows, results=results)


def sweep_name(operation: Operation[Any], shape: Shape) -> str:
    """A file name that says which problem a sweep is of."""
    fields = shape.as_dict()
    mask = "causal" if fields["causal"] else "full"
    sizes = f"b{fields['batch']}_h{fields['heads']}_s{fields['seq_q']}_d{fields['head_dim']}"
    follows = {"kv_heads": "heads", "seq_kv": "seq_q", "head_dim_v": "head_dim"}
    others = [f"_{name}{fields[name]}" for name, source in follows.items() if fields[name] != fields[source]]
    others += [f"_{name}{fields[name]}" for name in ("window", "softcap", "varlen") if fields[name]]
    return f"{operation.name}_{sizes}{''.join(others)}_{mask}_{fields['dtype']}"


def _run_one(session: Session, operation: Operation[Any], shape: Shape, started: float | None) -> SearchResult:
    executor, console = session.executor, session.console
    if isinstance(executor, ReplayExecutor):
        console.print(
            f"no GPU here: times come from a sweep recorded on an {executor.device.name}; "
            "compiling and checking happen on this CPU"
        )
        recorded = executor.nearest(operation, shape)
        if recorded != shape:
            console.print(
                f"not recorded: {shape}; the nearest sweep is {shape.distance(recorded):.2f} away, tuning that"
            )
        shape = recorded
    with Progress(console, session.limits) as progress:
        return run_search(
            operation,
            shape,
            executor,
            session.store,
            limits=session.limits,
            seed=session.seed,
            neighbours=neighbour_configs(operation, shape, executor.device),
            sampler=session.sampler,
            observer=progress,
            started=started,
        )


def _report(session: Session, result: SearchResult) -> Confirmation | None:
    """Print how a study ended; without a GPU, confirm on this machine what can be."""
    console, winner = session.console, result.winner
    known = f" and {result.resumed} known" if result.resumed else ""
    console.print(
        f"{result.measured} configs tried{known} in {result.seconds:.0f} s: {status_text(result.statuses)}",
        highlight=False,
    )
    if winner is None:
        best = result.best_screened
        text = f"the best so far is {best.config}" if best else "nothing was found yet"
        console.print(f"interrupted: {text}; everything is kept, run the same command to continue")
        return None
    for line in winner_lines(winner):
        console.print(line)
    confirmation = None
    if session.executor.name == "replay":
        confirmation = _confirm(session, result)
    folder = session.store.root / winner.device.slug / winner.operation
    note = "`autotune show` lists it"
    if session.executor.name == "replay":
        note = "a replay: where a measured row ships for the shape, that one is served and shown"
    console.print(f"saved     {folder} ({note})\n")
    return confirmation


def _confirm(session: Session, result: SearchResult) -> Confirmation:
    """Compile the finalists and check the winner's numbers on this CPU, and say exactly what was done where."""
    winner, console = result.winner, session.console
    assert winner is not None
    where = f"recorded on an {winner.device.name} with triton {winner.toolchain.triton}"
    console.print(f"recorded  times were not measured here but {where}")
    console.print("compiling the finalists and checking the winner's numbers ...")
    finalists = list(dict.fromkeys([winner.config, *(trial.config for trial in result.ties)]))
    confirmation = confirm(result.operation, result.shape, winner.device, finalists, winner.config)
    for outcome in confirmation.compiled:
        console.print(f"compiled  {outcome.config}: {_compiled_text(outcome, winner.device)}")
    verdict = confirmation.verdict
    text = f"numbers {verdict.status} in Triton's interpreter, {confirmation.dtype}, on reduced lengths"
    if verdict.status is Status.OK and verdict.error is not None and verdict.error_limit is not None:
        text += f" (largest error {verdict.error:.2g}, allowed {verdict.error_limit:.2g})"
    console.print(f"checked   {text}{f': {verdict.message}' if verdict.message else ''}")
    return confirmation


def _compile_for(session: Session, result: SearchResult, target: str) -> None:
    """Say whether the finalists would compile and fit another architecture; nothing of it is stored."""
    assert result.winner is not None
    device = Device(name=target, arch=target, sm_count=1, memory_mib=1)
    space = result.operation.space
    default = space.default(result.shape, device)
    finalists = dict.fromkeys([result.winner.config, *(trial.config for trial in result.ties)])
    # Parameters that only the target has are those of its default.
    configs = [
        Config(
            {name: default[name] if config[name] is None or default[name] is None else config[name] for name in default}
        )
        for config in finalists
    ]
    for outcome in compile_all(result.operation, result.shape, device, dict.fromkeys([default, *configs])):
        why = space.why_invalid(outcome.config, result.shape, device)
        text = _compiled_text(outcome, device) + (f" (outside its space: {why})" if why else "")
        session.console.print(f"target    {outcome.config}: {text}")


def _compiled_text(outcome: Any, device: Device) -> str:
    resources = outcome.resources
    if outcome.status is not Status.OK:
        return f"{outcome.status} for {device.arch}: {outcome.message}"
    return (
        f"ok for {device.arch} here: {resources.registers} registers, {resources.spill_bytes} bytes spilled, "
        f"{resources.shared_bytes} of {device.shared_memory_bytes} bytes of shared memory"
    )


def _confirmation_data(confirmation: Confirmation | None) -> dict[str, Any] | None:
    if confirmation is None:
        return None
    return {
        "holds": confirmation.holds,
        "compiled": [
            {"config": dict(o.config), "status": o.status, "message": o.message} for o in confirmation.compiled
        ],
        "interpreter_status": confirmation.verdict.status,
        "interpreter_dtype": confirmation.dtype,
    }
