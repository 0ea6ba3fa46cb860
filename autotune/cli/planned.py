"""The plan of a search as text and as plain data."""

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from autotune.console.winners import config_data
from autotune.units import count_text

if TYPE_CHECKING:
    from autotune.search.plan import SearchPlan

LISTED_RULES: Final = 3  # of those that prune most


def plan_lines(plan: "SearchPlan") -> list[str]:
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
        f"sampler   {plan.sampler}, {count_text(plan.trials, 'trial')} at most that reach the device",
        f"expected  {_expected(plan)}",
    ]


def plan_data(plan: "SearchPlan") -> dict[str, Any]:
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


def _expected(plan: "SearchPlan") -> str:
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
