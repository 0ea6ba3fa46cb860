"""The batch of a step as the layers see it, from vLLM's metadata that all backends share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from autotune.errors import UnsupportedCallError, UsageError

# Fields of vLLM's metadata that change what a query sees; without such a feature they are None.
REFUSED: Final = ("mm_req_doc_ranges", "rswa_prefix_lens", "encoder_seq_lens", "dcp_local_seq_lens")
MEAN_CONTEXT: Final = "autotune_mean_context"  # of vLLM's --additional-config


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """Requests one after another in ``tokens`` rows, padding behind them included.

    ``offsets`` is int32 ``[requests + 1]``, where each one's queries begin; ``lengths`` int32 ``[requests]``, its keys,
    those of its queries included; ``page_table`` int32 ``[requests, pages]``. They are views of vLLM's own buffers,
    which it fills anew before a CUDA graph is replayed. No request has more queries than ``longest``.
    """

    tokens: int
    longest: int
    offsets: torch.Tensor
    lengths: torch.Tensor
    page_table: torch.Tensor
    mean_context: int | None = None

    @property
    def is_decode(self) -> bool:
        """Return if row i is request i's only query: whatever a CUDA graph of this batch is replayed over.

        vLLM replays a graph over batches of no longer queries. Speculated tokens are not of this kind: a graph of their
        most is replayed over fewer, too.
        """
        return self.longest == 1 and self.tokens == self.lengths.shape[0]


def batch_of(metadata: Any, mean_context: int | None) -> PagedBatch:
    """Return the batch of vLLM's ``CommonAttentionMetadata``; reads nothing from the GPU.

    Raises:
        UnsupportedCallError: the batch is not causal, or has a feature that is not computed; the message names it.
    """
    if metadata.causal is not True:
        shown = "a tensor" if isinstance(metadata.causal, torch.Tensor) else metadata.causal
        raise UnsupportedCallError(f"causal={shown} is not computed by CUSTOM; expected True")
    for name in REFUSED:
        if getattr(metadata, name, None) is not None:
            raise UnsupportedCallError(f"{name} is given, and not computed by CUSTOM; choose another backend")
    requests = metadata.num_reqs
    return PagedBatch(
        tokens=metadata.num_actual_tokens,
        longest=metadata.max_query_len,
        offsets=metadata.query_start_loc[: requests + 1],
        lengths=metadata.seq_lens[:requests],
        page_table=metadata.block_table_tensor[:requests],
        mean_context=mean_context,
    )


def mean_context_of(additional_config: object) -> int | None:
    """Return the hint of a server's mean context, in tokens, that ``--additional-config`` has; None without.

    It is one number for the server's life: a hint that follows the batches would ask for other kernels as it moves,
    and a CUDA graph keeps the kernel that it was captured with.
    """
    if not isinstance(additional_config, Mapping) or MEAN_CONTEXT not in additional_config:
        return None
    value = additional_config[MEAN_CONTEXT]
    if type(value) is not int or value < 1:
        raise UsageError(f"{MEAN_CONTEXT}={value!r} is not allowed; expected an integer from 1, in tokens")
    return value
