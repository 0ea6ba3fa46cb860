"""``autotune warmup``: compile ahead what a model or a shape is served, into Triton's cache."""

from dataclasses import fields
from typing import Any

from autotune.console.command import command, option
from autotune.console.options import device_option, json_option
from autotune.console.output import make_console, print_json
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.console.shapes import describe_model
from autotune.console.winners import candidate_data
from autotune.errors import AutotuneError
from autotune.units import count_text
from autotune.warming import WarmedShape, warm


@command("warmup")
@option("--every-output", is_flag=True, help="Also compile for calls that return the log-sum-exp.")
@device_option("the GPU here")
@json_option
@shape_options()
def warmup(every_output: bool, device: str | None, as_json: bool, shape: ShapeOptions) -> None:
    """Compile ahead what is served for each shape, so that a server's first calls only load it.

    A --model without an --operation is compiled for prefill and for decode. Binaries go to Triton's cache
    ($TRITON_CACHE_DIR); --device names a GPU or an architecture that is not here, as where a container is built.
    """
    wanted = describe_model(shape)
    console = make_console(as_json)
    for note in wanted.notes:
        console.print(note)
    found = warm(wanted.problems, device=device, every_output=every_output)
    for each in found:
        console.print(*_lines(each), sep="\n")
    failed = sum(bool(each.failure) for each in found)
    seconds = sum(each.seconds for each in found)
    console.print(f"{count_text(len(found) - failed, 'shape')} compiled for {found[0].device} in {seconds:.0f} s")
    if as_json:
        print_json(list(map(_data, found)))
    if failed:
        raise AutotuneError(f"{failed} of {len(found)} shapes did not compile: see the lines `failed`")


def _lines(found: WarmedShape) -> list[str]:
    lines = [f"shape     {found.operation}: {found.shape}"]
    if found.failure:
        return [*lines, f"failed    {found.candidate}: {found.failure}"]
    return [*lines, f"compiled  {found.candidate} ({found.rung}), {found.seconds:.1f} s"]


def _data(found: WarmedShape) -> dict[str, Any]:
    plain = {each.name: getattr(found, each.name) for each in fields(found) if each.name not in ("shape", "candidate")}
    return {**plain, "shape": found.shape.as_dict(), **candidate_data(found.candidate)}
