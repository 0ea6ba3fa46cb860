"""Steps of a server over a pool of tokens laid out as SGLang's, and attention over them in fp64."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch

from autotune.integrations.sglang.token_pool import TokenPoolAttention

# Requests as (tokens, new ones among them).
BATCHES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "decode": ((1, 1), (9, 1), (33, 1)),
    "extend": ((5, 5), (40, 7), (17, 16)),
    "mixed": ((33, 1), (12, 1), (21, 9)),
}
LARGE: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "decode": tuple((900 + 131 * each, 1) for each in range(16)),
    "extend": ((512, 512), (2048, 64), (1000, 333)),
    "mixed": ((2048, 1), (777, 1), (1024, 128)),
}
TOLERANCES: Final = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
FEATURES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "window": {"sliding_window_size": 7},
    "softcap": {"logit_cap": 5.0},
    "sinks": {"sinks": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCase:
    """A step over a layer; ``graph``: by the buffers of CUDA graphs, where it is a decode step."""

    batch: str
    heads: tuple[int, int] = (4, 2)
    width: int = 16
    dtype: torch.dtype = torch.float32
    page_size: int = 16
    feature: str = "plain"
    graph: bool = False
    cache: torch.dtype | None = None  # of the queries

    def __str__(self) -> str:
        heads = "over".join(map(str, self.heads))
        dtype = str(self.dtype).removeprefix("torch.")
        parts = (self.batch, self.feature, heads, self.width, dtype, f"pages-of-{self.page_size}")
        return "-".join(map(str, parts)) + ("-graph" if self.graph else "") + (f"-{self.cache}" if self.cache else "")


class PlainPool:
    """Keys and values of one layer, NaN where no token is."""

    def __init__(self, case: PoolCase, tokens: int, device: str) -> None:
        sizes = (tokens, case.heads[1], case.width)
        dtype = case.cache or case.dtype
        self._buffers = [torch.full(sizes, math.nan, device=device).to(dtype) for _ in "kv"]

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self._buffers[0]

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self._buffers[1]

    def set_kv_buffer(self, layer: Any, loc: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *scales: Any) -> None:
        for buffer, tokens in zip(self._buffers, (k, v), strict=True):
            write(buffer, loc, tokens)


def write(buffer: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor) -> None:
    """Store tokens; torch stores no 8-bit floats by index, but bytes."""
    tokens = tokens.to(buffer.dtype)
    if buffer.itemsize == 1:
        buffer, tokens = buffer.view(torch.uint8), tokens.view(torch.uint8)
    buffer[places] = tokens


def layer_of(case: PoolCase, **replaced: Any) -> Any:
    """Return what a backend reads of a ``RadixAttention``."""
    given: dict[str, Any] = {"tp_q_head_num": case.heads[0], "tp_k_head_num": case.heads[1], "qk_head_dim": case.width}
    given |= {"v_head_dim": case.width, "scaling": case.width**-0.5, "layer_id": 0, "logit_cap": 0.0}
    given |= {"sliding_window_size": -1, "is_cross_attention": False, "attn_type": "decoder", "use_irope": False}
    given |= {"logit_capping_method": "tanh", "xai_temperature_len": -1, "k_scale": None, "v_scale": None}
    return SimpleNamespace(**given | replaced)


def runner_of(case: PoolCase, req_to_token: torch.Tensor, pool: Any) -> Any:
    return SimpleNamespace(
        token_to_kv_pool=pool,
        req_to_token_pool=SimpleNamespace(req_to_token=req_to_token),
        page_size=case.page_size,
        use_mla_backend=False,
        model_config=SimpleNamespace(is_encoder_decoder=False),
    )


def batch_of_step(mode: str, **replaced: Any) -> Any:
    """Return what a backend reads of a ``ForwardBatch``."""
    given = {"forward_mode": SimpleNamespace(name=mode), "spec_info": None, "encoder_lens": None}
    return SimpleNamespace(**given | {"seq_lens_cpu": None} | replaced)


def failure(
    case: PoolCase,
    device: str,
    backend_class: type[TokenPoolAttention] = TokenPoolAttention,
    make_pool: Callable[[PoolCase, int, str], Any] | None = None,
) -> str | None:
    """Return how a layer's output differs from attention in fp64, None if it is within the tolerance.

    The backend reads what ``make_pool`` returns, and does not write: all tokens are there.
    """
    torch.manual_seed(11)
    sizes = (LARGE if device == "cuda" else BATCHES)[case.batch]
    heads, kv_heads = case.heads
    states = [[_random(case, rows, count, device) for rows, count in ((new, heads), (keys, kv_heads), (keys, kv_heads))]
              for keys, new in sizes]  # fmt: skip
    if case.cache is not None:  # keys and values that it holds
        states = [[q, *(each.to(case.cache).to(case.dtype) for each in kv)] for q, *kv in states]
    width = -(-max(keys for keys, _ in sizes) // case.page_size) + 1
    pages = (torch.randperm(len(sizes) * width, device=device) + 1).view(len(sizes), width)
    places = (pages[..., None] * case.page_size + torch.arange(case.page_size, device=device)).flatten(1)
    req_to_token = torch.zeros(len(sizes) + 2, places.shape[1], dtype=torch.int32, device=device)
    requests = torch.arange(len(sizes), 0, -1, device=device)  # rows of the table in no order of the batch
    req_to_token[requests] = places.int()
    pool = (make_pool or PlainPool)(case, (len(sizes) * width + 1) * case.page_size, device)
    options = dict(FEATURES[case.feature])
    sinks = torch.linspace(-1, 1, heads, device=device) if options.pop("sinks", False) else None
    layer = layer_of(case, **options)
    backend = backend_class(runner_of(case, req_to_token, pool))
    for (keys, new), row, (_, k, v) in zip(sizes, places, states, strict=True):
        there = row[: keys - new if make_pool is None else keys]
        for buffer, tokens in ((pool.get_key_buffer(0), k), (pool.get_value_buffer(0), v)):
            write(buffer, there, tokens[: len(there)])
    lengths, added = (torch.tensor(each, device=device) for each in zip(*sizes, strict=True))
    step = batch_of_step(
        "DECODE" if case.batch == "decode" else "EXTEND",
        seq_lens=lengths,
        seq_lens_cpu=lengths.cpu(),
        extend_seq_lens=added.int(),
        req_pool_indices=requests,
        out_cache_loc=torch.cat([row[keys - new : keys] for (keys, new), row in zip(sizes, places, strict=True)]),
    )
    if case.graph:
        backend.init_cuda_graph_state(len(sizes) + 1, len(sizes) + 1)
        backend.init_forward_metadata_out_graph(step)
    else:
        backend.init_forward_metadata(step)
    q = torch.cat([each[0] for each in states]).flatten(1)
    k, v = (torch.cat([each[part][keys - new :] for (keys, new), each in zip(sizes, states, strict=True)])
            for part in (1, 2))  # fmt: skip
    forward = backend.forward_decode if case.batch == "decode" else backend.forward_extend
    found = (
        forward(q, k, v, layer, step, save_kv_cache=make_pool is None, sinks=sinks).view(-1, heads, case.width).double()
    )
    expected = torch.cat([_truth(case, layer, sinks, *each) for each in states])
    tolerance = TOLERANCES[case.dtype]
    if not bool(found.isfinite().all()):
        return "not finite"
    worst = ((found - expected).abs() - tolerance * expected.abs()).max().item()
    return f"off by {worst}, more than {tolerance}" if worst > tolerance else None


def _truth(
    case: PoolCase, layer: Any, sinks: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    group = case.heads[0] // case.heads[1]
    k, v = (each.double().repeat_interleave(group, dim=1).transpose(0, 1) for each in (k, v))
    scores = q.double().transpose(0, 1) @ k.transpose(1, 2) * layer.scaling
    if layer.logit_cap:
        scores = layer.logit_cap * torch.tanh(scores / layer.logit_cap)
    places = torch.arange(k.shape[1], device=q.device)
    distance = places[-q.shape[0] :, None] - places
    hidden = distance < 0
    if layer.sliding_window_size >= 0:
        hidden = hidden | (distance > layer.sliding_window_size)
    scores = scores.masked_fill(hidden, -math.inf)
    total = scores.logsumexp(-1)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.double()[:, None])
    found: torch.Tensor = ((scores - total[..., None]).exp() @ v).transpose(0, 1)
    return found


def _random(case: PoolCase, rows: int, heads: int, device: str) -> torch.Tensor:
    return torch.randn(rows, heads, case.width, device=device).to(case.dtype)
