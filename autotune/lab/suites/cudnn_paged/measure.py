"""The graph's validation without a GPU, and a race over pages against torch's SDPA."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from autotune import platforms
from autotune.dispatch import TunedKernel, get_kernel
from autotune.errors import BaselineUnavailableError
from autotune.kernels.baselines.cudnn.calls import BEST, FIRST, paged
from autotune.kernels.baselines.cudnn.graph import build_graph
from autotune.kernels.baselines.cudnn.problem import INSTALL
from autotune.kernels.baselines.gaudi import FlatPaged, InitialPaged
from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs
from autotune.lab.bench.entrants import (
    Check,
    Entrant,
    make_comparison,
    measure,
    of_baseline,
    of_served,
    served_notes,
)
from autotune.lab.bench.machines import Machine
from autotune.lab.suites.cudnn_paged import words
from autotune.lab.suites.cudnn_paged.inputs import CudnnSetting, PagedTensors, make_tensors
from autotune.lab.suites.cudnn_paged.words import ATOL, RTOL
from autotune.lab.suites.suite import Suite, SuiteSheet

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
        return SuiteSheet(words.GRAPH_TITLE, words.GRAPH_COLUMNS, ((version, result),), (words.PLANS,), failures)

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
    check = tolerance_check(tensors.reference[:, -1:])
    entrants = [of_baseline(baseline, shape, inputs, check) for baseline in (InitialPaged(), FlatPaged())]
    return _sheet(machine, "paged_decode", shape, entrants, f"paged: {shape}", (words.ON_CPU, words.REFERENCE))


def _on_gpu(machine: Machine, setting: CudnnSetting, tensors: PagedTensors) -> SuiteSheet:
    shape = setting.shape(setting.seq)
    check = tolerance_check(tensors.reference)
    offsets = torch.arange(setting.batch + 1, dtype=torch.int32, device=machine.kind) * setting.seq
    served = get_kernel(shape, operation="paged_prefill")
    packed = (tensors.q.flatten(0, 1), tensors.k_cache, tensors.v_cache, tensors.page_table, tensors.seq_lens, offsets)

    def check_packed(out: torch.Tensor) -> tuple[float, float]:
        return check(out.view_as(tensors.reference))

    entrants = [of_served(served, packed, check_packed), *_cudnn(setting, tensors, check)]
    return _sheet(machine, "paged_prefill", shape, entrants, f"paged: {shape}, causal", (words.REFERENCE,), served)


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
    return SuiteSheet(title, words.COLUMNS, rows, notes, found.failed, (comparison,))


def _cudnn(setting: CudnnSetting, tensors: PagedTensors, check: Check) -> list[Entrant]:
    """Enter cuDNN's first plan and its fastest."""

    def prepare(name: str) -> Callable[[], torch.Tensor]:
        device = platforms.current_device()
        if not device.is_from(OLDEST):
            raise BaselineUnavailableError(f"{device.arch}: paged attention in cuDNN needs {OLDEST} or newer")
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
