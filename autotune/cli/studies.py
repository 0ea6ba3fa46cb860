"""Runs ``autotune search`` and ``autotune sweep``, or prints their plans: one call of ``tune``, and then as JSON."""

import json
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from autotune import platforms
from autotune.cli.confirmed import confirmation_data
from autotune.cli.progress import Progress
from autotune.cli.results import result_data
from autotune.cli.stored import name_of_place, require_place
from autotune.console import interrupts
from autotune.console.output import make_console
from autotune.console.winners import config_data
from autotune.dispatch import default_config
from autotune.errors import AutotuneError, SearchError, UsageError
from autotune.executor.compile_pool import limit_jobs
from autotune.executor.head_start import HeadStart
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import ExecutorInfo, Settings, describe_executor
from autotune.executor.settings import GpuNames
from autotune.implementation import Implementation
from autotune.search import Limits, Sampler
from autotune.search.budget import check_start
from autotune.search.opening import why_skipped
from autotune.search.plan import SearchPlan, make_plan
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, home, warn_damaged
from autotune.tuning import Tuning, Workload, find_answers, take_turns, tune, why_unwritable
from autotune.units import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A command's arguments of ``tune``, where its tables are, and how it prints."""

    shapes: list[Workload]
    implementations: tuple[str, ...] = ()
    budget: float | None
    trials: int | None
    sampler: Sampler
    seed: int = 0
    device: str | None = None
    gpus: GpuNames | None = None
    settings: Settings
    must_measure: bool = False
    target: str | None = None
    ship_to: Path | None = None
    tables: Path | None = None
    as_json: bool = False

    @property
    def root(self) -> Path:
        return self.tables or home()


def preview(request: SearchRequest) -> None:
    """Print what ``run`` would do; open no GPU and write nothing."""
    require_place(request.tables)
    console, progress, data = make_console(request.as_json), Progress(make_console(request.as_json)), []
    limits, jobs = Limits(request.trials, request.budget), limit_jobs(request.settings.jobs).count
    store = Store(request.root, on_damaged=warn_damaged)
    here = describe_executor(request.device, request.settings.policy, index=request.settings.index)
    if here.name == "gpu" and not platforms.has_gpu():
        console.print(f"{here.device.name} is neither here nor recorded: a search needs one; planned as on one")
    answers = find_answers(request.shapes, here, request.implementations)
    for answer in take_turns(answers, here, progress):
        operation, shape, where = answer.operation, answer.shape, here
        if answer.missing is not None:
            console.print(f"not recorded: a search of this needs the GPU; planned as on an {here.device.name}")
            where = ExecutorInfo("gpu", here.device, here.toolchain, here.policy)
        reasons = {each.name: why_skipped(operation, each, shape, where) for each in answer.implementations}
        planned = partial(make_plan, limits=limits, sampler=request.sampler, jobs=jobs)
        plans = {
            each.name: planned(*(operation, each, shape, where, store), default=_served_default(each, shape, where))
            for each in answer.implementations
            if reasons[each.name] is None
        }
        if not any(each.known for each in plans.values()):  # as a search does, which has spent some on starting up
            check_start(operation, shape, where, limits, elapsed=0.0, defaults=len(plans))
        for name, reason in reasons.items():
            if reason is not None:
                progress.on_skipped(name, reason)
                problem = {"operation": operation.name, "implementation": name, "shape": shape.as_dict()}
                data.append({**problem, "skipped": reason})
            else:
                console.print(*plan_lines(plans[name]), sep="\n", end="\n\n")
                data.append(plan_data(plans[name]))
    if request.as_json:
        print(json.dumps(data, indent=2))


def _served_default(
    implementation: Implementation[Any], shape: Shape, where: ExecutorInfo | ReplayExecutor
) -> Config | None:
    """Return the default that a search on a GPU races; None in a replay, whose default is the space's."""
    return default_config(implementation, shape, where.device) if where.name == "gpu" else None


def run(request: SearchRequest, begun: HeadStart) -> Tuning:
    """Tune, and print each result as it comes; AutotuneError where a shape has no winner that ships and holds here."""
    interrupts.listen()
    console, store = make_console(request.as_json), open_store(request.tables)
    passed = {
        each.name: getattr(request, each.name) for each in fields(request) if each.name not in ("tables", "as_json")
    }
    with Progress(console, request.budget, begun.started) as progress:
        found = tune(**passed, store=store, observer=progress, begun=begun)
    if request.as_json:
        results = _data(found)
        data = results if request.gpus is None else {"results": results, "gpus": [asdict(each) for each in found.gpus]}
        print(json.dumps(data, indent=2))
    if found.interrupted:
        interrupts.stop()
    if found.failures:
        raise SearchError(f"{len(found.failures)} of {len(found.results)} shapes failed: see the lines `failed`")
    if not found.holds:
        raise AutotuneError("a winner does not hold on this machine: see the lines `compiled` and `checked`")
    return found


def open_store(tables: Path | None) -> Store:
    """Return the store in a folder that can be written, the usual one by default; UsageError for another place."""
    require_place(tables)
    root = tables or home()
    if (problem := why_unwritable(root)) is not None:
        place = f"{name_of_place(tables)}={str(root)!r}"
        raise UsageError(f"{place} cannot be written: {problem}; name a folder by --tables or AUTOTUNE_HOME")
    return Store(root)


def _data(found: Tuning) -> list[dict[str, Any]]:
    searched = {id(each.search): each for each in found.results if each.search is not None}
    asked = {(each.operation, each.asked) for each in found.results}
    return [
        {
            **result_data(each.search, is_asked=(each.operation, each.shape) in asked),
            "confirmation": confirmation_data(each.confirmation),
        }
        for each in searched.values()
        if each.search is not None
    ]


LISTED_RULES: Final = 3  # of those that prune most


def plan_lines(plan: SearchPlan) -> list[str]:
    """Return the configs that a search would prune, try and know already, and the time that it would take."""
    pruned = plan.size - plan.valid
    lines = [
        f"{plan.operation}/{plan.implementation}: {plan.shape}",
        f"space     {plan.size} configs on {plan.device.name}: {pruned} pruned before compiling, {plan.valid} valid",
    ]
    for group in plan.pruned[:LISTED_RULES]:
        lines += [f"pruned    {group.count}: {group.rule}", f"          for example {group.reason}"]
    if others := plan.pruned[LISTED_RULES:]:
        rules = count_text(len(others), "more rule")
        lines.append(f"pruned    {sum(group.count for group in others)} by {rules}; --json has all, with examples")
    return [
        *lines,
        f"default   {plan.default}",
        f"known     {count_text(plan.known, 'config')} from earlier runs",
        *([f"numbers   {plan.note}"] if plan.note else []),
        f"sampler   {plan.sampler}, {count_text(plan.trials, 'trial')} at most that reach the device",
        f"expected  {_expected(plan)}",
    ]


def plan_data(plan: SearchPlan) -> dict[str, Any]:
    return {
        **{each.name: getattr(plan, each.name) for each in fields(plan) if each.name not in ("pace", "seconds")},
        "shape": plan.shape.as_dict(),
        "device": asdict(plan.device),
        "pruned": [{**asdict(group), "example": config_data(group.example)} for group in plan.pruned],
        "default": config_data(plan.default),
        "compile_seconds": plan.pace.compile_seconds,
        "judge_seconds": plan.pace.judge_seconds,
        "seconds_from": plan.pace.source,
        "seconds_on_device": plan.seconds,  # a replay takes few
    }


def _expected(plan: SearchPlan) -> str:
    if plan.trials == 0:
        return "nothing left to try"
    pace = plan.pace
    basis = f"assuming {pace.compile_seconds:.1f} s to compile a config, as no sweep of the device says more"
    if pace.source:
        basis = f"{pace.compile_seconds:.2f} s to compile a config and {pace.judge_seconds:.2f} s to judge it"
        basis += f", as recorded in {pace.source}"
    cut = ""
    if plan.budget is not None and plan.budget < plan.seconds:
        cut = f", cut short by the budget of {plan.budget:.0f} s"
    text = f"about {plan.seconds:.0f} s with {count_text(plan.jobs, 'compiler')}, race included{cut}: {basis}"
    if plan.executor == "replay":
        return f"seconds, as a replay measures nothing; on an {plan.device.name} itself {text}"
    return text
