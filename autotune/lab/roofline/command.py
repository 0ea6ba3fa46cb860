"""``autotune analyze roofline``: check everything first, then derive, measure, draw and count, shown as it comes."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from autotune import platforms
from autotune.console.command import command, option
from autotune.console.options import PATH, json_option
from autotune.console.output import make_console, print_json, print_sheets, say
from autotune.console.shape_options import TOKENS, ShapeOptions
from autotune.errors import AutotuneError, MissingDependencyError, UsageError
from autotune.lab import commands
from autotune.lab.drawing.figure_file import check_figure
from autotune.lab.machine import ceilings, cuda_tools, processor
from autotune.lab.machine.processor import Processor, ProcessorKind
from autotune.lab.roofline import derivation, placement, rocprof, words
from autotune.lab.roofline import ncu as nsight_compute
from autotune.lab.roofline.section import draw_roofline
from autotune.shape import AttentionShape
from autotune.sheets import Sheet

LENGTHS: Final = {"cpu": "128,512,1024", "cuda": "1024,4096,16384"}


@dataclass(frozen=True, slots=True)
class RooflinePart:
    """The result of one part of the work, as tables and as plain data, or the failure that ended it."""

    sheets: Sequence[Sheet] = ()
    data: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    failure: str = ""


@command("roofline")
@commands.dense_options(
    lengths=f"{LENGTHS['cpu']}; on a GPU {LENGTHS['cuda']}", batch=f"1; on a GPU max(1, {TOKENS} // seq)"
)
@commands.where_option
@option("--measure/--no-measure", default=True, help="Time kernels, or only derive.", default_text="measure")
@commands.figure_option
@option("--ncu", is_flag=True, help="Count the memory's bytes with Nsight Compute, beside the model.")
@option("--rocprof-counters", metavar="FILE", type=PATH, help="Write the counter file for rocprof.")
@option(
    "--rocprof-results",
    metavar="CSV",
    type=PATH,
    multiple=True,
    help="Show the counters that rocprof wrote; may be repeated.",
)
@json_option
def roofline(
    shape: ShapeOptions,
    device: str | None,
    measure: bool,
    figure: Path | None,
    ncu: bool,
    rocprof_counters: Path | None,
    rocprof_results: Sequence[Path],
    as_json: bool,
) -> None:
    """Derive FLOPs, bytes and intensity, measure the device's ceilings, and place every kernel under them.

    The lengths are 128, 512 and 1024, on a GPU 1024, 4096 and 16384.
    """
    console = make_console(as_json)
    if rocprof_counters is not None or rocprof_results:
        _use_rocprof(console, rocprof_counters, rocprof_results, as_json=as_json)
        return
    kind = processor.choose_kind(device)
    usual = {} if kind == "cuda" else {"batch": "1"}
    shapes = commands.dense_shapes(shape, kind, seq=LENGTHS[kind], **usual)
    path = _check(kind, device, measure=measure, figure=figure, ncu=ncu)
    here = processor.read_processor(kind) if measure else None
    parts = _run(shapes, here, figure=figure, ncu=path, keeps_batch=shape.batch is not None)
    found, is_interrupted = commands.keep(_show(console, part) for part in parts)
    failures = [part.failure for part in found if part.failure]
    if as_json:
        data = {name: value for part in found for name, value in part.data.items()}
        print_json(data | {"failures": failures, "interrupted": is_interrupted})
    commands.end(console, is_interrupted=is_interrupted)
    if failures:
        raise click.exceptions.Exit(1)


def _use_rocprof(console: Console, counter_file: Path | None, results: Sequence[Path], *, as_json: bool) -> None:
    if counter_file is not None:
        rocprof.write_counter_file(counter_file)
        console.print(f"wrote {counter_file}; next: rocprof -i {counter_file} -o counters.csv COMMAND")
    if results:
        found = rocprof.read_results(results)
        print_sheets(console, [words.rocprof_sheet(found)])
        if as_json:
            print_json({"rocprof": found})


def _check(kind: ProcessorKind, device: str | None, *, measure: bool, figure: Path | None, ncu: bool) -> str | None:
    if figure is not None:
        if not measure:
            raise UsageError("--figure needs measured ceilings: it and --no-measure exclude each other")
        check_figure(figure)
    if not ncu:
        return None
    if not measure:
        raise UsageError("--ncu counts what was measured: it and --no-measure exclude each other")
    if device == "cpu":
        raise UsageError("--ncu counts on an NVIDIA GPU: it and --device cpu exclude each other")
    if kind == "cpu":
        raise MissingDependencyError(
            "--ncu counts on an NVIDIA GPU, and none is visible; leave it out, or run `autotune doctor`"
        )
    return cuda_tools.find_tool("ncu")


def _run(
    shapes: Sequence[AttentionShape], here: Processor | None, *, figure: Path | None, ncu: str | None, keeps_batch: bool
) -> Iterator[RooflinePart]:
    """Derive; on a processor measure ceilings and kernels and draw them; test the claims, and count with ``ncu``."""
    derived = derivation.derivation_data(shapes)
    yield RooflinePart(words.derivation_sheets(shapes, here), derived)
    measured = None
    if here is not None:
        yield RooflinePart(data={"measured_at": datetime.now(UTC).isoformat(), "toolchain": platforms.toolchain()})
        say("measuring ceilings")
        measured = ceilings.measure_ceilings(here, shapes[0].dtype)
        data = {"ceilings": ceilings.ceilings_data(measured), "ridge": measured.ridge}
        yield RooflinePart([words.ceiling_sheet(measured)], data)
        points, is_interrupted = commands.keep(
            point for shape in shapes for point in placement.measure_points(shape, here, on_step=say)
        )
        yield RooflinePart([words.point_sheet(points, measured)], {"points": placement.points_data(points, measured)})
        if is_interrupted:
            raise KeyboardInterrupt
        if figure is not None:
            draw_roofline(points, measured, figure)
            yield RooflinePart(note=f"wrote {figure}")
    claims = derivation.claims(shapes, measured)
    yield RooflinePart([words.claim_sheet(claims)], {"claims": claims})
    if here is not None and ncu is not None:
        yield from _count(shapes, here, ncu, keeps_batch=keeps_batch)


def _count(shapes: Sequence[AttentionShape], here: Processor, ncu: str, *, keeps_batch: bool) -> Iterator[RooflinePart]:
    """Count one length after another; stop at the first where counting is not permitted, skip those that fail."""
    counted: list[dict[str, Any]] = []
    for shape in shapes:
        say(f"counting at {shape.seq_q}")
        try:
            found = nsight_compute.compare_with_ncu(shape, here, keeps_batch=keeps_batch, ncu=ncu)
        except AutotuneError as error:
            yield RooflinePart(data={"ncu": counted}, failure=f"{shape}: {' '.join(str(error).split())}")
            if isinstance(error, MissingDependencyError):
                return
            continue
        counted += [asdict(item) | {"deviation": item.deviation} for item in found]
        yield RooflinePart([words.counter_sheet(found)], {"ncu": counted})


def _show(console: Console, part: RooflinePart) -> RooflinePart:
    print_sheets(console, part.sheets)
    if part.note:
        console.print(part.note)
    if part.failure:
        console.print(f"FAILED: {part.failure}")
    return part
