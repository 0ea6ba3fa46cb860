"""A search that was only planned, in words and as plain data."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autotune.search.plan import Plan, Pruned

TOLD_RULES: Final = 3  # of those that prune most


def plan_lines(plan: "Plan") -> list[str]:
    """What would be pruned, tried and known, and about how long it would take."""
    pruned = plan.size - plan.valid
    trials = f"{plan.trials} {'trial' if plan.trials == 1 else 'trials'}"
    lines = [
        f"{plan.operation}: {plan.shape}",
        f"space     {plan.size} configs on {plan.device.name}: {pruned} pruned before compiling, {plan.valid} valid",
    ]
    for group in plan.pruned[:TOLD_RULES]:
        lines += [f"pruned    {group.count}: {group.rule}", f"          for example {group.reason}"]
    if others := plan.pruned[TOLD_RULES:]:
        rules = "1 more rule" if len(others) == 1 else f"{len(others)} more rules"
        lines.append(f"pruned    {sum(group.count for group in others)} by {rules}; --json has all, with examples")
    return [
        *lines,
        f"default   {plan.default}",
        f"known     {plan.known} {'config' if plan.known == 1 else 'configs'} from earlier runs",
        f"sampler   {plan.sampler}, {trials} at most that reach the device",
        f"expected  {_expected(plan)}",
    ]


def plan_data(plan: "Plan") -> dict[str, Any]:
    """A plan as plain data for ``--json``."""
    return {
        "operation": plan.operation,
        "shape": plan.shape.as_dict(),
        "device": asdict(plan.device),
        "executor": plan.executor,
        "size": plan.size,
        "pruned": [_pruned_data(group) for group in plan.pruned],
        "valid": plan.valid,
        "default": {name: value for name, value in plan.default.items() if value is not None},
        "known": plan.known,
        "sampler": plan.sampler,
        "trials": plan.trials,
        "jobs": plan.jobs,
        "compile_seconds": plan.pace.compile_seconds,
        "judge_seconds": plan.pace.judge_seconds,
        "seconds_from": plan.pace.source,
        "seconds_on_device": plan.seconds,  # a replay takes few
        "budget": plan.budget,
    }


def _pruned_data(group: "Pruned") -> dict[str, Any]:
    example = {name: value for name, value in group.example.items() if value is not None}
    return {"rule": group.rule, "count": group.count, "example": example, "reason": group.reason}


def _expected(plan: "Plan") -> str:
    if plan.trials == 0:
        return "nothing left to try"
    pace = plan.pace
    compilers = "1 compiler" if plan.jobs == 1 else f"{plan.jobs} compilers"
    told = f"assuming {pace.compile_seconds:.1f} s to compile a config, as no sweep of the device says more"
    if pace.source:
        told = f"{pace.compile_seconds:.2f} s to compile a config and {pace.judge_seconds:.2f} s to judge it"
        told += f", as recorded in {pace.source}"
    cut = ""
    if plan.budget is not None and plan.budget < plan.seconds:
        cut = f", cut short by the budget of {plan.budget:.0f} s"
    text = f"about {plan.seconds:.0f} s with {compilers}, race included{cut}: {told}"
    if plan.executor == "replay":
        return f"seconds, as a replay measures nothing; on an {plan.device.name} itself {text}"
    return text
