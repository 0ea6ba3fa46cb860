"""``autotune lookup``: the config that is served for a shape; no GPU, no torch, no triton."""

from dataclasses import asdict
from typing import Any, Final

from autotune import platforms
from autotune.cli.stored import ASSUMED, find_device, require_folder
from autotune.console.command import command, option
from autotune.console.options import device_option, json_option, split_names
from autotune.console.output import make_console, print_json
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.console.shapes import describe
from autotune.console.winners import candidate_data, policy_text, trial_data
from autotune.device import ARCHITECTURES, NVIDIA_H200
from autotune.dispatch import Among, TunedKernel, get_kernel
from autotune.errors import UsageError
from autotune.registry import get_implementation
from autotune.trial import Trial
from autotune.tuning_command import tuning_command
from autotune.units import time_text


@command("lookup")
@option("--among", default="ours", help="Who may be served: ours, fastest, or implementations by name.")
@device_option()
@json_option
@shape_options()
def lookup(among: str, device: str | None, as_json: bool, shape: ShapeOptions) -> None:
    """Say what get_kernel answers for a shape, from which row, and why."""
    wanted = describe(shape)
    console = make_console(as_json)
    for note in wanted.notes:
        console.print(note)
    is_assumed = device is None and not platforms.has_gpu()
    name = NVIDIA_H200.name if is_assumed else device
    require_folder(None)
    if device is not None:
        name = (platforms.known_device(device) or find_device(device, (), None)).name
    choice = _parse_among(among)
    kernels = [get_kernel(each, device=name, among=choice, operation=of.name) for of, each in wanted.problems]
    if is_assumed:
        console.print(ASSUMED)
    for kernel in kernels:
        console.print(*_lines(name, kernel), sep="\n")
    if as_json:
        here = name or platforms.current_device().name
        print_json([_data(here, kernel) for kernel in kernels])


_WHY: Final = (
    *("baseline", "rung", "default", "reason", "origin", "distance"),
    *("expected_regret", "evidence", "notes", "passed_over"),
)


def _parse_among(text: str) -> Among:
    if text in ("ours", "fastest"):
        return "ours" if text == "ours" else "fastest"
    names = split_names(text)
    if not names or {"ours", "fastest"} & set(names):
        raise UsageError(f"--among={text!r} is not allowed; expected ours, fastest or names such as triton,flex")
    return names


def _lines(device: str | None, kernel: TunedKernel) -> list[str]:
    why = kernel.provenance
    return [
        f"shape   {kernel.shape}",
        f"device  {device or 'the GPU here'}",
        f"kernel  {kernel.implementation}",
        f"config  {kernel.config or 'none: it is not ours to tune'}",
        f"why     {why.rung}: {why.reason}",
        f"regret  {why.expectation}",
        *([] if why.row is None else [f"row     {_row_text(why.row, why.baseline)} ({why.origin} table)"]),
        *(f"note    {note}" for note in why.notes),
        *(f"passed  {row}" for row in why.passed_over),
        *([f"next    {_next_text(device, kernel)}"] if why.rung == "default" and why.expected_regret is None else []),
    ]


def _next_text(device: str | None, kernel: TunedKernel) -> str:
    """Return what records the best, where nothing recorded says how near it is."""
    is_ours = get_implementation(kernel.operation, kernel.implementation).is_ours
    named = "" if is_ours else f" --implementation {kernel.implementation}"
    where = "here" if device is None else f"on a GPU of {device}" if device in ARCHITECTURES else f"on an {device}"
    command = f"`{tuning_command(kernel.operation, kernel.shape)}{named}`"
    return f"{command} {where} finds the best and records it; from then on that is served there"


def _data(device: str, kernel: TunedKernel) -> dict[str, Any]:
    why = kernel.provenance
    return {
        "operation": kernel.operation,
        "device": device,
        "shape": kernel.shape.as_dict(),
        **candidate_data(kernel.candidate),
        **{name: getattr(why, name) for name in _WHY},
        "row": None if why.row is None else trial_data(why.row),
    }


def _row_text(row: Trial, baseline: str) -> str:
    """Return the time and origin of a row; the time of its baseline where that is served."""
    timing = row.baseline_timing if baseline else row.timing
    tools = asdict(row.toolchain)
    versions = ", ".join(f"{name} {tools[name]}" for name in ("triton", "torch", "driver") if tools[name])
    time = "" if timing is None else f"{time_text(timing.median_us)}{policy_text(row.policy)}, "
    verb = "replayed" if row.executor == "replay" else "measured"
    return f"{time}{verb} {row.started_at:%Y-%m-%d} with {versions}"
