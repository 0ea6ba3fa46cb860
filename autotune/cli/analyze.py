"""``autotune analyze``: why kernels are as fast as they are, and how much memory they take."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from autotune.cli import analyze_roofline, analyzed, options
from autotune.cli.analyze_goldilocks import goldilocks
from autotune.cli.analyze_stability import stability
from autotune.cli.analyze_trace import trace
from autotune.cli.analyzed import print_json, print_sheets
from autotune.cli.output import make_console, say
from autotune.cli.shape_options import TOKENS, ShapeOptions
from autotune.cli.shapes import describe
from autotune.shape import AttentionShape

analyze = typer.Typer(
    help="Derive, measure and count why kernels are as fast as they are.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

ROOFLINE_SEQ: Final = {"cpu": "128,512,1024", "cuda": "1024,4096,16384"}
MEMORY_SEQ: Final = "128,...,65536"

Seq = Annotated[
    str | None, typer.Option("--seq", help="Lengths: 1024, 512,1024 or 128,...,16384 [default: as the command says].")
]
Batch = Annotated[int | None, typer.Option("--batch", help="Sequences [default: 1].")]
RooflineBatch = Annotated[
    int | None, typer.Option("--batch", help=f"Sequences [default: 1; on a GPU max(1, {TOKENS} // seq)].")
]
Heads = Annotated[int | None, typer.Option("--heads", help="Query heads [default: 8; on a GPU 16].")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", help="KV heads [default: as many as --heads].")]
HeadDim = Annotated[int | None, typer.Option("--head-dim", help="Head dimension [default: 64; on a GPU 128].")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="float16, bfloat16 or float32 [default: float32; on a GPU bfloat16].")
]
Causal = Annotated[bool, typer.Option("--causal/--no-causal", help="Mask the future.")]
Measure = Annotated[bool, typer.Option("--measure/--no-measure", help="Time kernels, or derive alone.")]
Ncu = Annotated[bool, typer.Option("--ncu", help="Count the memory's bytes with Nsight Compute, beside the model.")]
RocprofCounters = Annotated[
    Path | None, typer.Option("--rocprof-counters", metavar="FILE", help="Write the counter file for rocprof.")
]
RocprofResults = Annotated[
    list[Path] | None,
    typer.Option("--rocprof-results", metavar="CSV", help="Show the counters that rocprof wrote; may be repeated."),
]
Seconds = Annotated[float, typer.Option("--seconds", min=1.0, help="No run that would take longer is made.")]


@dataclass(frozen=True, slots=True)
class Problem:
    """The options that describe the shapes, as they were given."""

    seq: Seq = None
    batch: Batch = None
    heads: Heads = None
    kv_heads: KvHeads = None
    head_dim: HeadDim = None
    dtype: Dtype = None
    causal: Causal = False

    def shapes(self, kind: str, lengths: str, batch: int | None = 1) -> list[AttentionShape]:
        """One shape for each length; what was not given is the assignment's problem, and on a GPU a usual one.

        Without a ``batch`` that is usual, it follows from the length.
        """
        heads, width, dtype = (16, 128, "bfloat16") if kind == "cuda" else (8, 64, "float32")
        query_heads = heads if self.heads is None else self.heads
        sequences = batch if self.batch is None else self.batch
        given = ShapeOptions(
            seq=self.seq or lengths,
            batch=None if sequences is None else str(sequences),
            heads=query_heads,
            kv_heads=query_heads if self.kv_heads is None else self.kv_heads,
            head_dim=width if self.head_dim is None else self.head_dim,
            dtype=self.dtype or dtype,
            causal=self.causal,
        )
        found = [shape for _, shape in describe(given).problems if isinstance(shape, AttentionShape)]
        return sorted(found, key=lambda shape: shape.seq_q)


@dataclass(frozen=True, slots=True)
class RooflineProblem(Problem):
    """As a roofline has them, whose kernels are to fill a GPU."""

    batch: RooflineBatch = None


def _takes(problem: type[Problem]) -> Callable[[options.Command], options.Command]:
    """Give a command these options in place of its parameter ``problem``."""
    return lambda command: options.with_options(command, "problem", problem)


@analyze.callback()
def choose(context: typer.Context) -> None:
    """Show the help where no analysis is named, as ``autotune`` alone does: Typer's own refusal has one line."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@analyze.command()
@_takes(RooflineProblem)
def roofline(
    *,
    problem: RooflineProblem,
    device: analyzed.Where = None,
    measure: Measure = True,
    figure: analyzed.Figure = None,
    ncu: Ncu = False,
    rocprof_counters: RocprofCounters = None,
    rocprof_results: RocprofResults = None,
    as_json: options.Json = False,
) -> None:
    """Derive FLOPs, bytes and intensity, measure the device's ceilings, and place every kernel under them.

    The lengths are 128, 512 and 1024, on a GPU 1024, 4096 and 16384.
    """
    from autotune.analysis import processor, rocprof, sheets

    console = make_console(as_json)
    if rocprof_counters is not None:
        rocprof.write_counter_file(rocprof_counters)
        console.print(f"wrote {rocprof_counters}; next: rocprof -i {rocprof_counters} -o counters.csv COMMAND")
    if rocprof_results:
        counters = rocprof.read_results(rocprof_results)
        print_sheets(console, [sheets.rocprof_sheet(counters)])
        print_json(as_json, {"rocprof": counters})
    if rocprof_counters is not None or rocprof_results:
        return
    kind = processor.choose_kind(device)
    shapes = problem.shapes(kind, ROOFLINE_SEQ[kind], None if kind == "cuda" else 1)
    asked = analyze_roofline.check(
        shapes, kind, device=device, measure=measure, figure=figure, ncu=ncu, keeps_batch=problem.batch is not None
    )
    analyze_roofline.show(console, analyze_roofline.measure(asked), as_json=as_json)


@analyze.command()
@_takes(Problem)
def memory(
    *, problem: Problem, device: analyzed.Where = None, seconds: Seconds = 20.0, as_json: options.Json = False
) -> None:
    """Predict and measure how much memory attention takes beside its inputs: O(S^2), and fused O(S).

    The lengths are 128 to 65536. What would not fit the free memory, or would take too long, is predicted alone.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which reads it once, tells every step
    from autotune.analysis import processor, sheets
    from autotune.analysis.memory import measure_peaks, method, score_matrix

    kind = processor.choose_kind(device)
    shapes = problem.shapes(kind, MEMORY_SEQ)
    here = processor.read_processor(kind)
    console = make_console(as_json)
    print_sheets(console, [sheets.score_sheet(shapes)])
    peaks, is_interrupted = analyzed.keep(measure_peaks(shapes, here, seconds=seconds, on_step=say))
    print_sheets(console, [sheets.peak_sheet(peaks, method(here))])
    scores = [score_matrix(shape) for shape in shapes]
    found = {"machine": here, "method": method(here), "scores": scores, "peaks": peaks}
    print_json(as_json, found | {"interrupted": is_interrupted})
    analyzed.end(console, is_interrupted=is_interrupted)


for command in (stability, trace, goldilocks):
    analyze.command()(command)
