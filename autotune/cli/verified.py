"""Runs ``autotune verify``: the shapes to measure, one call of ``autotune.tuning.verify``, and its result in print."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from autotune.cli.progress import Progress
from autotune.cli.studies import open_store
from autotune.console import interrupts
from autotune.console.output import make_console, print_json, print_sheet
from autotune.console.shape_options import ShapeOptions
from autotune.console.shapes import PHASES, Problem, Wanted, describe_model, kind_of, named_model
from autotune.console.winners import candidate_data, timing_data, trial_data
from autotune.errors import SearchError
from autotune.executor.head_start import HeadStart
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import ExecutorInfo, Settings, describe_executor
from autotune.models import ModelShape
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.sheets import Sheet, percent, text, time
from autotune.table import AS_EXPECTED, ServedRegret, as_expected, read_misses
from autotune.tuning import (
    Verification,
    VerifiedShape,
    draw_shapes,
    find_answers,
    is_drawn,
    nearest_rank,
    verify,
)
from autotune.units import count_text, percent_text

NOT_SIZES: Final = {"model", "operation", "tp"}  # the shape options that name no size
SPARE: Final = 8  # a replay answers for few families: this many times the shapes are drawn there, the others left out


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """A command's arguments of ``verify``, which shapes it measures, where its tables are, and how it prints."""

    shape: ShapeOptions
    count: int
    trials: int
    budget: float
    seed: int
    implementations: tuple[str, ...] = ()
    device: str | None = None
    settings: Settings
    tables: Path | None = None
    as_json: bool = False


def run(request: VerifyRequest, begun: HeadStart) -> None:
    """Measure, and print what was found; SearchError where a shape has no regret."""
    interrupts.listen()
    console, store = make_console(request.as_json), open_store(request.tables)
    wanted = choose(request, describe_executor(request.device, request.settings.policy, index=request.settings.index))
    for note in wanted.notes:
        console.print(note)
    with Progress(console, request.budget, begun.started) as progress:
        found = verify(
            wanted.problems,
            implementations=request.implementations,
            trials=request.trials,
            budget=request.budget,
            seed=request.seed,
            device=request.device,
            settings=request.settings,
            store=store,
            observer=progress,
            begun=begun,
        )
    print_sheet(console, verified_sheet(found))
    if request.as_json:
        print_json(list(map(_data, found.results)))
    if found.interrupted:
        interrupts.stop()
    if found.failures:
        raise SearchError(
            f"{len(found.failures)} of {len(found.results)} shapes have no regret: see the lines `failed`"
        )


def choose(request: VerifyRequest, here: ExecutorInfo | ReplayExecutor) -> Wanted:
    """Choose the problems: those that sizes describe, the missed ones, or drawn ones, as the command's help says."""
    options = request.shape
    operation = None if options.operation is None else get_operation(options.operation)
    if options.given().keys() - NOT_SIZES or (operation is not None and not is_drawn(operation)):
        wanted = describe_model(options)
        return _sample(wanted.problems, request, "described", wanted.notes)
    if not options.given() and (misses := read_misses()):
        return _sample(misses, request, "missed")
    model = named_model(options)
    models = [] if model is None else [model]
    operations = [get_operation(name) for name in PHASES.values()] if operation is None else [operation]
    if operation is None and models and not models[0].has_cache:
        operations = [each for each in operations if not kind_of(each).is_cached]
    return _draw(operations, models, request, here)


def _sample(problems: Sequence[Problem], request: VerifyRequest, kind: str, notes: tuple[str, ...] = ()) -> Wanted:
    """Take as many problems as are asked for, drawn by the seed, in their order."""
    if len(problems) <= request.count:
        return Wanted(tuple(problems), (*notes, count_text(len(problems), f"{kind} shape")))
    chosen = sorted(random.Random(request.seed).sample(range(len(problems)), request.count))
    note = f"{request.count} of {len(problems)} {kind} shapes, drawn by seed {request.seed}"
    return Wanted(tuple(problems[index] for index in chosen), (*notes, note))


def _draw(
    operations: Sequence[Operation[Any]],
    models: Sequence[ModelShape],
    request: VerifyRequest,
    here: ExecutorInfo | ReplayExecutor,
) -> Wanted:
    """Draw shapes that the device's memory holds, as many of each operation; in a replay the recorded ones near."""
    found: list[Problem] = []
    for place, operation in enumerate(operations):
        count = (request.count + len(operations) - 1 - place) // len(operations)
        spare = SPARE if isinstance(here, ReplayExecutor) else 1
        drawn = (
            draw_shapes(operation, spare * count, request.seed, memory_mib=here.device.memory_mib, models=models)
            if count
            else []
        )
        answers = find_answers([(operation, shape) for shape in drawn], here, request.implementations)
        shapes = dict.fromkeys(answer.shape for answer in answers if answer.missing is None)
        found += [(operation, shape) for shape in shapes][:count]
    note = f"{models[0].name if models else 'the named models'}, drawn by seed {request.seed}"
    if isinstance(here, ReplayExecutor):
        shapes_of = f"{count_text(len(found), 'recorded shape')} near shapes of"
        return Wanted(tuple(found), (f"{shapes_of} {note}, which themselves are judged on a GPU alone",))
    return Wanted(tuple(found), (f"{count_text(len(found), 'shape')} of {note}",))


def verified_sheet(found: Verification) -> Sheet:
    """Return a row for each shape that was measured, the failures, and what the regrets come to."""
    columns = (
        *(text("shape"), text("rung"), time("served"), time("best")),
        *(percent("expected"), percent("measured")),
    )
    rows = [
        (str(each.winner.shape), each.rung, each.timing.median_us, each.best_us, each.expected, each.regret)
        for each in found.measured
        if each.timing is not None
    ]
    notes = [f"failed    {each.tuned.asked}: {each.failure}" for each in found.failures]
    regrets = [each.regret for each in found.measured if each.regret is not None]
    if regrets:
        median, tail = (percent_text(nearest_rank(regrets, share)) for share in (0.5, 0.95))
        device = found.measured[0].winner.device.name
        notes.append(
            f"regret    median {median}, 95th percentile {tail}, of {count_text(len(regrets), 'shape')} on an {device}"
        )
        notes.append(f"expected  {_expected_text(found.measured)}")
    return Sheet("what was served, over the best that a short search found", columns, tuple(rows), tuple(notes))


def _expected_text(measured: Sequence[ServedRegret]) -> str:
    """Compare what was expected with what was measured, where a shape was not served its own row."""
    others = [each for each in measured if each.rung != "exact" and each.regret is not None]
    if not others:
        return "not compared: every shape was served its own row"
    near, known = as_expected(others)
    right = f", within {100 * AS_EXPECTED:.0f} points for {near}" if known else ""
    return f"known for {known} of {count_text(len(others), 'shape')}{right}"


def _data(each: VerifiedShape) -> dict[str, Any]:
    found = each.measured
    plain: dict[str, Any] = {
        "operation": each.tuned.operation,
        "asked": each.tuned.asked.as_dict(),
        "shape": each.tuned.shape.as_dict(),
        "regret": each.regret,
        "failure": each.failure,
    }
    if found is None:
        return plain
    return plain | {
        "rung": found.rung,
        "served": None if found.served is None else candidate_data(found.served),
        "served_timing": timing_data(found.timing),
        "expected_regret": found.expected,
        "evidence": found.evidence,
        "best_us": found.best_us,
        "winner": trial_data(found.winner),
    }
