"""``autotune analyze memory``."""

import os

from autotune.console.command import command, number, option
from autotune.console.options import json_option
from autotune.console.output import make_console, print_json, print_sheets, say
from autotune.console.shape_options import ShapeOptions
from autotune.lab import commands

LENGTHS = "128,...,65536"


@command("memory")
@commands.dense_options(lengths=LENGTHS, batch="1")
@commands.where_option
@option("--seconds", type=number(1), default=20.0, help="Skip runs that would take longer.")
@json_option
def memory(shape: ShapeOptions, device: str | None, seconds: float, as_json: bool) -> None:
    """Predict and measure how much memory attention takes beside its inputs: O(S^2), and fused O(S).

    The lengths are 128 to 65536. What would not fit the free memory, or would take too long, is only predicted.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which reads it once, logs every step
    from autotune.lab.machine.processor import choose_kind, read_processor
    from autotune.lab.memory.peaks import measure_peaks, method, peak_sheet, score_matrix, score_sheet

    kind = choose_kind(device)
    shapes = commands.dense_shapes(shape, kind, seq=LENGTHS, batch="1")
    here = read_processor(kind)
    console = make_console(as_json)
    print_sheets(console, [score_sheet(shapes)])
    peaks, is_interrupted = commands.keep(measure_peaks(shapes, here, seconds=seconds, on_step=say))
    print_sheets(console, [peak_sheet(peaks, method(here))])
    if as_json:
        scores = [score_matrix(shape) for shape in shapes]
        found = {"machine": here, "method": method(here), "scores": scores, "peaks": peaks}
        print_json(found | {"interrupted": is_interrupted})
    commands.end(console, is_interrupted=is_interrupted)
