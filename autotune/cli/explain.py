"""``autotune explain``: why a config is not the winner of a shape, or is."""

import json
from pathlib import Path
from typing import Annotated

import typer

from autotune import hardware
from autotune.cli import options, shapes
from autotune.cli.config_text import parse_config
from autotune.cli.output import make_console
from autotune.cli.tables import ASSUMED, From, find_device, require_folder
from autotune.device import NVIDIA_H200, Device
from autotune.report.explain import Source, explain_config, explanation_data, explanation_lines
from autotune.shape import Shape
from autotune.table import Store, home, shipped_sweeps, shipped_winners, warn_damaged
from autotune.trial import Policy

ConfigText = Annotated[
    str, typer.Argument(metavar="CONFIG", help="'BLOCK_Q=128 BLOCK_K=64 num_warps=8 ...', or a JSON object.")
]


@shapes.takes_shapes
def explain(
    config: ConfigText,
    *,
    wanted: shapes.Wanted,
    device: options.DeviceName = None,
    source: From = None,
    as_json: options.Json = False,
) -> None:
    """Say why a config was pruned, failed or lost for a shape, or that it won or was never tried.

    The rows are those of your tables and of the shipped sweeps; parameters that the device does not have may be left
    out. Nothing is measured.
    """
    require_folder(source)
    operation = wanted.problems[0][0]  # of all of them
    sources = _read_sources(operation.name, source or home())
    target = _find_device(device, sources, source)
    parsed = parse_config(config, operation.space, target)
    console, data = make_console(as_json), []
    if device is None and not hardware.has_gpu():
        console.print(ASSUMED)
    for _, shape in wanted.problems:
        found = explain_config(operation, shape, target, parsed, _narrow(sources, shape, target))
        console.print(*explanation_lines(found), sep="\n", end="\n\n" if len(wanted.problems) > 1 else "\n")
        data.append(explanation_data(found))
    if as_json:
        print(json.dumps(data, indent=2))


def _read_sources(operation: str, root: Path) -> list[Source]:
    """Everything that was recorded of an operation, in the order in which it is served and believed."""
    users = Store(root, on_damaged=warn_damaged).trials(operation)
    sweeps = shipped_sweeps(operation, on_damaged=warn_damaged)
    return [
        Source("your tables", [trial for trial in users if trial.executor == "gpu"]),
        Source("the shipped winners", shipped_winners(operation, on_damaged=warn_damaged)),
        *(Source(f"the shipped sweep {sweep.name}", sweep.trials()) for sweep in sweeps),
        Source("your tables", [trial for trial in users if trial.executor != "gpu"]),
    ]


def _narrow(sources: list[Source], shape: Shape, device: Device) -> list[Source]:
    """What the sources have of one shape and device, each policy for itself, the usual one first."""
    kept = [(place, [t for t in trials if (t.shape, t.device) == (shape, device)]) for place, trials in sources]
    policies = dict.fromkeys([Policy(), *(trial.policy for _, trials in kept for trial in trials)])
    return [Source(place, [t for t in trials if t.policy == policy]) for policy in policies for place, trials in kept]


def _find_device(name: str | None, sources: list[Source], root: Path | None) -> Device:
    """The named device; by default the GPU here, or the H200.

    Raises:
        UnknownNameError: no row is of such a device.
    """
    if name is None:
        return hardware.current_device() if hardware.has_gpu() else NVIDIA_H200
    return find_device(name, (trial for source in sources for trial in source.trials), root)
