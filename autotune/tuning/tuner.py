"""``tune``: checks what a caller asks for, opens what answers trials, and has each shape searched."""

import contextlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from autotune import platforms
from autotune.device import Device
from autotune.errors import UsageError
from autotune.executor import Executor
from autotune.executor.gpu_children import GpuChildren
from autotune.executor.head_start import HeadStart
from autotune.executor.select import Settings, open_executor, open_gpu, open_replay
from autotune.executor.settings import GpuNames
from autotune.executor.several_gpus import SeveralGpus
from autotune.search import DEFAULT_SAMPLER, Limits, Observer, Sampler, read_sampler
from autotune.shape import Shape
from autotune.table import Store, home
from autotune.tuning.refusals import (
    check_flags,
    check_kinds,
    check_numbers,
    check_places,
    read_names,
    why_unwritable,
)
from autotune.tuning.shape_searches import ShapeSearches
from autotune.tuning.tuned import Tuning
from autotune.workload import Workload, read_workloads


def tune(
    shapes: Shape | Iterable[Shape | Workload | tuple[str, Shape]],
    *,
    operation: str | None = None,
    implementations: str | Sequence[str] = (),
    budget: float | None = 60.0,
    trials: int | None = 120,
    sampler: Sampler = DEFAULT_SAMPLER,
    seed: int = 0,
    device: str | None = None,
    gpus: GpuNames | None = None,
    settings: Settings | None = None,
    store: Store | None = None,
    observer: Observer | None = None,
    must_measure: bool = False,
    must_replay: bool = False,
    race_served: bool = False,
    target: str | None = None,
    ship_to: Path | None = None,
    begun: HeadStart | None = None,
) -> Tuning:
    """Search the fastest correct candidate for each shape, keep every trial, and store the winners.

    With a GPU every candidate is compiled, checked and timed on it. Without one a sweep that was recorded on ``device``
    answers the times, at the recorded shape nearest to each; the finalists are compiled for that device, and the
    winner's numbers are checked in Triton's interpreter. From then on ``get_kernel`` serves the winners. A second call
    continues where the first one stopped.

    Ctrl-C does not raise: the results until then are returned, and ``interrupted`` is set.

    With ``gpus`` shapes are searched side by side, one on each GPU; where fewer shapes than GPUs are left, the others
    help to screen them, and each race stays on one GPU. A GPU is dropped that fails, that another process uses in three
    measurements in a row, or that heat or a fault slows down in as many; the others continue its search.

    Args:
        shapes: one shape, or several; an operation may stand beside each: ``(operation, shape)``.
        operation: the operation's name, where several take such shapes; the first that supports a shape by default.
        implementations: names of those to tune; all of ours that support the shape by default.
        budget: seconds for each shape, the race included; None: no limit. Where there is no GPU, compiling the
            finalists and checking the winner come on top.
        trials: candidates of each shape, of all implementations, that are measured at most; None: no limit. A search
            that has converged ends earlier, an exhaustive one does not.
        sampler: ``gp``, ``tpe``, ``random`` or ``exhaustive``.
        seed: seed of each study, from 0 to 2**32 - 1.
        device: the name of the GPU; the one here by default, else the NVIDIA H200 that sweeps ship for.
        gpus: the GPUs here to search on, ``"all"`` or indices as torch counts them; the current one by default. They
            are of one kind, by model and power cap; ``device`` leaves out those of another name.
        settings: how a GPU is used.
        store: where trials are kept; ``$AUTOTUNE_HOME`` by default.
        observer: receives progress.
        must_measure: refuse to replay; ``device`` can then name the GPU here alone.
        must_replay: let recorded sweeps answer even where a GPU is; not with ``gpus`` or ``must_measure``.
        race_served: try and race in a replay, too, what the tables serve for each shape; on a GPU that always is. A
            replay then answers for recorded shapes alone: no other one stands for what was asked.
        target: also compile the finalists for this architecture or device, such as ``"gfx942"`` or ``"A100"``; nothing
            of it is stored.
        ship_to: also write each complete sweep as tables that ship, below this folder.
        begun: when the first budget began to run on a GPU, and processes of it that were started then with the same
            ``settings`` (``autotune.executor.head_start``); with the call, as in a replay, and none, by default.

    Raises:
        SearchError: the only shape has no valid and correct candidate, or its budget cannot hold a race. Of several,
            its result says so.
        MissingDependencyError: there is neither a GPU nor a recording, or nothing is recorded like the only shape; of
            several GPUs none is left.
        UsageError: an argument is wrong, or a shape, of several one of them, is not supported or cannot be measured;
            nothing was searched.
        TableError: a stored table is damaged, or a trial cannot be written.

    Example:
        >>> shape = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
        >>> print(autotune.tune(shape, budget=10))
    """
    called = time.monotonic()
    check_kinds(settings=settings, store=store, observer=observer, ship_to=ship_to, begun=begun)
    check_flags(must_measure=must_measure, must_replay=must_replay, race_served=race_served)
    read_sampler(sampler)
    check_numbers(budget, trials, seed)
    check_places(device, target, gpus, must_measure=must_measure, must_replay=must_replay)
    target_device = None if target is None else platforms.target_device(target)  # refused before anything is searched
    workloads = read_workloads(shapes, operation)
    names = read_names(implementations)
    store = store or Store(home())
    if (problem := why_unwritable(store.root)) is not None:
        raise UsageError(f"store={str(store.root)!r} cannot be written: {problem}; name another folder")
    begun, settings = begun or HeadStart(), settings or Settings()
    searches = ShapeSearches(
        limits=Limits(trials, budget, converge=sampler != "exhaustive"),
        settings=settings,
        sampler=sampler,
        seed=seed,
        store=store,
        observer=observer or Observer(),
        race_served=race_served,
        target=target_device,
        ship_to=ship_to,
        is_alone=len(workloads) == 1,
    )
    try:
        if gpus is not None:
            with contextlib.closing(SeveralGpus(settings, gpus, device)) as several:
                first = next(iter(several.executors.values()))
                searches.run_on_several(several, searches.find(workloads, first, names), begun.started or called)
            return searches.tuning(workloads)
        opened = _open(device, settings, begun.children, must_measure=must_measure, must_replay=must_replay)
        with contextlib.closing(opened) as executor:
            if must_measure and device is not None:
                _require_name(executor.device, device)
            answers = searches.find(workloads, executor, names)
            started = begun.started if executor.name == "gpu" else None  # a replay uses nothing of what was begun
            searches.run(executor, answers, called if started is None else started)
    except KeyboardInterrupt:
        searches.interrupted = True
        searches.observer.on_interrupted(None)
    return searches.tuning(workloads)


def _open(
    device: str | None, settings: Settings, children: GpuChildren | None, *, must_measure: bool, must_replay: bool
) -> Executor:
    """Open what answers trials: a recorded sweep, the GPU here, or the one of them that there is."""
    if must_replay:
        return open_replay(device, settings.policy)
    return open_gpu(settings, children) if must_measure else open_executor(device, settings, children)


def _require_name(here: Device, name: str) -> None:
    """Raise UsageError if the GPU here has another name."""
    if not platforms.is_named(here, name):
        expected = f"expected {here.name!r} or None"
        raise UsageError(f"device={name!r} is not allowed with must_measure=True; {expected}")
