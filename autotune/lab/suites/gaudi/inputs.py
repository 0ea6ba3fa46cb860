"""The notebook's setting: sizes, context lengths, and a pool of blocks in random order."""

from dataclasses import dataclass
from typing import Final

import torch

from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs
from autotune.shape import ITEM_BYTES, PagedShape

SEED: Final = 42  # of the context lengths


@dataclass(frozen=True, slots=True)
class GaudiSetting:
    """The notebook's sizes, and its pool of ``pool_blocks`` blocks."""

    batch: int = 32
    heads: int = 32
    kv_heads: int = 32
    seq: int = 1024
    head_dim: int = 128
    page_size: int = 128
    pool_blocks: int = 1024
    dtype: str = "bfloat16"

    @property
    def columns(self) -> int:
        """Blocks of the longest sequence that there may be."""
        return -(-self.seq // self.page_size)

    @property
    def block_bytes(self) -> int:
        """K and V of a block."""
        return 2 * self.page_size * self.kv_heads * self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def padded_bytes(self) -> int:
        """K and V of a batch whose sequences all have ``columns`` blocks."""
        return self.batch * self.columns * self.block_bytes

    def shape(self, lengths: torch.Tensor) -> PagedShape:
        """The problem with these context lengths."""
        return PagedShape(
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.kv_heads,
            max_context=self.seq,
            mean_context=max(1, round(float(lengths.float().mean()))),
            head_dim=self.head_dim,
            page_size=self.page_size,
            dtype=self.dtype,
        )

    def __str__(self) -> str:
        return (
            f"batch {self.batch}, seq {self.seq}, {self.heads}/{self.kv_heads} heads of {self.head_dim}, "
            f"blocks of {self.page_size}, {self.dtype}"
        )


SETTING: Final = GaudiSetting()
CPU_SETTING: Final = GaudiSetting(batch=8, pool_blocks=8 * SETTING.columns, dtype="float32")


def draw_lengths(setting: GaudiSetting) -> torch.Tensor:
    """Draw context lengths int32 ``[batch]`` from 1 to ``seq``; a smaller batch has the first of the notebook's."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randint(1, setting.seq + 1, (max(SETTING.batch, setting.batch),), generator=generator)
    return drawn[: setting.batch].int()


def make_inputs(setting: GaudiSetting, lengths: torch.Tensor, device: str) -> PagedInputs:
    """Make random queries and a pool whose blocks lie in random order, filled behind the end of sequences too."""
    generator = torch.Generator(device=device).manual_seed(SEED)
    dtype = getattr(torch, setting.dtype)
    sizes = (setting.pool_blocks, setting.page_size, setting.kv_heads, setting.head_dim)
    q = torch.empty(setting.batch, 1, setting.heads, setting.head_dim, dtype=dtype, device=device)
    k_cache, v_cache = (torch.empty(sizes, dtype=dtype, device=device) for _ in range(2))
    for tensor in (q, k_cache, v_cache):
        tensor.normal_(generator=generator)
    order = torch.randperm(setting.pool_blocks, generator=generator, device=device)
    table = order[: setting.batch * setting.columns].view(setting.batch, setting.columns).int()
    return PagedInputs(
        q,
        k_cache,
        v_cache,
        table,
        lengths.to(device),
        layout="NHD",
        scale=setting.head_dim**-0.5,
        window=None,
        softcap=None,
        sinks=None,
        alibi_slopes=None,
    )
