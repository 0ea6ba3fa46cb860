"""The two PagedAttentions that vLLM had on Gaudi, in plain torch for CPU, CUDA and HPU; not verified on the last.

The flat one has one list of the pages in use, a softmax in each, rescaled per sequence. It is ``flat_pa`` of
vllm-hpu-extension with the softmax of its ``pipelined_pa`` (50e10ea, November 2024), which today's
vllm-project/vllm-gaudi has too, written anew from its description. Short sequences pay for their own pages only, and
the sequences are put together as the splits of flash-decoding are.

The first one has one gather and one product for each column of the block table. It is ``paged_attention_v1`` of
HabanaAI's fork of vLLM and of the first vllm-hpu-extension (e7e0579, September 2024), written anew from its
description: the scores of all columns are joined and masked, one softmax runs over the longest sequence's pages, and
the weighted values of the columns are added. Every sequence pays for the longest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from autotune.errors import UsageError
from autotune.kernels.baselines.baseline import OverCopies, missing_full_mask, refuse_unless_ready
from autotune.shape import PagedShape

if TYPE_CHECKING:
    from autotune.kernels.paged_decode.inputs import Inputs

Call = Callable[[], torch.Tensor]


class PagedBaseline:
    """One query a sequence over copies of the caches; implements ``Baseline`` for ``PagedShape``."""

    name: str
    is_usual: Final = False
    verified_on_hardware: Final = False

    def available(self) -> str | None:
        return None

    def unsupported(self, shape: Any) -> str | None:
        if not isinstance(shape, PagedShape):
            return f"{type(shape).__name__}: PagedAttention takes paged caches, PagedShape"
        if shape.seq_q != 1:
            return f"seq_q={shape.seq_q}: PagedAttention takes one query a sequence, seq_q=1"
        if shape.kv_dtype != shape.dtype:
            return f"kv_dtype={shape.kv_dtype}: PagedAttention takes caches of the queries' dtype, {shape.dtype}"
        if shape.window is not None:
            return f"window={shape.window}: PagedAttention sees all keys"
        asked = (name for name in ("softcap", "sinks", "alibi") if getattr(shape, name))
        missing = next((f"{name}=True: PagedAttention has none here" for name in asked), None)
        return missing or missing_full_mask("PagedAttention", shape)

    def prepare(self, shape: PagedShape, inputs: "Inputs") -> Call:
        refuse_unless_ready(self, shape)
        used = used_pages(inputs.page_table, inputs.seq_lens, page_size=shape.page_size)
        k_cache, v_cache = (copy_used(cache, used, layout=inputs.layout) for cache in (inputs.k_cache, inputs.v_cache))
        call, copies = self._bind(inputs, k_cache, v_cache)
        return OverCopies(lambda: call()[:, None], copies)

    def _bind(
        self, inputs: "Inputs", k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> tuple[Call, tuple[torch.Tensor, ...]]:
        """Return a call over caches ``[pages, page_size, H_kv, D]``, and these as it reads them."""
        raise NotImplementedError


class UsedPages(NamedTuple):
    """The pages that hold tokens, sequence by sequence, int64 ``[N]`` each: whose, which, and how many tokens."""

    sequence: torch.Tensor
    page: torch.Tensor
    tokens: torch.Tensor


def used_pages(page_table: torch.Tensor, seq_lens: torch.Tensor, *, page_size: int) -> UsedPages:
    """Read a ``page_table [B, max_pages]`` as far as its sequences reach; waits for the device."""
    starts = torch.arange(page_table.shape[1], device=page_table.device) * page_size
    left = seq_lens.long()[:, None] - starts  # tokens of a sequence from each of its pages on
    sequence, place = (left > 0).nonzero(as_tuple=True)
    return UsedPages(sequence, page_table[sequence, place].long(), left[sequence, place].clamp(max=page_size))


def copy_used(cache: torch.Tensor, used: UsedPages, *, layout: str) -> torch.Tensor:
    """Copy a cache as NHD, ``[pages, page_size, H_kv, D]``, with zeros where no sequence has a token.

    Both algorithms read such slots and take them out afterwards, with a weight of 0: what they hold must be finite, as
    it is in vLLM, but not in a pool that was never written to.
    """
    rows = cache if layout == "NHD" else cache.transpose(1, 2)
    pages, page_size = rows.shape[:2]
    filled = torch.zeros(pages, dtype=torch.int64, device=cache.device)
    filled.scatter_reduce_(0, used.page, used.tokens, "amax")  # sequences may share a page
    is_used = torch.arange(page_size, device=cache.device) < filled[:, None]
    return torch.where(is_used[:, :, None, None], rows, 0.0).contiguous()


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
        options: dict[str, Any] = {"page_size": k_cache.shape[1], "dtype": inputs.q.dtype, "bucket": self.bucket}
        blocks = build_blocks(inputs.page_table, inputs.seq_lens, **options)
        caches = k_cache, v_cache
        return lambda: flat_paged_attention(inputs.q[:, 0], *caches, blocks, scale=inputs.scale), caches


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
