"""Plans cuDNN graphs on a GPU and keeps what was planned: per thread, because cuDNN's handles are of one thread."""

import statistics
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from weakref import WeakValueDictionary

import torch

from autotune.errors import BaselineUnavailableError
from autotune.kernels.baselines.cudnn.problem import Problem, build_graph, version_text
from autotune.platforms import platform_here

MAX_KEPT: Final = 32  # planned graphs
SAMPLES: Final = 5
FLUSH_BYTES: Final = 256 * 2**20  # or twice the L2; writing it takes longer than issuing what is timed after it

Operands = Mapping[int, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionPlan:
    """One way to run a graph, built. One stream at a time may run it."""

    graph: Any
    index: int
    name: str
    workspace_bytes: int
    handle: Any
    device: torch.device
    _workspaces: WeakValueDictionary[str, torch.Tensor] = field(init=False, default_factory=WeakValueDictionary)

    def workspace(self) -> torch.Tensor:
        """Return the memory that its runs need: the same tensor at each access, as long as one is kept."""
        found = self._workspaces.get(self.name)
        if found is None:
            found = torch.empty(max(self.workspace_bytes, 1), dtype=torch.uint8, device=self.device)
            self._workspaces[self.name] = found
        return found

    def run(self, operands: Operands, workspace: torch.Tensor) -> None:
        """Launch on the current stream; a CUDA graph may hold the launch, as long as the workspace is kept."""
        import cudnn

        # Addresses: the frontend would compare a tensor's own sizes with the declared ones, which are rounded up.
        addresses = {uid: tensor.data_ptr() for uid, tensor in operands.items()}
        with torch.cuda.device(self.device):
            cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
            self.graph.execute_plan_at_index(addresses, workspace, index=self.index, handle=self.handle)


class Planned:
    """The plans of one graph on one device, in the order of cuDNN's heuristics.

    Raises:
        BaselineUnavailableError: cuDNN has no plan for the problem here, or a capture is under way before one was made.
    """

    def __init__(self, problem: Problem, device: torch.device) -> None:
        import cudnn

        _refuse_capture()
        self._device = device
        self._first: ExecutionPlan | None = None
        self._best: ExecutionPlan | None = None
        modes = [cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK]
        with torch.cuda.device(device):
            self._handle = _handle(device)
            try:
                self._graph = build_graph(problem, self._handle)
                self._graph.build_operation_graph()
                self._graph.create_execution_plans(modes)
                self._graph.check_support()
            except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError, ImportError) as error:
                version = version_text(cudnn.backend_version())
                raise BaselineUnavailableError(f"cuDNN {version} refuses: {error}") from error

    def first(self) -> ExecutionPlan:
        """Return the first of cuDNN's proposals that can be built."""
        if self._first is None:
            _refuse_capture()
            self._first = next(filter(None, map(self._build, range(self._graph.get_execution_plan_count()))), None)
            if self._first is None:
                raise BaselineUnavailableError("cuDNN proposes plans, but none can be built")
        return self._first

    def best(self, operands: Operands) -> ExecutionPlan:
        """Return the fastest plan over these operands, which the search writes to; its workspace is its own."""
        if self._best is None:
            _refuse_capture()
            first = replace(self.first())
            later = range(first.index + 1, self._graph.get_execution_plan_count())
            plans = [first, *filter(None, map(self._build, later))]
            times = [(_time_us(plan, operands), plan) for plan in plans] if len(plans) > 1 else [(0.0, first)]
            timed = [(time, plan) for time, plan in times if time is not None]
            if not timed:
                raise BaselineUnavailableError(f"cuDNN has {len(plans)} plans, and none runs")
            self._best = min(timed, key=lambda entry: entry[0])[1]
        return self._best

    def _build(self, index: int) -> ExecutionPlan | None:
        graph = self._graph
        try:
            with torch.cuda.device(self._device):
                graph.build_plan_at_index(index)
                size = graph.get_workspace_size_plan_at_index(index)
                name = graph.get_plan_name_at_index(index)
        except Exception:  # frontends differ in what they raise; a plan that cannot be built is none
            return None
        return ExecutionPlan(graph, index, name, size, self._handle, self._device)


class _Kept(threading.local):
    def __init__(self) -> None:
        self.handles: dict[torch.device, Any] = {}
        self.planned: OrderedDict[tuple[Problem, torch.device], Planned] = OrderedDict()


_KEPT: Final = _Kept()


def planned(problem: Problem, device: torch.device) -> Planned:
    """Return the plans of a problem on a device, made at this thread's first call."""
    key = (problem, device)
    found = _KEPT.planned.get(key)
    if found is None:
        found = _KEPT.planned[key] = Planned(problem, device)
        if len(_KEPT.planned) > MAX_KEPT:
            _KEPT.planned.popitem(last=False)
    _KEPT.planned.move_to_end(key)  # those that are used are dropped last
    return found


def _refuse_capture() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise BaselineUnavailableError("cuDNN plans at the first call, which no CUDA graph can hold: call it before")


def _handle(device: torch.device) -> Any:
    import cudnn

    if device not in _KEPT.handles:
        _KEPT.handles[device] = cudnn.create_handle()  # belongs to the current device
    return _KEPT.handles[device]


def _time_us(plan: ExecutionPlan, operands: Operands) -> float | None:
    """Return the median microseconds of a plan from a cold L2, by graph replay, or None if it does not run."""
    size = max(FLUSH_BYTES, 2 * torch.cuda.get_device_properties(plan.device).L2_cache_size)
    samples: list[float] = []
    try:
        with torch.cuda.device(plan.device):
            workspace = plan.workspace()
            plan.run(operands, workspace)
            torch.cuda.synchronize()
            platform = platform_here()
            replay = platform.capture(lambda: plan.run(operands, workspace))
            flush = torch.empty(size, dtype=torch.uint8, device=plan.device)
            for _ in range(SAMPLES + 1):
                flush.zero_()
                samples.append(platform.measure_us(replay))
    except Exception:  # as above; one that broke the context breaks this too
        torch.cuda.synchronize()
        return None
    return statistics.median(samples[1:])
