"""The first PagedAttention that vLLM had on Gaudi: one gather and one product for each column of the block table.

It is ``paged_attention_v1`` of HabanaAI's fork of vLLM and of the first vllm-hpu-extension (e7e0579, September 2024),
written anew from its description: the scores of all columns are joined and masked, one softmax runs over the longest
sequence's pages, and the weighted values of the columns are added. Every sequence pays for the longest. Plain torch,
for CPU, CUDA and HPU alike; not verified on the last.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from autotune.kernels.baselines.gaudi.pages import Call, PagedBaseline

if TYPE_CHECKING:
    from autotune.kernels.paged_decode.inputs import Inputs


def initial_paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    join_values: bool = False,
) -> torch.Tensor:
    """Attend with ``q [B, H, D]`` over ``k_cache [pages, H_kv, D, page]`` and ``v_cache [pages, H_kv, D_v, page]``.

    ``block_table`` is ``[B, columns]``: every entry is a page, and one behind its sequence's end is read, multiplied by
    0 and must therefore be finite. ``join_values`` gathers all values before one product with the weights; otherwise
    each column has its own. The output ``[B, H, D_v]`` of a sequence of length 0 is 0, which upstream does not define.
    """
    batch, heads, head_dim = q.shape
    kv_heads = k_cache.shape[1]
    columns = block_table.unbind(1)
    queries = (q * scale).view(batch, kv_heads, heads // kv_heads, head_dim)
    scores = torch.cat([queries @ k_cache.index_select(0, column) for column in columns], -1)
    position = torch.arange(scores.shape[-1], device=q.device)
    is_hidden = (position >= seq_lens[:, None])[:, None, None, :]
    weights = torch.softmax(scores.masked_fill(is_hidden, torch.finfo(scores.dtype).min), -1)

    values = [v_cache.index_select(0, column) for column in columns]
    if join_values:
        attended = weights @ torch.cat(values, -1).mT
    else:
        # In fp32: upstream adds in the queries' type, which loses digits with every column.
        sizes = (*weights.shape[:3], v_cache.shape[2])
        attended = torch.zeros(sizes, dtype=torch.float32, device=q.device)
        for weight, value in zip(weights.chunk(len(columns), -1), values, strict=True):
            attended += weight @ value.mT
    return attended.to(q.dtype).flatten(1, 2).masked_fill((seq_lens <= 0)[:, None, None], 0.0)


def build_block_table(
    page_table: torch.Tensor, seq_lens: torch.Tensor, *, page_size: int, padding_page: int = 0
) -> torch.Tensor:
    """Return the columns ``[B, columns]`` that the longest sequence needs, one at least, padded with some page."""
    counts = (seq_lens.long().clamp(min=0) + page_size - 1) // page_size
    columns = max(1, int(counts.max()))
    is_used = torch.arange(columns, device=page_table.device) < counts[:, None]
    return torch.where(is_used, page_table[:, :columns].long(), padding_page)


@dataclass(frozen=True)
class InitialPaged(PagedBaseline):
    """The first PagedAttention as a baseline. The block table is trimmed once, as vLLM does it for each step."""

    join_values: bool = False
    name: str = "gaudi initial paged"

    def _bind(
        self, inputs: "Inputs", k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> tuple[Call, tuple[torch.Tensor, ...]]:
        block_table = build_block_table(inputs.page_table, inputs.seq_lens, page_size=k_cache.shape[1])
        caches = k_cache.permute(0, 2, 3, 1).contiguous(), v_cache.permute(0, 2, 3, 1).contiguous()
        options: dict[str, Any] = {"scale": inputs.scale, "join_values": self.join_values}
        return lambda: initial_paged_attention(inputs.q[:, 0], *caches, block_table, inputs.seq_lens, **options), caches
