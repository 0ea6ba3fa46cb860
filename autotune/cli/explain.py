"""``autotune explain``: why a config won or lost at a shape."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autotune import platforms
from autotune.cli.explanation import Fate, Source, explain_candidate, explanation_data, explanation_lines
from autotune.cli.stored import ASSUMED, find_device, read_outsiders, require_folder
from autotune.console.command import command, option
from autotune.console.options import device_option, json_option, parse_config, tables_option
from autotune.console.output import make_console, print_json
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.console.shapes import describe
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import pick_for_device
from autotune.dispatch.among import Among
from autotune.errors import InvalidConfigError, UsageError
from autotune.registry import get_implementation, our_implementations
from autotune.shape import Shape
from autotune.space import Config, Space
from autotune.table import Outsider, Store, home, shipped_sweeps, shipped_winners, warn_damaged
from autotune.trial import Candidate, Policy
from autotune.tuning_command import naming_options
from autotune.units import count_text, time_text


@command("explain")
@click.argument("config")
@option(
    "--implementation",
    metavar="NAME",
    help="Whose config it is.",
    default_text="the first of ours that has its parameters",
)
@device_option()
@tables_option
@json_option
@shape_options()
def explain(
    config: str, implementation: str | None, device: str | None, tables: Path | None, as_json: bool, shape: ShapeOptions
) -> None:
    """Say why a config was pruned, failed or lost for a shape, or that it won or was never tried.

    CONFIG is 'BLOCK_Q=128 BLOCK_K=64 num_warps=8 ...', with the name of its implementation before it or without, or a
    JSON object; parameters that the device does not have may be left out. The rows are those of your tables and of the
    shipped sweeps. Nothing is measured.
    """
    wanted = describe(shape)
    console, data = make_console(as_json), []
    for note in wanted.notes:
        console.print(note)
    require_folder(tables)
    operation, *others = dict.fromkeys(operation for operation, _ in wanted.problems)
    if others:
        raise UsageError(f"shapes of {operation.name} and {others[0].name}: a config is of one operation; explain each")
    named, config = _split_name(operation.name, config)
    chosen = implementation or named or _owner(operation.name, config)
    if named not in ("", chosen):
        raise UsageError(f"config is of {named}, --implementation={chosen!r}; name one")
    space = get_implementation(operation.name, chosen).space
    sources = _read_sources(operation.name, chosen, tables or home())
    if device is None:
        target = platforms.current_device() if platforms.has_gpu() else NVIDIA_H200
    else:
        target = find_device(device, (trial for source in sources for trial in source.trials), tables)
    candidate = Candidate(chosen, parse_config(config, space, target))
    outsiders = read_outsiders(operation.name, (chosen,), device, tables)
    _require_known(config, candidate.config, space, outsiders)
    if device is None and not platforms.has_gpu():
        console.print(ASSUMED)
    for _, asked in wanted.problems:
        found = explain_candidate(operation, asked, target, candidate, _narrow(sources, asked, target))
        if found.trial is None and tables is None:
            found = replace(found, served=_why_served(operation.name, asked, target, candidate))
        elif found.fate is Fate.WON and tables is None:
            found = replace(found, instead=_served_instead(operation.name, asked, target, candidate))
        console.print(*explanation_lines(found), sep="\n", end="\n\n" if len(wanted.problems) > 1 else "\n")
        data.append(explanation_data(found))
    if outsiders:
        rows = count_text(len(outsiders), "row")
        lists = f"`autotune show --all {naming_options(operation.name)} --implementation {chosen}` lists"
        console.print(f"note      outside today's space: {rows} of {chosen}, which {lists}")
    if as_json:
        print_json(data)


def _split_name(operation: str, config: str) -> tuple[str, str]:
    """Return the implementation that a config begins with, as winners are printed, or "", and the config."""
    first, _, rest = config.strip().partition(" ")
    return (first, rest) if first in {each.name for each in our_implementations(operation)} else ("", config)


def _owner(operation: str, config: str) -> str:
    """Return the first of our implementations that has all parameters that a config names, or else the first of all."""
    ours, named = our_implementations(operation), set(Config.parse(config))
    owners = (each.name for each in ours if named <= {parameter.name for parameter in each.space.parameters})
    return next(owners, ours[0].name)


def _require_known(text: str, config: Config, space: Space[Any], outsiders: Sequence[Outsider]) -> None:
    """Refuse a name or a value that the space has on no device, and no stored row outside of it either."""
    values = {parameter.name: parameter.values for parameter in space.parameters}
    for name, value in config.items():
        if value in (None, *values.get(name, ())) and name in values:
            continue
        if any(name in row.problem and row.problem[name] == value for row in outsiders):
            continue
        if name not in values:
            raise InvalidConfigError(f"config={text!r} has {name}, which is no parameter; expected {', '.join(values)}")
        allowed = ", ".join(map(str, values[name]))
        raise InvalidConfigError(f"config={text!r} has {name}={value}; allowed: {allowed}")


def _read_sources(operation: str, implementation: str, root: Path) -> list[Source]:
    """Return everything that was recorded of an implementation, in the order of trust, as dispatch has it."""
    users = Store(root, on_damaged=warn_damaged).trials(operation, implementation=implementation)
    sweeps = shipped_sweeps(operation, implementation=implementation, on_damaged=warn_damaged)
    shipped = shipped_winners(operation, implementation=implementation, on_damaged=warn_damaged)
    return [
        Source("your tables", [trial for trial in users if trial.executor == "gpu"]),
        Source("the shipped winners", shipped),
        *(Source(f"the shipped sweep {sweep.name}", sweep.trials()) for sweep in sweeps),
        Source("your tables", [trial for trial in users if trial.executor != "gpu"]),
    ]


def _narrow(sources: list[Source], shape: Shape, device: Device) -> list[Source]:
    """Return the trials of one shape and device, the policies apart and the usual one first."""
    kept = [(place, [t for t in trials if (t.shape, t.device) == (shape, device)]) for place, trials in sources]
    policies = dict.fromkeys([Policy(), *(trial.policy for _, trials in kept for trial in trials)])
    return [Source(place, [t for t in trials if t.policy == policy]) for policy in policies for place, trials in kept]


def _served_instead(operation: str, shape: Shape, device: Device, candidate: Candidate) -> str:
    """Return what is served for a shape, with its recorded time, where it is of another implementation; else ""."""
    kernel = pick_for_device(shape, device, operation)
    row = kernel.provenance.row
    if kernel.implementation == candidate.implementation or kernel.provenance.baseline:
        return ""
    if row is None or row.timing is None or row.shape != shape:
        return str(kernel.candidate)
    return f"{kernel.candidate}, {time_text(row.timing.median_us)},"


def _why_served(operation: str, shape: Shape, device: Device, candidate: Candidate) -> str:
    """Return the reason that a candidate is served for a shape, among all of ours or alone; empty if another one is."""
    name = candidate.implementation
    alone: tuple[tuple[Among, str], ...] = (("ours", ""), ((name,), f"among {name} alone, "))
    for among, prefix in alone:
        kernel = pick_for_device(shape, device, operation, among=among)
        if kernel.candidate == candidate:
            return f"{prefix}{kernel.provenance.rung}: {kernel.provenance.reason}"
    return ""
