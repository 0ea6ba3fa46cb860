"""The parts that both PagedAttentions of Gaudi share: their limits, the pages in use, and a copy of those alone."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from autotune.kernels.baselines.baseline import OverCopies, refuse_unless_ready
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
        return next((f"{name}=True: PagedAttention has none here" for name in asked), None)

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
