"""cuDNN's numbers against attention in fp64, for what a GPU is needed; ``make test-gpu`` runs these."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from autotune.errors import BaselineUnavailableError
from autotune.kernels.baselines import cudnn as baseline
from autotune.kernels.baselines.cudnn import plans
from autotune.timing import Stopwatch
from autotune.trial import Policy
from tests.kernels.numerics import dense_attention

ATOL, RTOL = 5e-3, 3e-3
BF16_RTOL = 2**-7  # one unit in the last place of bf16, whose half is what storing the output may cost

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    pytest.importorskip("cudnn", reason='pip install ".[cudnn]"')
    yield
    plans._KEPT.planned.clear()


@dataclass(frozen=True)
class Case:
    """A paged problem; ``queries`` of each sequence are packed where they differ."""

    lengths: tuple[int, ...] = (1024, 1024, 1024, 1024)
    queries: tuple[int, ...] = (1, 1, 1, 1)
    heads: int = 12
    kv_heads: int = 12
    head_dim: int = 64
    page_size: int = 64
    layout: str = "NHD"
    dtype: str = "float16"
    window: int | None = None
    sinks: bool = False


RAGGED = (1024, 700, 65, 331)
CASES = {
    "decode": Case(),
    "decode ragged": Case(lengths=(1024, 700, 1, 65)),
    "decode GQA": Case(heads=32, kv_heads=8, head_dim=128),
    "decode HND": Case(lengths=RAGGED, layout="HND"),
    "decode page 16": Case(lengths=RAGGED, page_size=16),
    "decode bf16": Case(lengths=RAGGED, dtype="bfloat16"),
    "decode window": Case(lengths=RAGGED, window=100),
    "decode of four": Case(lengths=RAGGED, queries=(4,) * 4, kv_heads=4),
    "decode of four, sinks": Case(lengths=RAGGED, queries=(4,) * 4, sinks=True),
    "prefill": Case(queries=(1024,) * 4),
    "prefill bf16 GQA HND page 16": Case(queries=(1024,) * 4, kv_heads=4, layout="HND", page_size=16, dtype="bfloat16"),
    "prefill window": Case(queries=(1024,) * 4, window=100),
    "prefill after a prefix": Case(lengths=(1024, 700, 500, 331), queries=(300,) * 4),
    "prefill packed": Case(lengths=RAGGED, queries=(1024, 600, 65, 31)),
    "prefill packed GQA": Case(lengths=RAGGED, queries=(1, 600, 65, 31), kv_heads=4),
}


@dataclass(frozen=True)
class Inputs:
    q: list[torch.Tensor]  # [S_q, H, D] of each sequence
    k: list[torch.Tensor]
    v: list[torch.Tensor]
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    sinks: torch.Tensor | None


def make_inputs(case: Case) -> Inputs:
    """Sequences, and the same keys and values in shuffled pages; what no key fills is 0, -1 where there is no page."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    dtype = getattr(torch, case.dtype)

    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, device="cuda").to(dtype)

    counts = [-(-length // case.page_size) for length in case.lengths]
    pool = torch.randperm(sum(counts) + 5, generator=generator, device="cuda").int()
    table = torch.full((len(counts), -(-1024 // case.page_size)), -1, dtype=torch.int32, device="cuda")
    q = [draw(count, case.heads, case.head_dim) for count in case.queries]
    k, v = ([draw(length, case.kv_heads, case.head_dim) for length in case.lengths] for _ in range(2))
    caches = torch.zeros(
        (len(pool), 2, case.page_size, case.kv_heads, case.head_dim), dtype=dtype, device="cuda"
    )  # as in FlashInfer
    for sequence, count in enumerate(counts):
        pages = pool[sum(counts[:sequence]) :][:count]
        table[sequence, :count] = pages
        for cache, rows in zip(caches.unbind(1), (k[sequence], v[sequence]), strict=True):
            padded = rows.new_zeros((count * case.page_size, *rows.shape[1:]))
            padded[: len(rows)] = rows
            cache[pages.long()] = padded.view(count, case.page_size, *rows.shape[1:])
    if case.layout == "HND":
        caches = caches.transpose(2, 3).contiguous()
    sinks = torch.randn(case.heads, generator=generator, device="cuda") if case.sinks else None
    return Inputs(q, k, v, caches[:, 0], caches[:, 1], table, sinks)


def expected(case: Case, inputs: Inputs) -> list[torch.Tensor]:
    found = []
    for q, k, v in zip(inputs.q, inputs.k, inputs.v, strict=True):
        out, lse = dense_attention(
            q[None], k[None], v[None], causal=True, window=case.window, scale=case.head_dim**-0.5
        )
        if inputs.sinks is not None:  # [B, H, S]: the share that the keys keep of the softmax
            out = out * torch.sigmoid(lse - inputs.sinks.double()[:, None]).transpose(1, 2)[..., None]
        found.append(out[0])
    return found


def paged_calls(case: Case, inputs: Inputs) -> dict[str, Any]:
    lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda")
    options: dict[str, Any] = {}
    if len(set(case.queries)) == 1:
        q = torch.stack(inputs.q)
    else:
        q = torch.cat(inputs.q)
        offsets = [sum(case.queries[:count]) for count in range(len(case.queries) + 1)]
        options["cu_seqlens_q"] = torch.tensor(offsets, dtype=torch.int32, device="cuda")
        options["max_seqlen_q"] = max(case.queries)
    return baseline.paged(
        q,
        inputs.k_cache,
        inputs.v_cache,
        inputs.page_table,
        lengths,
        layout=case.layout,
        scale=case.head_dim**-0.5,
        window=case.window,
        sinks=inputs.sinks,
        **options,
    )


def assert_near(out: torch.Tensor, truth: list[torch.Tensor], dtype: str) -> None:
    rtol = RTOL if dtype == "float16" else BF16_RTOL
    torch.testing.assert_close(out.double().view(-1, *out.shape[-2:]), torch.cat(truth), atol=ATOL, rtol=rtol)


@pytest.mark.parametrize("name", ["cudnn", "cudnn best plan"])
@pytest.mark.parametrize("case", CASES.values(), ids=[case.replace(" ", "-") for case in CASES])
def test_paged_agrees_with_fp64(case: Case, name: str) -> None:
    inputs = make_inputs(case)
    call = paged_calls(case, inputs)[name]
    truth = expected(case, inputs)
    assert_near(call(), truth, case.dtype)
    assert_near(call(), truth, case.dtype)


DENSE: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "causal GQA": {"causal": True, "kv_heads": 4},
    "causal, more keys": {"causal": True, "seq_q": 300},
    "causal window": {"causal": True, "window": 100},
    "bf16": {"dtype": "bfloat16"},
    "D 128": {"head_dim": 128},
}


@pytest.mark.parametrize("name", ["cudnn", "cudnn best plan"])
@pytest.mark.parametrize("options", DENSE.values(), ids=[case.replace(" ", "-") for case in DENSE])
def test_dense_agrees_with_fp64(options: dict[str, Any], name: str) -> None:
    sizes: dict[str, Any] = {"seq_q": 1024, "kv_heads": 12, "head_dim": 64, "dtype": "float16"} | options
    generator = torch.Generator(device="cuda").manual_seed(0)
    q, k, v = (
        torch.randn(4, length, heads, sizes["head_dim"], generator=generator, device="cuda").to(
            getattr(torch, sizes["dtype"])
        )
        for length, heads in ((sizes["seq_q"], 12), (1024, sizes["kv_heads"]), (1024, sizes["kv_heads"]))
    )
    masks = {"causal": options.get("causal", False), "window": options.get("window")}
    scale = sizes["head_dim"] ** -0.5
    truth, _ = dense_attention(q, k, v, scale=scale, **masks)
    out: Any = baseline.dense(q, k, v, scale=scale, **masks)[name]()
    assert_near(out, list(truth), sizes["dtype"])


@pytest.mark.parametrize("name", ["cudnn", "cudnn best plan"])
def test_a_cuda_graph_holds_the_launch(name: str) -> None:
    case = CASES["decode ragged"]
    inputs = make_inputs(case)
    call = paged_calls(case, inputs)[name]
    out = call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    out.fill_(float("nan"))
    graph.replay()
    assert_near(out, expected(case, inputs), case.dtype)


def test_the_first_call_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["decode"]
    call = paged_calls(case, make_inputs(case))["cudnn"]
    # Only said to be captured: a capture that fails leaves cuDNN's stream behind it unusable.
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(BaselineUnavailableError, match="call it before"):
        call()


def test_a_stopwatch_times_both_and_pools_of_about_one_size_share_a_graph() -> None:
    cases = [replace(CASES["decode"], lengths=(1024, 1024, 1024, length)) for length in (824, 924, 1024)]
    found = [paged_calls(case, make_inputs(case)) for case in cases]
    times = {}
    for name in found[0]:
        with Stopwatch([by_name[name] for by_name in found], Policy()) as stopwatch:
            stopwatch.warm_up()
            times[name] = min(stopwatch.sample() for _ in range(9))
    assert len(plans._KEPT.planned) == 1
    (kept,) = plans._KEPT.planned.values()
    count = kept._graph.get_execution_plan_count()
    print(f"\n{count} plans; {kept.first().name}, best {kept.best({}).name}; microseconds: {times}")
    assert times["cudnn best plan"] < 1.2 * times["cudnn"]
