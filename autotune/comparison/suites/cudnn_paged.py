"""The notebook on paged attention through cuDNN's frontend: its problem, its page table, its tolerance.

fp16, batch 4, 12 heads, 1024 positions of 64, pages of 64, causal; against torch's SDPA in fp32.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from autotune.comparison.suites.contenders import (
    Contender,
    make_comparison,
    measure,
    of_baseline,
    of_served,
    served_notes,
)
from autotune.comparison.suites.machine import Machine
from autotune.comparison.suites.suite import Column, Row, Suite, Table
from autotune.dispatch import get_kernel
from autotune.errors import BaselineUnavailableError
from autotune.executor import BaselineResult
from autotune.kernels.baselines.cudnn.calls import BEST, FIRST, paged
from autotune.kernels.baselines.cudnn.graph import build_graph
from autotune.kernels.baselines.cudnn.problem import INSTALL, Problem
from autotune.kernels.baselines.gaudi import FlatPaged, InitialPaged
from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs
from autotune.shape import PagedShape

SEED: Final = 0
ATOL: Final = 5e-3
RTOL: Final = 3e-3
CAPABILITY: Final = (8, 0)  # that paged attention in cuDNN needs

COLUMNS: Final = (
    Column("implementation"),
    Column("queries", "count"),
    Column("time", "time"),
    Column("error", "error"),
    Column(f"within {ATOL:g} + {RTOL:g} |SDPA|"),
    Column("extra memory", "bytes"),
)
GRAPH_COLUMNS: Final = (Column("frontend"), Column("result"))
REFERENCE: Final = "error: the largest one against torch's SDPA in float32, causal; pages lie in random order"
ON_CPU: Final = (
    "reduced: cuDNN needs an NVIDIA GPU, so Gaudi's PagedAttentions stand in its place, which are plain torch and take "
    "one query a sequence, the last, that sees all keys"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the notebook sets."""

    batch: int = 4
    heads: int = 12
    seq: int = 1024
    head_dim: int = 64
    page_size: int = 64
    dtype: str = "float16"

    def shape(self, queries: int) -> PagedShape:
        """The problem with so many queries of each sequence."""
        return PagedShape(
            batch=self.batch,
            heads=self.heads,
            seq_q=queries,
            max_context=self.seq,
            head_dim=self.head_dim,
            page_size=self.page_size,
            dtype=self.dtype,
            layout="HND",
        )


@dataclass(frozen=True, slots=True)
class Tensors:
    """Queries ``[B, S, H, D]``, containers of keys and values ``[pages, H, page, D]`` (HND), the page table int32
    ``[B, n]``, lengths int32 ``[B]``, and torch's answer in fp32 ``[B, S, H, D]``."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    seq_lens: torch.Tensor
    reference: torch.Tensor


def measure_cudnn_paged(machine: Machine, setting: Setting | None = None) -> Iterator[Table]:
    """The graph's validation on a CPU, and the times and errors of what runs there."""
    used = setting or Setting()
    if machine.kind == "cpu":
        yield validate_graph(used)
    race = _race_on_cpu if machine.kind == "cpu" else _race_on_gpu
    machine.on_step("racing over pages, and torch's SDPA as their reference")
    yield race(machine, used, make_tensors(used, machine.kind))


def make_tensors(setting: Setting, device: str) -> Tensors:
    """Contiguous K and V cut into pages, which are put into random places of their containers."""
    generator = torch.Generator(device=device).manual_seed(SEED)
    sizes = (setting.batch, setting.seq, setting.heads, setting.head_dim)  # BSHD in memory, BHSD by strides
    dtype = getattr(torch, setting.dtype)
    q, k, v = (torch.randn(sizes, generator=generator, device=device).to(dtype) for _ in range(3))
    columns = -(-setting.seq // setting.page_size)
    places = torch.randperm(setting.batch * columns, generator=generator, device=device).view(setting.batch, columns)
    k_cache, v_cache = (_cut_into_pages(tensor, places, setting.page_size) for tensor in (k, v))
    seq_lens = torch.full((setting.batch,), setting.seq, dtype=torch.int32, device=device)
    wide_q, wide_k, wide_v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
    reference = scaled_dot_product_attention(wide_q, wide_k, wide_v, is_causal=True).transpose(1, 2)
    return Tensors(q, k_cache, v_cache, places.int(), seq_lens, reference)


def _cut_into_pages(tensor: torch.Tensor, places: torch.Tensor, page_size: int) -> torch.Tensor:
    """``[B, S, H, D]`` as ``[pages, H, page, D]``, each page where ``places [B, n]`` says; 0 behind the end."""
    batch, seq, heads, width = tensor.shape
    columns = places.shape[1]
    padded = torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, columns * page_size - seq))
    pages = padded.view(batch * columns, page_size, heads, width).transpose(1, 2)
    container = torch.empty_like(pages, memory_format=torch.contiguous_format)
    container[places.flatten()] = pages
    return container


def validate_graph(setting: Setting) -> Table:
    """What cuDNN's frontend says of the graph; it needs neither cuDNN nor a GPU for that."""
    title = "cuDNN's graph, built and validated by its frontend"
    note = "plans need cuDNN 9.5 and a GPU from sm_80 on"
    try:
        import cudnn
    except ImportError as error:
        return Table(title, GRAPH_COLUMNS, ((None, f"the frontend is not installed ({error}): {INSTALL}"),), (note,))
    try:
        build_graph(_graph_problem(setting))
    except Exception as error:  # the frontend's own errors, and pybind's
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        failure = f"cuDNN's frontend refuses the graph: {reason}"
        return Table(title, GRAPH_COLUMNS, ((str(cudnn.__version__), f"refused: {reason}"),), (note,), (failure,))
    return Table(title, GRAPH_COLUMNS, ((str(cudnn.__version__), "valid"),), (note,))


def _graph_problem(setting: Setting) -> Problem:
    row, page = setting.heads * setting.head_dim, setting.page_size * setting.head_dim
    queries = (setting.seq * row, setting.head_dim, row)
    cache = (setting.heads * page, page, setting.head_dim)
    columns = -(-setting.seq // setting.page_size)
    return Problem(
        batch=setting.batch,
        heads=setting.heads,
        kv_heads=setting.heads,
        seq_q=setting.seq,
        seq_kv=columns * setting.page_size,
        head_dim=setting.head_dim,
        head_dim_v=setting.head_dim,
        dtype=setting.dtype,
        scale=setting.head_dim**-0.5,
        causal=True,
        page_size=setting.page_size,
        pages=setting.batch * columns,
        q_strides=queries,
        k_strides=cache,
        v_strides=cache,
    )


def _race_on_cpu(machine: Machine, setting: Setting, tensors: Tensors) -> Table:
    shape = setting.shape(1)
    inputs = PagedInputs(
        tensors.q[:, -1:],
        tensors.k_cache,
        tensors.v_cache,
        tensors.page_table,
        tensors.seq_lens,
        layout="HND",
        scale=setting.head_dim**-0.5,
        window=None,
        softcap=None,
        sinks=None,
        alibi_slopes=None,
    )
    check = _checker(tensors.reference[:, -1:])
    baselines = (InitialPaged(), FlatPaged())
    found = measure(machine, [of_baseline(baseline, shape, inputs, check) for baseline in baselines])
    comparison = make_comparison(machine, "paged_decode", shape, found)
    rows = tuple(_row(result, 1) for result in found.results.values())
    notes = (ON_CPU, REFERENCE, *found.absent)
    return Table(f"paged: {shape}", COLUMNS, rows, notes, found.failed, (comparison,))


def _race_on_gpu(machine: Machine, setting: Setting, tensors: Tensors) -> Table:
    shape = setting.shape(setting.seq)
    check = _checker(tensors.reference)
    offsets = torch.arange(setting.batch + 1, dtype=torch.int32, device=machine.kind) * setting.seq
    served = get_kernel(shape, operation="paged_prefill")
    packed = (tensors.q.flatten(0, 1), tensors.k_cache, tensors.v_cache, tensors.page_table, tensors.seq_lens, offsets)

    def check_packed(out: torch.Tensor) -> tuple[float, float]:
        return check(out.view_as(tensors.reference))

    contenders = [of_served(served, packed, check_packed), *_cudnn(setting, tensors, check)]
    found = measure(machine, contenders)
    comparison = make_comparison(machine, "paged_prefill", shape, found, served)
    rows = tuple(_row(result, setting.seq) for result in found.results.values())
    notes = (REFERENCE, *served_notes({"": served}), *found.absent)
    return Table(f"paged: {shape}, causal", COLUMNS, rows, notes, found.failed, (comparison,))


def _cudnn(setting: Setting, tensors: Tensors, check: Callable[[torch.Tensor], tuple[float, float]]) -> list[Contender]:
    """cuDNN's first plan and its fastest."""

    def prepare(name: str) -> Callable[[], torch.Tensor]:
        found = torch.cuda.get_device_capability()
        if torch.version.hip is None and found < CAPABILITY:
            needed = ".".join(map(str, CAPABILITY))
            raise BaselineUnavailableError(f"compute capability {found[0]}.{found[1]}: paged attention needs {needed}")
        calls = paged(
            tensors.q,
            tensors.k_cache,
            tensors.v_cache,
            tensors.page_table,
            tensors.seq_lens,
            layout="HND",
            scale=setting.head_dim**-0.5,
        )
        calls[name]()
        return calls[name]

    return [Contender(name, lambda name=name: prepare(name), check) for name in (FIRST, BEST)]  # type: ignore[misc]


def _checker(reference: torch.Tensor) -> Callable[[torch.Tensor], tuple[float, float]]:
    """The notebook's judgement: the largest error, and how far it may go at that place."""

    def check(out: torch.Tensor) -> tuple[float, float]:
        error = (out.float() - reference).abs()
        allowed = ATOL + RTOL * reference.abs()
        is_within = bool((error <= allowed).all())
        place = int((error if is_within else error - allowed).argmax())
        found, limit = float(error.flatten()[place]), float(allowed.flatten()[place])
        if not is_within:
            raise BaselineUnavailableError(f"error {found:.3g} where {limit:.3g} is allowed")
        return found, limit

    return check


def _row(result: BaselineResult, queries: int) -> Row:
    within = "yes" if result.error is not None else ""
    return result.name, queries, result.timing, result.error, within, result.extra_bytes


SUITE: Final = Suite(
    "cudnn-paged",
    "paged attention by cuDNN's frontend, against torch's SDPA in float32 (NVIDIA's notebook)",
    measure_cudnn_paged,
    has_comparisons=True,
)
