"""The flat PagedAttention of vLLM on Gaudi: one list of the pages in use, a softmax in each, rescaled per sequence.

It is ``flat_pa`` of vllm-hpu-extension with the softmax of its ``pipelined_pa`` (50e10ea, November 2024), which today's
vllm-project/vllm-gaudi has too, written anew from its description. Short sequences pay for their own pages only, and
the sequences are put together as the splits of flash-decoding are. Plain torch, for CPU, CUDA and HPU alike; not
verified on the last.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from autotune.errors import UsageError
from autotune.kernels.baselines.gaudi.pages import Call, PagedBaseline, used_pages

if TYPE_CHECKING:
    from autotune.kernels.paged_decode.inputs import Inputs


class FlatBlocks(NamedTuple):
    """A batch's blocks, one a page in use, sequence by sequence, and behind them those that fill the bucket.

    ``pages`` int64 ``[N]``; ``groups`` int64 ``[N]``, the sequence of each, and ``B`` for padding; ``mapping``
    ``[N, B]``, one-hot in the queries' dtype, rows of padding 0; ``bias`` fp32 ``[N, page]``, 0 on tokens, -inf behind.
    """

    pages: torch.Tensor
    groups: torch.Tensor
    mapping: torch.Tensor
    bias: torch.Tensor


def build_blocks(
    page_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    page_size: int,
    dtype: torch.dtype,
    bucket: int = 1,
    padding_page: int = 0,
) -> FlatBlocks:
    """List the blocks of a ``page_table [B, max_pages]``, padded to buckets of ``bucket`` blocks, one bucket at least.

    Gaudi compiles anew for every number of blocks, hence the buckets (128 blocks is vLLM's step). ``padding_page`` is
    what the others point to: its first slot is read and must be finite.

    Raises:
        UsageError: ``bucket`` is less than 1.
    """
    if bucket < 1:
        raise UsageError(f"bucket={bucket} is not allowed; expected at least 1 block")
    batch = seq_lens.shape[0]
    used = used_pages(page_table, seq_lens, page_size=page_size)
    count = used.page.shape[0]
    padding = (0, max(1, -(-count // bucket)) * bucket - count)
    groups = torch.nn.functional.pad(used.sequence, padding, value=batch)
    tokens = torch.nn.functional.pad(used.tokens, padding, value=1)  # of none, the block's maximum would be -inf
    is_token = torch.arange(page_size, device=page_table.device) < tokens[:, None]
    return FlatBlocks(
        pages=torch.nn.functional.pad(used.page, padding, value=padding_page),
        groups=groups,
        mapping=torch.nn.functional.one_hot(groups, batch + 1)[:, :batch].to(dtype),
        bias=torch.zeros(is_token.shape, device=page_table.device).masked_fill(~is_token, -torch.inf),
    )


def flat_paged_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, blocks: FlatBlocks, *, scale: float
) -> torch.Tensor:
    """Attend with ``q [B, H, D]`` over ``k_cache [pages, page, H_kv, D]`` and ``v_cache [pages, page, H_kv, D_v]``.

    vLLM keeps the same memory as ``[pages * page, H_kv, D]``. Slots behind a sequence's end are read in its last page,
    multiplied by 0 and must therefore be finite. The softmax is in fp32 (vLLM's ``fp32_softmax``), all else in the
    inputs' dtype. Returns ``[B, H, D_v]``, 0 for a sequence without blocks.
    """
    batch, heads, head_dim = q.shape
    kv_heads = k_cache.shape[2]
    keys, values = (cache.index_select(0, blocks.pages).transpose(1, 2) for cache in (k_cache, v_cache))
    queries = (blocks.mapping @ (q * scale).flatten(1)).view(-1, kv_heads, heads // kv_heads, head_dim)

    scores = (queries @ keys.mT).float() + blocks.bias[:, None, None, :]
    block_max = scores.amax(-1)
    weights = torch.exp(scores - block_max[..., None])
    attended = weights.to(values.dtype) @ values

    rescale = _rescale(block_max, weights.sum(-1), blocks)
    attended = attended * rescale[..., None].to(attended.dtype)
    return (blocks.mapping.mT @ attended.flatten(1)).view(batch, heads, -1)


def _rescale(block_max: torch.Tensor, block_sum: torch.Tensor, blocks: FlatBlocks) -> torch.Tensor:
    """Return the factors ``[N, ...]`` by which the results of a sequence's blocks add up to its attention."""
    batch = blocks.mapping.shape[1]
    group = blocks.groups.view(-1, *[1] * (block_max.ndim - 1)).expand_as(block_max)
    group_max = block_max.new_full((batch + 1, *block_max.shape[1:]), -torch.inf)
    group_max = group_max.scatter_reduce(0, group, block_max, "amax").gather(0, group)
    adjustment = torch.exp(block_max - group_max)

    block_sum = block_sum * adjustment
    mapping = blocks.mapping.float()
    group_sum = (mapping @ (mapping.mT @ block_sum.flatten(1))).view_as(block_sum)
    return adjustment / torch.maximum(group_sum, block_sum)  # the sum of padding's group is 0


@dataclass(frozen=True)
class FlatPaged(PagedBaseline):
    """The flat PagedAttention as a baseline. The blocks are listed once, as vLLM does it for each step.

    ``bucket`` of 1 pads nothing; what it would cost on Gaudi is ``build_blocks``'s to tell.
    """

    bucket: int = 1
    name: str = "gaudi flat paged"

    def _bind(
        self, inputs: "Inputs", k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> tuple[Call, tuple[torch.Tensor, ...]]:
        blocks = build_blocks(
            inputs.page_table, inputs.seq_lens, page_size=k_cache.shape[1], dtype=inputs.q.dtype, bucket=self.bucket
        )

        def call() -> torch.Tensor:
            return flat_paged_attention(inputs.q[:, 0], k_cache, v_cache, blocks, scale=inputs.scale)

        return call, (k_cache, v_cache)
