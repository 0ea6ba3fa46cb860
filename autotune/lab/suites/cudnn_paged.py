"""The notebook on paged attention through cuDNN's frontend: its problem, its page table, its tolerance.

fp16, batch 4, 12 heads, 1024 positions of 64, pages of 64, causal; against torch's SDPA in fp32.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from autotune import platforms, sheets
from autotune.dispatch import TunedKernel, get_kernel
from autotune.errors import BaselineUnavailableError
from autotune.kernels.baselines.cudnn.calls import BEST, FIRST, paged
from autotune.kernels.baselines.cudnn.problem import INSTALL, Problem, build_graph
from autotune.kernels.baselines.gaudi import FlatPaged, InitialPaged
from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs
from autotune.lab.bench.entrants import Check, Entrant, make_comparison, measure, of_baseline, of_served, served_notes
from autotune.lab.bench.machines import Machine
from autotune.lab.suites.suite import Suite, SuiteSheet
from autotune.shape import PagedShape

ATOL: Final = 5e-3
RTOL: Final = 3e-3

COLUMNS: Final = (
    sheets.text("implementation"),
    sheets.number("queries"),
    sheets.timing(),
    sheets.number("error", ".1e"),
    sheets.text(f"within {ATOL:g} + {RTOL:g} |SDPA|"),
    sheets.size("extra memory"),
)
GRAPH_COLUMNS: Final = (sheets.text("frontend"), sheets.text("result"))
GRAPH_TITLE: Final = "cuDNN's graph, built and validated by its frontend"
PLANS: Final = "plans need cuDNN 9.5 and a GPU from sm_80 on"
REFERENCE: Final = "error: the largest one against torch's SDPA in float32, causal; pages lie in random order"
ON_CPU: Final = (
    "reduced: cuDNN needs an NVIDIA GPU, so Gaudi's PagedAttentions stand in its place, which are plain torch and take "
    "one query a sequence, the last, that sees all keys"
)

SEED: Final = 0


@dataclass(frozen=True, slots=True)
class CudnnSetting:
    """The notebook's sizes."""

    batch: int = 4
    heads: int = 12
    seq: int = 1024
    head_dim: int = 64
    page_size: int = 64
    dtype: str = "float16"

    @property
    def columns(self) -> int:
        return -(-self.seq // self.page_size)

    def shape(self, queries: int) -> PagedShape:
        return PagedShape(seq_q=queries, max_context=self.seq, layout="HND", **self._alike)

    def graph_problem(self) -> Problem:
        row, page = self.heads * self.head_dim, self.page_size * self.head_dim
        cache = (self.heads * page, page, self.head_dim)
        return Problem(
            **self._alike,
            kv_heads=self.heads,
            seq_q=self.seq,
            seq_kv=self.columns * self.page_size,
            head_dim_v=self.head_dim,
            scale=self.head_dim**-0.5,
            causal=True,
            pages=self.batch * self.columns,
            q_strides=(self.seq * row, self.head_dim, row),
            k_strides=cache,
            v_strides=cache,
        )

    @property
    def _alike(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("batch", "heads", "head_dim", "page_size", "dtype")}


@dataclass(frozen=True, slots=True)
class PagedTensors:
    """Queries ``[B, S, H, D]``, containers of keys and values ``[pages, H, page, D]`` (HND), the page table int32
    ``[B, n]``, lengths int32 ``[B]``, and torch's answer in fp32 ``[B, S, H, D]``."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    seq_lens: torch.Tensor
    reference: torch.Tensor

    @property
    def cache(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.k_cache, self.v_cache, self.page_table, self.seq_lens


def make_tensors(setting: CudnnSetting, device: str) -> PagedTensors:
    """Cut contiguous K and V into pages, and put these into random places of their containers."""
    generator = torch.Generator(device=device).manual_seed(SEED)
    sizes = (setting.batch, setting.seq, setting.heads, setting.head_dim)  # BSHD in memory, BHSD by strides
    dtype, columns = getattr(torch, setting.dtype), setting.columns
    q, k, v = (torch.randn(sizes, generator=generator, device=device).to(dtype) for _ in range(3))
    places = torch.randperm(setting.batch * columns, generator=generator, device=device).view(setting.batch, columns)
    k_cache, v_cache = (cut_into_pages(tensor, places, setting.page_size) for tensor in (k, v))
    seq_lens = torch.full((setting.batch,), setting.seq, dtype=torch.int32, device=device)
    wide_q, wide_k, wide_v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
    reference = scaled_dot_product_attention(wide_q, wide_k, wide_v, is_causal=True).transpose(1, 2)
    return PagedTensors(q, k_cache, v_cache, places.int(), seq_lens, reference)


def cut_into_pages(tensor: torch.Tensor, places: torch.Tensor, page_size: int) -> torch.Tensor:
    """Cut ``[B, S, H, D]`` into ``[pages, H, page, D]``, each page where ``places [B, n]`` says; 0 behind the end."""
    batch, seq, heads, width = tensor.shape
    columns = places.shape[1]
    padded = torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, columns * page_size - seq))
    pages = padded.view(batch * columns, page_size, heads, width).transpose(1, 2)
    container = torch.empty_like(pages, memory_format=torch.contiguous_format)
    container[places.flatten()] = pages
    return container


OLDEST: Final = "sm_80"  # that cuDNN has paged attention for


def measure_cudnn_paged(machine: Machine, setting: CudnnSetting | None = None) -> Iterator[SuiteSheet]:
    """Validate the graph on a CPU, and measure times and errors of what runs there."""
    used = setting or CudnnSetting()
    if machine.kind == "cpu":
        yield validate_graph(used)
    measured = _on_cpu if machine.kind == "cpu" else _on_gpu
    machine.on_step("racing over pages, and torch's SDPA as their reference")
    yield measured(machine, used, make_tensors(used, machine.kind))


def validate_graph(setting: CudnnSetting) -> SuiteSheet:
    """Let cuDNN's frontend validate the graph; it needs neither cuDNN nor a GPU for that."""

    def sheet(version: str | None, result: str, *failures: str) -> SuiteSheet:
        return SuiteSheet(GRAPH_TITLE, GRAPH_COLUMNS, ((version, result),), (PLANS,), failures)

    try:
        import cudnn
    except ImportError as error:
        return sheet(None, f"the frontend is not installed ({error}): {INSTALL}")
    try:
        build_graph(setting.graph_problem())
    except Exception as error:  # the frontend's own errors, and pybind's
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return sheet(str(cudnn.__version__), f"refused: {reason}", f"cuDNN's frontend refuses the graph: {reason}")
    return sheet(str(cudnn.__version__), "valid")


def _on_cpu(machine: Machine, setting: CudnnSetting, tensors: PagedTensors) -> SuiteSheet:
    shape = setting.shape(1)
    inputs = PagedInputs(tensors.q[:, -1:], *tensors.cache, layout="HND", scale=setting.head_dim**-0.5)
    check = tolerance_check(tensors.reference[:, -1:])
    entrants = [of_baseline(baseline, shape, inputs, check) for baseline in (InitialPaged(), FlatPaged())]
    return _sheet(machine, "paged_decode", shape, entrants, f"paged: {shape}", (ON_CPU, REFERENCE))


def _on_gpu(machine: Machine, setting: CudnnSetting, tensors: PagedTensors) -> SuiteSheet:
    shape = setting.shape(setting.seq)
    check = tolerance_check(tensors.reference)
    offsets = torch.arange(setting.batch + 1, dtype=torch.int32, device=machine.kind) * setting.seq
    served = get_kernel(shape, operation="paged_prefill")
    packed = (tensors.q.flatten(0, 1), *tensors.cache, offsets)

    def check_packed(out: torch.Tensor) -> tuple[float, float]:
        return check(out.view_as(tensors.reference))

    entrants = [of_served(served, packed, check_packed), *_cudnn(setting, tensors, check)]
    return _sheet(machine, "paged_prefill", shape, entrants, f"paged: {shape}, causal", (REFERENCE,), served)


def _sheet(
    machine: Machine,
    operation: str,
    shape: Any,
    entrants: list[Entrant],
    title: str,
    notes: tuple[str, ...],
    served: TunedKernel | None = None,
) -> SuiteSheet:
    found = measure(machine, entrants)
    rows = tuple(
        (each.name, shape.seq_q, each.timing, each.error, "" if each.error is None else "yes", each.extra_bytes)
        for each in found.results.values()
    )
    comparison = make_comparison(machine, operation, shape, found, served)
    notes = (*notes, *served_notes({"": served}), *found.absent)
    return SuiteSheet(title, COLUMNS, rows, notes, found.failed, (comparison,))


def _cudnn(setting: CudnnSetting, tensors: PagedTensors, check: Check) -> list[Entrant]:

    def prepare(name: str) -> Callable[[], torch.Tensor]:
        device = platforms.current_device()
        if not device.is_from(OLDEST):
            raise BaselineUnavailableError(f"{device.arch}: paged attention in cuDNN needs {OLDEST} or newer")
        calls = paged(tensors.q, *tensors.cache, layout="HND", scale=setting.head_dim**-0.5)
        calls[name]()
        return calls[name]

    return [Entrant(name, lambda name=name: prepare(name), check) for name in (FIRST, BEST)]  # type: ignore[misc]


def tolerance_check(reference: torch.Tensor) -> Check:
    """Make the notebook's check: it returns the largest error, and how far that may go at its place."""

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


SUITE: Final = Suite(
    "cudnn-paged",
    "paged attention by cuDNN's frontend, against torch's SDPA in float32 (NVIDIA's notebook)",
    measure_cudnn_paged,
    has_comparisons=True,
)
