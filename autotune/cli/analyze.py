"""``autotune analyze``: why kernels are as fast as they are, and how much memory they take."""

import json
import os
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from autotune.cli import options
from autotune.cli.analyze_goldilocks import goldilocks
from autotune.cli.analyze_stability import stability
from autotune.cli.analyze_trace import trace
from autotune.cli.analyzed import print_sheets
from autotune.cli.output import make_console
from autotune.cli.shape_options import TOKENS, parse_sizes
from autotune.errors import UsageError
from autotune.shape import AttentionShape

if TYPE_CHECKING:
    pass

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
Batch = Annotated[
    int | None, typer.Option("--batch", help=f"Sequences [default: 1; of a roofline on a GPU {TOKENS} // seq].")
]
Heads = Annotated[int | None, typer.Option("--heads", help="Query heads [default: 8; on a GPU 16].")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", help="KV heads [default: as many as --heads].")]
HeadDim = Annotated[int | None, typer.Option("--head-dim", help="Head dimension [default: 64; on a GPU 128].")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="float16, bfloat16 or float32 [default: float32; on a GPU bfloat16].")
]
Causal = Annotated[bool, typer.Option("--causal/--no-causal", help="Mask the future.")]
Where = Annotated[
    str | None, typer.Option("--device", metavar="cpu|cuda", help="Where to measure [default: what is here].")
]
Figure = Annotated[Path | None, typer.Option("--figure", metavar="FILE", help="Draw it: FILE.png or FILE.svg.")]
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

    def shapes(self, kind: str, lengths: str, tokens: int = 0) -> list[AttentionShape]:
        """One shape for each length; what was not given is the assignment's problem, and on a GPU a usual one."""
        is_gpu = kind == "cuda"
        heads, width, dtype = (16, 128, "bfloat16") if is_gpu else (8, 64, "float32")
        query_heads = heads if self.heads is None else self.heads
        found = parse_sizes(self.seq or lengths, "seq")
        return [
            AttentionShape(
                batch=max(1, tokens // max(1, seq)) if self.batch is None else self.batch,
                heads=query_heads,
                kv_heads=query_heads if self.kv_heads is None else self.kv_heads,
                seq_q=seq,
                head_dim=width if self.head_dim is None else self.head_dim,
                dtype=self.dtype or dtype,
                causal=self.causal,
            )
            for seq in sorted(found)
        ]


def _takes_problem(command: options.Command) -> options.Command:
    return options.with_options(command, "problem", Problem)


@analyze.callback()
def choose(context: typer.Context) -> None:
    """Show the help where no analysis is named: Typer's own refusal would be an error of one line."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@analyze.command()
@_takes_problem
def roofline(
    *,
    problem: Problem,
    device: Where = None,
    measure: Measure = True,
    figure: Figure = None,
    ncu: Ncu = False,
    rocprof_counters: RocprofCounters = None,
    rocprof_results: RocprofResults = None,
    as_json: options.Json = False,
) -> None:
    """Derive FLOPs, bytes and intensity, measure the device's ceilings, and place every kernel under them.

    The lengths are 128, 512 and 1024, on a GPU 1024, 4096 and 16384.
    """
    from autotune.analysis import rocprof, sheets

    console = make_console(as_json)
    if rocprof_counters is not None:
        rocprof.write_counter_file(rocprof_counters)
        console.print(f"wrote {rocprof_counters}; next: rocprof -i {rocprof_counters} -o counters.csv COMMAND")
    if rocprof_results:
        counters = rocprof.read_results(rocprof_results)
        print_sheets(console, [sheets.rocprof_sheet(counters)])
        _print_json(as_json, {"rocprof": counters})
    if rocprof_counters is None and not rocprof_results:
        _roofline(console, problem, device, measure, figure, ncu, as_json)


def _roofline(
    console: Console,
    problem: Problem,
    device: str | None,
    measure: bool,
    figure: Path | None,
    ncu: bool,
    as_json: bool,
) -> None:
    from autotune.analysis import derivation, machine, sheets
    from autotune.report.roofline_figure import check_figure, draw_roofline

    kind = machine.choose_kind(device)
    shapes = problem.shapes(kind, ROOFLINE_SEQ[kind], TOKENS if kind == "cuda" else 0)
    if figure is not None:
        if not measure:
            raise UsageError("--figure needs measured ceilings: it and --no-measure exclude each other")
        check_figure(figure)
    if ncu and (kind == "cpu" or not measure):
        raise UsageError("--ncu counts on an NVIDIA GPU: it takes neither --device cpu nor --no-measure")
    here = machine.read_machine(kind) if measure else None
    print_sheets(console, sheets.derivation_sheets(shapes, here))
    data: dict[str, Any] = derivation.derivation_data(shapes)
    if here is None:
        claims = derivation.claims(shapes)
    else:
        from autotune.analysis.ceilings import measure_ceilings
        from autotune.analysis.roofline import measure_points, points_data

        ceilings = measure_ceilings(here, shapes[0].dtype)
        print_sheets(console, [sheets.ceiling_sheet(ceilings)])
        points = [point for shape in shapes for point in measure_points(shape, here)]
        print_sheets(console, [sheets.point_sheet(points, ceilings)])
        claims = derivation.claims(shapes, ceilings)
        data |= {"ceilings": ceilings, "ridge": ceilings.ridge, "points": points_data(points, ceilings)}
        if figure is not None:
            draw_roofline(points, ceilings, figure)
            console.print(f"wrote {figure}")
    print_sheets(console, [sheets.claim_sheet(claims)])
    if ncu and here is not None:
        from autotune.analysis.counters import compare_with_ncu

        found = [
            item for shape in shapes for item in compare_with_ncu(shape, here, keeps_batch=problem.batch is not None)
        ]
        print_sheets(console, [sheets.counter_sheet(found)])
        data["ncu"] = [asdict(item) | {"deviation": item.deviation} for item in found]
    _print_json(as_json, data | {"claims": claims})


@analyze.command()
@_takes_problem
def memory(*, problem: Problem, device: Where = None, seconds: Seconds = 20.0, as_json: options.Json = False) -> None:
    """Predict and measure how much memory attention takes beside its inputs: O(S^2), and fused O(S).

    The lengths are 128 to 65536. What would not fit the free memory, or would take too long, is predicted alone.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which reads it once, tells every step
    from autotune.analysis import machine, sheets
    from autotune.analysis.memory import measure_peaks, method, score_matrix

    kind = machine.choose_kind(device)
    shapes = problem.shapes(kind, MEMORY_SEQ)
    here = machine.read_machine(kind)
    console = make_console(as_json)
    print_sheets(console, [sheets.score_sheet(shapes)])
    peaks = list(measure_peaks(shapes, here, seconds=seconds))
    print_sheets(console, [sheets.peak_sheet(peaks, method(here))])
    scores = [score_matrix(shape) for shape in shapes]
    _print_json(as_json, {"machine": here, "method": method(here), "scores": scores, "peaks": peaks})


def _print_json(as_json: bool, data: dict[str, Any]) -> None:
    if as_json:
        print(json.dumps(data, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    """Dataclasses as their fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is no plain data")


for command in (stability, trace, goldilocks):
    analyze.command()(command)
