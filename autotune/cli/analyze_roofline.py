"""The work of ``autotune analyze roofline``: everything checked first, then a step at a time, shown as it comes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from autotune import hardware
from autotune.cli.analyzed import end, keep, print_json, print_sheets
from autotune.cli.output import say
from autotune.errors import AutotuneError, MissingDependencyError, UsageError
from autotune.shape import AttentionShape

if TYPE_CHECKING:
    from autotune.analysis.processor import Kind, Processor
    from autotune.analysis.sheets import Sheet


@dataclass(frozen=True, slots=True)
class Asked:
    """What is derived, and where it is measured, drawn and counted; None: not at all.

    ``ncu`` is Nsight Compute's path, which counts with a larger batch unless ``keeps_batch``.
    """

    shapes: Sequence[AttentionShape]
    processor: "Processor | None" = None
    figure: Path | None = None
    ncu: str | None = None
    keeps_batch: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What a step found, for a reader and as plain data, or how it failed."""

    sheets: Sequence["Sheet"] = ()
    data: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    failure: str = ""


def check(
    shapes: Sequence[AttentionShape],
    kind: "Kind",
    *,
    device: str | None,
    measure: bool,
    figure: Path | None,
    ncu: bool,
    keeps_batch: bool,
) -> Asked:
    """Find out before anything takes time whether it can be done.

    Raises:
        UsageError: options that exclude each other, or a figure that cannot be written.
        MissingDependencyError: there is no torch to measure with, or no GPU or no Nsight Compute to count with.
    """
    from autotune.analysis import cuda_tools, processor
    from autotune.report.roofline_figure import check_figure

    if figure is not None:
        if not measure:
            raise UsageError("--figure needs measured ceilings: it and --no-measure exclude each other")
        check_figure(figure)
    if ncu:
        _require_countable(kind, device, measure=measure)
    path = cuda_tools.find_tool("ncu") if ncu else None
    return Asked(shapes, processor.read_processor(kind) if measure else None, figure, path, keeps_batch)


def _require_countable(kind: "Kind", device: str | None, *, measure: bool) -> None:
    """Refuse ``--ncu`` by what stands against it: another option, or that nothing here can be counted on."""
    if not measure:
        raise UsageError("--ncu counts what was measured: it and --no-measure exclude each other")
    if device == "cpu":
        raise UsageError("--ncu counts on an NVIDIA GPU: it and --device cpu exclude each other")
    if kind == "cpu":
        raise MissingDependencyError(
            "--ncu counts on an NVIDIA GPU, and none is visible; leave it out, or run `autotune doctor`"
        )


def measure(asked: Asked) -> Iterator[Step]:
    """Derive, measure ceilings and kernels, draw, judge the claims, and count."""
    from autotune.analysis import derivation, sheets

    yield Step(sheets.derivation_sheets(asked.shapes, asked.processor), derivation.derivation_data(asked.shapes))
    if asked.processor is None:
        claims = derivation.claims(asked.shapes)
    else:
        from autotune.analysis.ceilings import ceilings_data, measure_ceilings
        from autotune.analysis.roofline import measure_points, points_data
        from autotune.report.roofline_figure import draw_roofline

        yield Step(data={"measured_at": datetime.now(UTC).isoformat(), "toolchain": hardware.toolchain()})
        say("measuring ceilings")
        ceilings = measure_ceilings(asked.processor, asked.shapes[0].dtype)
        yield Step([sheets.ceiling_sheet(ceilings)], {"ceilings": ceilings_data(ceilings), "ridge": ceilings.ridge})
        points, is_interrupted = keep(
            point for shape in asked.shapes for point in measure_points(shape, asked.processor, on_step=say)
        )
        yield Step([sheets.point_sheet(points, ceilings)], {"points": points_data(points, ceilings)})
        if is_interrupted:
            raise KeyboardInterrupt
        if asked.figure is not None:
            draw_roofline(points, ceilings, asked.figure)
            yield Step(note=f"wrote {asked.figure}")
        claims = derivation.claims(asked.shapes, ceilings)
    yield Step([sheets.claim_sheet(claims)], {"claims": claims})
    if asked.processor is not None and asked.ncu is not None:
        yield from _count(asked, asked.processor, asked.ncu)


def show(console: Console, steps: Iterable[Step], *, as_json: bool) -> None:
    """Print each step as it comes, and in the end all of them as JSON; the exit code is 1 where one failed."""
    shown, is_interrupted = keep(_show(console, step) for step in steps)
    data = {name: value for step in shown for name, value in step.data.items()}
    failures = [step.failure for step in shown if step.failure]
    print_json(as_json, data | {"failures": failures, "interrupted": is_interrupted})
    end(console, is_interrupted=is_interrupted)
    if failures:
        raise typer.Exit(1)


def _show(console: Console, step: Step) -> Step:
    print_sheets(console, step.sheets)
    if step.note:
        console.print(step.note)
    if step.failure:
        console.print(f"FAILED: {step.failure}")
    return step


def _count(asked: Asked, processor: "Processor", ncu: str) -> Iterator[Step]:
    """One length after another; one that fails costs no other, but where nothing may be counted no more is tried."""
    from autotune.analysis import sheets
    from autotune.analysis.counters import compare_with_ncu

    counted: list[dict[str, Any]] = []
    for shape in asked.shapes:
        say(f"counting at {shape.seq_q}")
        try:
            found = compare_with_ncu(shape, processor, keeps_batch=asked.keeps_batch, ncu=ncu)
        except AutotuneError as error:
            yield Step(data={"ncu": counted}, failure=f"{shape}: {' '.join(str(error).split())}")
            if isinstance(error, MissingDependencyError):
                return
            continue
        counted += [asdict(item) | {"deviation": item.deviation} for item in found]
        yield Step([sheets.counter_sheet(found)], {"ncu": counted})
