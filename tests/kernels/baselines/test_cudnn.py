"""The graphs that cuDNN is given, built by its real frontend without a GPU, and the reasons why it is not asked."""

import math
import re
import sys
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.errors import BaselineUnavailableError, InputMismatchError, MissingDependencyError
from autotune.kernels.baselines import cudnn as baseline
from autotune.kernels.baselines.baseline import OverCopies
from autotune.kernels.baselines.cudnn import CUDNN, Cudnn, calls, plans
from autotune.kernels.baselines.cudnn.plans import Planned, planned
from autotune.kernels.baselines.cudnn.problem import Operand, Problem, build_graph, unsupported, version_text
from autotune.kernels.paged_decode.definition import DEFINITION
from autotune.shape import AttentionShape, PagedShape

VALIDATES = (1, 30)  # older frontends ask cuDNN itself, and with it a GPU
NEWEST = 92800

DENSE = Problem(
    batch=4,
    heads=12,
    kv_heads=12,
    seq_q=1024,
    seq_kv=1024,
    head_dim=64,
    head_dim_v=64,
    dtype="float16",
    scale=0.125,
    causal=False,
    q_strides=(1024 * 12 * 64, 64, 12 * 64),
    k_strides=(1024 * 12 * 64, 64, 12 * 64),
    v_strides=(1024 * 12 * 64, 64, 12 * 64),
)
NHD = (64 * 12 * 64, 64, 12 * 64)
DECODE = replace(DENSE, seq_q=1, causal=True, page_size=64, pages=128, k_strides=NHD, v_strides=NHD)
PREFILL = replace(DECODE, seq_q=1024)


@pytest.fixture(scope="module")
def frontend() -> Any:
    found = pytest.importorskip("cudnn", reason="pip install --no-deps 'nvidia-cudnn-frontend>=1.30,<2'")
    version = tuple(map(int, found.__version__.split(".")[:2]))
    if version < VALIDATES:
        pytest.skip(f"frontend {found.__version__} validates no graph without cuDNN")
    return found


PROBLEMS = {
    "dense": DENSE,
    "dense bf16": replace(DENSE, dtype="bfloat16"),
    "dense causal": replace(DENSE, causal=True),
    "dense causal, more keys": replace(DENSE, seq_q=100, causal=True),
    "dense window": replace(DENSE, window=100),
    "dense causal window": replace(DENSE, causal=True, window=100),
    "dense GQA": replace(DENSE, kv_heads=4),
    "dense D 128 over 64": replace(DENSE, head_dim=128, head_dim_v=64),
    "dense [B, H, S, D]": replace(DENSE, q_strides=(12 * 1024 * 64, 1024 * 64, 64)),
    "decode": DECODE,
    "decode bf16": replace(DECODE, dtype="bfloat16"),
    "decode GQA": replace(DECODE, heads=32, kv_heads=8),
    "decode HND": replace(DECODE, k_strides=(12 * 64 * 64, 64 * 64, 64), v_strides=(12 * 64 * 64, 64 * 64, 64)),
    "decode page 1": replace(DECODE, page_size=1),
    "decode window": replace(DECODE, window=100),
    "decode of four": replace(DECODE, seq_q=4),
    "decode of four, sinks": replace(DECODE, seq_q=4, sinks=True),
    "prefill": PREFILL,
    "prefill window": replace(PREFILL, window=100),
    "prefill packed": replace(PREFILL, packed=True),
    "prefill packed GQA": replace(PREFILL, packed=True, kv_heads=2),
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=[name.replace(" ", "-") for name in PROBLEMS])
def test_graph_is_valid_and_nothing_speaks_against_it(frontend: Any, problem: Problem) -> None:
    graph = build_graph(problem)
    assert unsupported(problem, NEWEST) is None
    out = graph.find_tensor(4)
    assert list(out.get_dim()) == [4, problem.heads, problem.seq_q, problem.head_dim_v]
    (node,) = graph.nodes
    assert ("paged_attention_k_table" in node.inputs) == (problem.page_size is not None)
    assert (graph.find_tensor("q").ragged_offset is not None) == problem.packed
    assert (out.ragged_offset is not None) == problem.packed
    assert ("sink_token" in node.inputs) == problem.sinks


@pytest.mark.parametrize(
    ("problem", "left", "right"),
    [
        (DENSE, None, None),
        (replace(DENSE, causal=True), None, 0),
        (replace(DENSE, window=100), 100, 99),
        (replace(DENSE, causal=True, window=100), 100, 0),
        (DECODE, None, None),
        (replace(DECODE, window=100), 100, 0),
        (replace(DECODE, seq_q=2), None, 0),
        (PREFILL, None, 0),
    ],
)
def test_masks_are_bands_that_end_bottom_right(
    frontend: Any, problem: Problem, left: int | None, right: int | None
) -> None:
    params = build_graph(problem).nodes[0].params
    assert params.get("diagonal_band_left_bound") == left
    assert params.get("diagonal_band_right_bound") == right
    if right is not None:
        assert params["diagonal_alignment"].name == "BOTTOM_RIGHT"
    assert bool(params.get("use_padding_mask")) == (problem.page_size is not None)


def test_a_paged_graph_has_tables_lengths_and_containers(frontend: Any) -> None:
    graph = build_graph(replace(PREFILL, seq_q=8, kv_heads=4, k_strides=(64 * 4 * 64, 64, 4 * 64)))
    dims = {name: list(tensor.get_dim()) for name, tensor in graph.tensors.items()}
    strides = {name: list(tensor.get_stride()) for name, tensor in graph.tensors.items()}
    assert dims["k"] == dims["v"] == [128, 4, 64, 64]
    assert strides["k"] == [64 * 4 * 64, 64, 4 * 64, 1]
    assert dims["pages_k"] == dims["pages_v"] == [4, 1, 16, 1]
    assert strides["pages_k"] == [16, 16, 1, 1]
    assert dims["lengths_q"] == dims["lengths_kv"] == [4, 1, 1, 1]
    assert graph.nodes[0].params["paged_attention_max_seq_len_kv"] == 1024


def test_the_frontend_is_asked_what_it_refuses(frontend: Any) -> None:
    for changed in ({"kv_heads": 5}, {"head_dim": 100, "head_dim_v": 100}):
        assert unsupported(replace(DENSE, **changed), NEWEST) is not None  # type: ignore[arg-type]
        with pytest.raises(frontend.cudnnGraphNotSupportedError):
            build_graph(replace(DENSE, **changed))  # type: ignore[arg-type]


REASONS: dict[str, tuple[Problem, int, str]] = {
    "fp32": (replace(DENSE, dtype="float32"), NEWEST, "dtype=float32: cuDNN's attention takes float16 and bfloat16"),
    "fp8 cache": (replace(DECODE, kv_dtype="float8_e4m3fn"), NEWEST, "kv_dtype=float8_e4m3fn: "),
    "odd width": (replace(DENSE, head_dim=100), NEWEST, "head_dim=100: cuDNN takes multiples of 8 up to 256"),
    "wide values": (replace(DECODE, head_dim_v=512), NEWEST, "head_dim_v=512: "),
    "heads": (replace(DENSE, kv_heads=5), NEWEST, "heads=12: cuDNN takes a multiple of kv_heads=5"),
    "page": (replace(DECODE, page_size=48), NEWEST, "page_size=48: cuDNN takes powers of two"),
    "queries": (replace(DENSE, seq_q=2048, causal=True), NEWEST, "seq_q=2048 is more than seq_kv=1024"),
    "strides": (replace(DENSE, k_strides=(786432, 64, 100)), NEWEST, r"of k: cuDNN takes multiples of 8"),
    "softcap": (replace(DECODE, softcap=True), NEWEST, "softcap: "),
    "alibi": (replace(DECODE, alibi=True), NEWEST, "alibi: "),
    "sinks of one query": (replace(DECODE, sinks=True), NEWEST, "sinks with seq_q=1: "),
    "packed dense": (replace(DENSE, packed=True), NEWEST, "packed queries over dense keys"),
    "bad release": (DENSE, 91001, r"cuDNN 9.10.1: the frontend refuses"),
    "old pages": (DECODE, 90400, "paged caches: cuDNN 9.4.0 is too old, 9.5.0 or newer has them"),
    "old masks": (replace(DENSE, causal=True), 90501, "bottom-right masks: cuDNN 9.5.1 is too old"),
    "old packed": (replace(PREFILL, packed=True), 90600, "packed queries over pages: cuDNN 9.6.0 is too old"),
    "old windows": (replace(DENSE, window=9), 90900, "windows: cuDNN 9.9.0 is too old, 9.10.2 or newer has them"),
    "old widths": (replace(DENSE, head_dim=256), 90900, "head dims over 128: "),
    "old sinks": (replace(PREFILL, sinks=True), 91200, "sinks: cuDNN 9.12.0 is too old"),
}


@pytest.mark.parametrize(
    ("problem", "version", "reason"), REASONS.values(), ids=[name.replace(" ", "-") for name in REASONS]
)
def test_what_cudnn_cannot_do_has_a_reason(problem: Problem, version: int, reason: str) -> None:
    found = unsupported(problem, version)
    assert found is not None
    assert reason in found


def test_versions_read_as_people_write_them() -> None:
    assert [version_text(version) for version in (90500, 91002, 91900)] == ["9.5.0", "9.10.2", "9.19.0"]


def paged_shape(**fields: Any) -> PagedShape:
    sizes: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2, "max_context": 64, "head_dim": 64}
    return PagedShape(**{**sizes, "dtype": "float16", **fields})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"layout": "HND", "window": 9}, None),
        ({"sinks": True, "seq_q": 2}, None),
        ({"page_size": 24}, "page_size=24"),
        ({"dtype": "float32"}, "dtype=float32"),
        ({"kv_dtype": "int8"}, "kv_dtype=int8"),
        ({"softcap": True}, "softcap"),
        ({"alibi": True}, "alibi"),
        ({"sinks": True}, "sinks with seq_q=1"),
    ],
)
def test_a_shape_of_pages_is_refused_before_there_is_a_library(fields: dict[str, Any], reason: str | None) -> None:
    for cudnn in CUDNN:
        found = cudnn.unsupported(paged_shape(**fields))
        assert found is None if reason is None else reason in (found or "")


def test_a_dense_shape_is_refused_before_there_is_a_library() -> None:
    shape = AttentionShape(batch=1, heads=4, kv_heads=2, seq_q=40, seq_kv=30, head_dim=64, dtype="float16")
    assert CUDNN[0].unsupported(shape) is None
    assert "seq_q=40 is more than seq_kv=30" in (CUDNN[0].unsupported(replace(shape, causal=True)) or "")
    assert "int" in (CUDNN[0].unsupported(3) or "")


def test_what_is_missing_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = DEFINITION.make_inputs(paged_shape(), seed=0, device="cpu")
    reasons = ('pip install ".[cudnn]"', "cuDNN needs an NVIDIA GPU, and none is here")
    for module, reason in zip((None, SimpleNamespace(backend_version=lambda: NEWEST)), reasons, strict=True):
        monkeypatch.setitem(sys.modules, "cudnn", module)
        assert reason in (CUDNN[0].available() or "")
        with pytest.raises(MissingDependencyError, match=re.escape(reason)):
            CUDNN[0].prepare(paged_shape(), inputs)


def test_tensors_elsewhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace(backend_version=lambda: NEWEST))
    q = torch.zeros(1, 8, 2, 64, dtype=torch.float16)
    with pytest.raises(MissingDependencyError, match="the tensors are on cpu: cuDNN needs an NVIDIA GPU"):
        baseline.dense(q, q, q, causal=False, scale=1.0)["cudnn"]()


def test_dense_baselines_refuse_as_paged_ones_do() -> None:
    q = torch.zeros(1, 8, 2, 64)
    with pytest.raises(BaselineUnavailableError, match="dtype=float32"):
        baseline.dense(q, q, q, causal=False, scale=1.0)["cudnn"]()
    q = torch.zeros(1, 8, 2, 64 + 4, dtype=torch.float16)[..., :64]
    with pytest.raises(BaselineUnavailableError, match=r"strides=.* of q"):
        baseline.dense(q, q, q, causal=False, scale=1.0)["cudnn"]()
    q = torch.zeros(1 + 8 * 2 * 64, dtype=torch.float16)[1:].view(1, 8, 2, 64)
    with pytest.raises(BaselineUnavailableError, match="multiple of 16 bytes"):
        baseline.dense(q, q, q, causal=False, scale=1.0)["cudnn"]()


def test_planning_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(BaselineUnavailableError, match="call it before"):
        planned(DENSE, torch.device("cuda", 0))


class Plans:
    """Stands in for a planned graph: the time of each plan, None where it cannot be built."""

    def __init__(self, *times: float | None) -> None:
        self.times = times
        self.built: list[int] = []

    def __getattr__(self, name: str) -> Any:
        assert name in ("build_operation_graph", "create_execution_plans", "check_support")
        return lambda *_: None

    def get_execution_plan_count(self) -> int:
        return len(self.times)

    def build_plan_at_index(self, index: int) -> None:
        self.built.append(index)
        if self.times[index] is None:
            raise RuntimeError("no such engine")

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return 16 * index

    def get_plan_name_at_index(self, index: int) -> str:
        return f"engine {index}"


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Planned, Plans]]:
    """Plans a graph whose plans take these times, or do not run (infinite)."""

    def make(*times: float | None) -> tuple[Planned, Plans]:
        graph = Plans(*times)
        modes = SimpleNamespace(A=0, B=1, FALLBACK=2)
        stub = SimpleNamespace(heur_mode=modes, create_handle=object, cudnnGraphNotSupportedError=KeyError)
        monkeypatch.setitem(sys.modules, "cudnn", stub)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(plans, "build_graph", lambda problem, handle: graph)
        timed = {index: None if time == math.inf else time for index, time in enumerate(times)}
        monkeypatch.setattr(plans, "_time_us", lambda plan, operands: timed[plan.index])
        return Planned(DENSE, torch.device("cpu")), graph

    return make


def test_the_heuristic_plan_is_the_first_that_can_be_built(plan: Callable[..., tuple[Planned, Plans]]) -> None:
    found, graph = plan(None, 9.0, 5.0)
    assert (found.first().index, found.first().name) == (1, "engine 1")
    assert found.first().workspace().numel() == 16
    assert graph.built == [0, 1]


def test_the_best_plan_is_the_fastest_that_runs(plan: Callable[..., tuple[Planned, Plans]]) -> None:
    found, graph = plan(None, 9.0, math.inf, 5.0, 7.0, None)
    assert found.best({}).index == 3
    assert found.best({}) is found.best({})
    assert found.first().index == 1
    assert sorted(graph.built) == [0, 1, 2, 3, 4, 5]


def test_one_plan_is_the_best_without_a_measurement(plan: Callable[..., tuple[Planned, Plans]]) -> None:
    found, _ = plan(math.inf, None)
    assert found.best({}).index == found.first().index == 0


def test_a_workspace_is_shared_as_long_as_somebody_keeps_it(plan: Callable[..., tuple[Planned, Plans]]) -> None:
    found, _ = plan(None, 9.0)
    first, best = found.first(), found.best({})
    assert first.index == best.index
    kept = [first.workspace(), best.workspace()]
    assert first.workspace() is kept[0]
    assert kept[0].data_ptr() != kept[1].data_ptr()  # each is charged what it needs by itself
    freed = [weakref.ref(workspace) for workspace in kept]
    kept.clear()
    assert [reference() for reference in freed] == [None, None]
    assert first.workspace().numel() == 16


def test_no_plan_at_all_is_said(plan: Callable[..., tuple[Planned, Plans]]) -> None:
    with pytest.raises(BaselineUnavailableError, match="none can be built"):
        plan(None, None)[0].first()
    with pytest.raises(BaselineUnavailableError, match="2 plans, and none runs"):
        plan(math.inf, math.inf)[0].best({})


Launched = list[tuple[str, Problem, dict[int, torch.Tensor]]]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """The launches that would have been made, with their operands; nothing is refused."""
    found: Launched = []
    monkeypatch.setattr(calls, "find_refusal", lambda problem, tensors: None)
    monkeypatch.setattr(Cudnn, "available", lambda self: None)

    class Recorder:
        """A plan that tells what it was run over."""

        def __init__(self, name: str, problem: Problem, operands: dict[int, torch.Tensor], device: object) -> None:
            self.name, self.problem = name, problem

        def workspace(self) -> torch.Tensor:
            return torch.empty(3)

        def run(self, operands: dict[int, torch.Tensor], workspace: torch.Tensor) -> None:
            assert workspace.numel() == 3
            found.append((self.name, self.problem, operands))

    monkeypatch.setattr(calls, "_plan", Recorder)
    return found


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_paged_operands_name_no_page_outside_the_pool(launched: Launched, layout: str) -> None:
    shape = PagedShape(
        batch=3, heads=4, kv_heads=2, seq_q=2, max_context=64, mean_context=30, head_dim=64, layout=layout
    )
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cpu")
    assert int(inputs.page_table.min()) == -1
    call = CUDNN[0].prepare(shape, inputs)
    out = call()
    (name, problem, operands), again = launched
    assert again[1:] == (problem, operands)
    assert not bool(operands[Operand.K].isnan().any())
    assert isinstance(call, OverCopies)
    assert [copy.data_ptr() for copy in call.copies] == [operands[Operand(uid)].data_ptr() for uid in (2, 3)]
    assert (name, out.shape) == ("cudnn", inputs.q.shape)
    table = operands[Operand.PAGES_K]
    used = inputs.page_table >= 0
    assert torch.equal(table[used], inputs.page_table[used])
    assert bool(((table >= 0) & (table < inputs.k_cache.shape[0])).all())
    assert operands[Operand.LENGTHS_Q].tolist() == [2, 2, 2]
    assert operands[Operand.LENGTHS_KV].tolist() == inputs.seq_lens.tolist()
    assert problem.k_strides == (2 * 16 * 2 * 64, *((64, 128) if layout == "NHD" else (1024, 64)))
    assert problem.pages >= inputs.k_cache.shape[0]
    assert problem.pages.bit_count() == 1


def test_packed_queries_are_found_by_their_offsets(launched: Launched) -> None:
    q = torch.zeros(10, 3 * 4, 64, dtype=torch.float16)[:, :4]  # of a fused projection
    cache = torch.zeros(5, 16, 2, 64, dtype=torch.float16)
    lengths = torch.tensor([3, 16], dtype=torch.int32)
    cu_seqlens = torch.tensor([0, 3, 10], dtype=torch.int32)
    table = torch.tensor([[0, -1], [1, 2]], dtype=torch.int32)
    found = baseline.paged(
        q, cache, cache[..., :32], table, lengths, layout="NHD", scale=1.0, cu_seqlens_q=cu_seqlens, max_seqlen_q=7
    )
    out: Any = found["cudnn best plan"]()
    ((_, problem, operands),) = launched
    assert out.shape == (10, 4, 32)
    assert (problem.seq_q, problem.packed, problem.q_strides) == (7, True, (7 * 768, 64, 768))
    assert operands[Operand.LENGTHS_Q].tolist() == [3, 7]
    assert operands[Operand.OFFSETS_Q].tolist() == [0, 3 * 768, 10 * 768]
    assert operands[Operand.OFFSETS_OUT].tolist() == [0, 3 * 128, 10 * 128]
    assert {tensor.dtype for uid, tensor in operands.items() if uid > Operand.OUT} == {torch.int32}
    with pytest.raises(InputMismatchError, match="max_seqlen_q=None; expected a number"):
        baseline.paged(q, cache, cache, table, lengths, layout="NHD", scale=1.0, cu_seqlens_q=cu_seqlens)


def test_plans_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    monkeypatch.setattr(plans, "MAX_KEPT", 2)
    monkeypatch.setattr(plans, "_KEPT", plans._Kept())
    monkeypatch.setattr(plans, "Planned", lambda problem, device: object())
    first, second, third = (replace(DENSE, batch=batch) for batch in (1, 2, 3))
    kept, dropped = planned(first, device), planned(second, device)
    assert planned(first, device) is kept
    planned(third, device)
    assert planned(first, device) is kept
    assert planned(second, device) is not dropped
