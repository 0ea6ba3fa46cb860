"""Batches as a server has them, over a cache laid out as vLLM lays it, and attention over them in fp64.

The cache's sizes and orders are those of ``vllm/v1/kv_cache_layout.py`` (0.33.0): logical ``[layers, blocks, kv_heads,
block_size, D + D_v]``, in a physical order of these axes. The lengths, heads and tolerances of the cases on a GPU are
those of vLLM's own tests of its backends; the tests are ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch

from autotune.integrations.vllm.limits import quantized_type
from autotune.integrations.vllm.paged_batch import batch_of
from autotune.integrations.vllm.paged_layer import PagedLayer

ORDERS: Final = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
LAYERS: Final = 2
TOLERANCES: Final = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
# Requests as (keys, queries among them), and the sizes of a batch as vLLM pads it for a CUDA graph.
BATCHES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "decode": ((1, 1), (9, 1), (33, 1)),
    "prefill": ((5, 5), (24, 24)),
    "chunk": ((40, 7), (17, 16)),
    "mixed": ((33, 1), (12, 1), (21, 9), (6, 6)),
    "speculated": ((20, 3), (35, 3)),
}
LARGE: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "small decode": ((32, 1), (40, 1)),
    "small prefill": ((32, 8), (40, 8)),
    "mixed small": ((32, 1), (40, 1), (48, 5), (56, 5)),
    "medium decode": tuple((length, 1) for length in (1024, 1057, 900, 1300, 768, 2000, 512, 1024)),
    "medium prefill": ((256, 16), (512, 16), (1024, 16), (2048, 16)),
    "mixed medium": ((512, 1), (1024, 1), (2048, 1), (512, 7), (1024, 7), (2048, 7)),
    "large decode": tuple((2048 + 37 * each, 1) for each in range(32)),
    "single decode": ((4096, 1),),
    "single prefill": ((4096, 64),),
    "whole prompts": ((777, 777), (1024, 1024)),
    "speculated": ((1024, 4), (2048, 4), (96, 4)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCase:
    """A batch over a layer; ``feature`` is one of ``FEATURES``, ``padding`` rows and requests as of a CUDA graph."""

    batch: str
    heads: tuple[int, int] = (4, 2)
    width: int = 16
    dtype: torch.dtype = torch.float32
    cache: str = "auto"
    order: str = "LBNHC"
    feature: str = "plain"
    block_size: int = 16
    padding: int = 0
    scales: tuple[float | tuple[float, ...], ...] = (0.5, 0.25)  # of keys and of values, one or one a KV head

    def __str__(self) -> str:
        heads = "over".join(map(str, self.heads))
        parts = [self.batch, self.feature, heads, self.width, str(self.dtype).removeprefix("torch."), self.cache]
        parts += [self.order, *([f"pages-of-{self.block_size}"] if self.block_size != 16 else [])]
        parts += ["padded"] if self.padding else []
        return "-".join(str(part).replace(" ", "-") for part in parts)


FEATURES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "window": {"sliding_window": 8},
    "window128": {"sliding_window": 128},
    "softcap": {"logits_soft_cap": 5.0},
    "no softcap": {"logits_soft_cap": 0.0},
    "sinks": {"sinks": True},
    "alibi": {"alibi_slopes": True},
    "sinks in windows": {"sinks": True, "sliding_window": 8},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A sequence: ``q [queries, H, D]``, its last tokens, and ``k`` and ``v [keys, H_kv, D]`` of all."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def failure(case: LayerCase, device: str, layer_class: type[PagedLayer] = PagedLayer) -> str | None:
    """Return how a layer's output differs from attention in fp64, None if it is within the tolerance."""
    torch.manual_seed(7)
    requests = [_request(case, *each, device) for each in (LARGE if device == "cuda" else BATCHES)[case.batch]]
    run = LayerRun(case, requests, device, layer_class)
    run.fill(requests)
    run.step(requests)
    return run.failure(requests)


def graph_failure(case: LayerCase, device: str = "cuda") -> str | None:
    """Return how a CUDA graph, replayed over requests of other lengths, differs from attention in fp64, or None."""
    torch.manual_seed(7)
    sizes = LARGE[case.batch]
    requests = [_request(case, *each, device) for each in sizes]
    run = LayerRun(case, requests, device)
    run.fill(requests)
    run.step(requests)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run.step(requests)
    shorter = [_request(case, keys - 20, queries, device) for keys, queries in sizes]
    run.fill(shorter)
    run.renew(shorter)
    run.output.fill_(math.nan)
    graph.replay()
    return run.failure(shorter)


class LayerRun:
    """A layer, its cache, and the buffers of a step, which keep their addresses."""

    def __init__(
        self, case: LayerCase, requests: Sequence[Request], device: str, layer_class: type[PagedLayer] = PagedLayer
    ) -> None:
        self._case, self._device = case, device
        heads, kv_heads = case.heads
        options = dict(FEATURES[case.feature])
        with torch.device(device):
            if "sinks" in options:
                options["sinks"] = torch.linspace(-1, 1, heads)
            if "alibi_slopes" in options:
                options["alibi_slopes"] = [2.0 ** -(each + 1) for each in range(heads)]
            self.layer = layer_class(
                heads, case.width, case.width**-0.5, kv_heads, kv_cache_dtype=case.cache, **options
            )
        self._scales = [torch.tensor(each, device=device) for each in case.scales]
        self._owner = SimpleNamespace(_k_scale=self._scales[0], _v_scale=self._scales[1])
        self._table = self._free_pages([each.k.shape[0] for each in requests])
        self._cache = self._empty_cache(int(self._table.max()) + 1)
        self.renew(requests)

    def _free_pages(self, lengths: Sequence[int]) -> torch.Tensor:
        """Return a table of pages in no order; page 0 is nobody's, as vLLM's is."""
        width = max(-(-length // self._case.block_size) for length in lengths) + 2
        pages = torch.randperm(len(lengths) * width, device=self._device) + 1
        return pages.int().view(len(lengths), width)

    def _empty_cache(self, pages: int) -> torch.Tensor:
        """Return one layer's cache among others: NaN where no token is."""
        case = self._case
        dtype = case.dtype if case.cache == "auto" else torch.uint8
        sizes = (pages, case.heads[1], case.block_size, 2 * case.width)
        return empty_cache(sizes, dtype, case.order, self._device).fill_(math.nan if dtype.is_floating_point else 0x7F)

    def renew(self, requests: Sequence[Request]) -> None:
        """Make a step's buffers, or fill those that are there."""
        case = self._case
        queries = [each.q.shape[0] for each in requests]
        rows = sum(queries) + case.padding
        ends = torch.tensor([0, *queries, *[0] * case.padding], device=self._device).cumsum(0).int()
        lengths = torch.tensor([*[each.k.shape[0] for each in requests], *[0] * case.padding], device=self._device)
        table = self._seen_pages(requests)
        fresh = {"offsets": ends, "lengths": lengths.int(), "table": table, "q": self._packed(requests, "q", rows)}
        if not hasattr(self, "_buffers"):
            self._buffers = fresh
            self.output = torch.full_like(fresh["q"], math.nan)
            return
        for name, buffer in self._buffers.items():
            buffer.copy_(fresh[name])

    def _seen_pages(self, requests: Sequence[Request]) -> torch.Tensor:
        """Return the table of a step: 0 for pages that are not filled, or that windows have left, as vLLM's is."""
        case, window = self._case, self.layer.sliding_window
        table = torch.zeros(len(requests) + case.padding, self._table.shape[1], dtype=torch.int32, device=self._device)
        for row, each in enumerate(requests):
            keys, queries = each.k.shape[0], each.q.shape[0]
            first = 0 if window is None else max(0, keys - queries - window + 1) // case.block_size
            last = -(-keys // case.block_size)
            table[row, first:last] = self._table[row, first:last]
        return table

    def _packed(self, requests: Sequence[Request], name: str, rows: int) -> torch.Tensor:
        """Return all requests' new tokens, and rows of NaN behind them."""
        tokens = torch.cat([getattr(each, name)[-each.q.shape[0] :] for each in requests])
        padding = tokens.new_full((rows - tokens.shape[0], *tokens.shape[1:]), math.nan)
        return torch.cat([tokens, padding])

    def fill(self, requests: Sequence[Request]) -> None:
        """Write all keys and values, and tokens of padding, which are nobody's."""
        for first in (False, True):  # those of the steps before, then those of this one
            slots, tokens = [], []
            for row, each in enumerate(requests):
                keys, past = each.k.shape[0], each.k.shape[0] - each.q.shape[0]
                places = torch.arange(keys, device=self._device)[past if first else 0 : keys if first else past]
                page = self._table[row, places // self._case.block_size].long()
                slots.append(page * self._case.block_size + places % self._case.block_size)
                tokens.append((each.k[places], each.v[places]))
            key, value = (
                torch.cat([*rows, rows[0].new_full((3, *rows[0].shape[1:]), math.nan)])
                for rows in zip(*tokens, strict=True)
            )
            slot_mapping = torch.cat([*slots, torch.full((2,), -1, device=self._device)])
            self.layer.do_kv_cache_update(self._owner, key, value, self._cache, slot_mapping)

    def step(self, requests: Sequence[Request]) -> None:
        buffers = self._buffers
        batch = batch_of(
            common_metadata(
                query_start_loc=buffers["offsets"],
                seq_lens=buffers["lengths"],
                block_table_tensor=buffers["table"],
                num_reqs=buffers["lengths"].shape[0],
                num_actual_tokens=buffers["q"].shape[0],
                max_query_len=max(each.q.shape[0] for each in requests),
            ),
            None,
        )
        result = self.layer.forward(self._owner, buffers["q"], None, None, self._cache, batch, self.output)
        assert result is self.output

    def failure(self, requests: Sequence[Request]) -> str | None:
        expected = torch.cat([self._truth(each) for each in requests])
        found = self.output[: expected.shape[0]].double()
        tolerance = TOLERANCES[self._case.dtype]
        if not bool(found.isfinite().all()):
            return "not finite"
        worst = ((found - expected).abs() - tolerance * expected.abs()).max().item()
        return f"off by {worst}, more than {tolerance}" if worst > tolerance else None

    def _truth(self, request: Request) -> torch.Tensor:
        """Return attention in fp64 over what the cache stands for."""
        layer, case = self.layer, self._case
        group = case.heads[0] // case.heads[1]
        k, v = (self._stored(each, scale) for each, scale in zip((request.k, request.v), self._scales, strict=True))
        k, v = (each.repeat_interleave(group, dim=1).transpose(0, 1) for each in (k, v))
        scores = request.q.double().transpose(0, 1) @ k.transpose(1, 2) * layer.scale
        if layer.logits_soft_cap:
            scores = layer.logits_soft_cap * torch.tanh(scores / layer.logits_soft_cap)
        places = torch.arange(k.shape[1], device=self._device)
        distance = places[-request.q.shape[0] :, None] - places
        if layer.alibi_slopes is not None:
            scores = scores - layer.alibi_slopes.double()[:, None, None] * distance
        hidden = distance < 0
        if layer.sliding_window is not None:
            hidden = hidden | (distance >= layer.sliding_window)
        scores = scores.masked_fill(hidden, -math.inf)
        total = scores.logsumexp(-1)
        if layer.sinks is not None:
            total = torch.logaddexp(total, layer.sinks.double()[:, None])
        return ((scores - total[..., None]).exp() @ v).transpose(0, 1)

    def _stored(self, tokens: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        quantized = quantized_type(self._case.cache)
        if quantized is None:
            return tokens.double()
        scale = scale if scale.numel() == 1 else scale[:, None]
        return (tokens.float() / scale).to(quantized).double() * scale


def empty_cache(sizes: tuple[int, ...], dtype: torch.dtype, order: str, device: str = "cpu") -> torch.Tensor:
    """Return the cache of the second of ``LAYERS``, of logical sizes ``[blocks, kv_heads, block_size, D + D_v]``."""
    axes, all_sizes = ORDERS[order], (LAYERS, *sizes)
    cache = torch.empty([all_sizes[each] for each in axes], dtype=dtype, device=device)
    return cache.permute([axes.index(each) for each in range(5)])[1]


def common_metadata(**replaced: Any) -> Any:
    """Return what a builder reads of vLLM's metadata: a decoding batch of nothing special, but for what is replaced."""
    given = {"causal": True, "mm_req_doc_ranges": None, "rswa_prefix_lens": None, "encoder_seq_lens": None}
    return SimpleNamespace(**given | {"dcp_local_seq_lens": None, "max_seq_len": 1 << 20} | replaced)


def _request(case: LayerCase, keys: int, queries: int, device: str) -> Request:
    def random(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(rows, heads, case.width, device=device).to(case.dtype)

    heads, kv_heads = case.heads
    return Request(q=random(queries, heads), k=random(keys, kv_heads), v=random(keys, kv_heads))
