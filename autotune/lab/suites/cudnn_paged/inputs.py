"""The notebook's setting, its tensors, and the problem of cuDNN's graph."""

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from autotune.kernels.baselines.cudnn.problem import Problem
from autotune.shape import PagedShape

SEED: Final = 0


@dataclass(frozen=True, slots=True)
class CudnnSetting:
    """The notebook's sizes."""

    batch: int = 4
    heads: int = 12
    seq: int = 1024
    head_dim: int = 64
    page_size: int = 64
    dtype: str = "float16"

    @property
    def columns(self) -> int:
        """Pages of a sequence."""
        return -(-self.seq // self.page_size)

    def shape(self, queries: int) -> PagedShape:
        """The problem with so many queries of each sequence."""
        return PagedShape(
            batch=self.batch,
            heads=self.heads,
            seq_q=queries,
            max_context=self.seq,
            head_dim=self.head_dim,
            page_size=self.page_size,
            dtype=self.dtype,
            layout="HND",
        )

    def graph_problem(self) -> Problem:
        """The problem of cuDNN's graph."""
        row, page = self.heads * self.head_dim, self.page_size * self.head_dim
        cache = (self.heads * page, page, self.head_dim)
        return Problem(
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.heads,
            seq_q=self.seq,
            seq_kv=self.columns * self.page_size,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim,
            dtype=self.dtype,
            scale=self.head_dim**-0.5,
            causal=True,
            page_size=self.page_size,
            pages=self.batch * self.columns,
            q_strides=(self.seq * row, self.head_dim, row),
            k_strides=cache,
            v_strides=cache,
        )


@dataclass(frozen=True, slots=True)
class PagedTensors:
    """Queries ``[B, S, H, D]``, containers of keys and values ``[pages, H, page, D]`` (HND), the page table int32
    ``[B, n]``, lengths int32 ``[B]``, and torch's answer in fp32 ``[B, S, H, D]``."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    seq_lens: torch.Tensor
    reference: torch.Tensor


def make_tensors(setting: CudnnSetting, device: str) -> PagedTensors:
    """Cut contiguous K and V into pages, and put these into random places of their containers."""
    generator = torch.Generator(device=device).manual_seed(SEED)
    sizes = (setting.batch, setting.seq, setting.heads, setting.head_dim)  # BSHD in memory, BHSD by strides
    dtype, columns = getattr(torch, setting.dtype), setting.columns
    q, k, v = (torch.randn(sizes, generator=generator, device=device).to(dtype) for _ in range(3))
    places = torch.randperm(setting.batch * columns, generator=generator, device=device).view(setting.batch, columns)
    k_cache, v_cache = (cut_into_pages(tensor, places, setting.page_size) for tensor in (k, v))
    seq_lens = torch.full((setting.batch,), setting.seq, dtype=torch.int32, device=device)
    wide_q, wide_k, wide_v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
    reference = scaled_dot_product_attention(wide_q, wide_k, wide_v, is_causal=True).transpose(1, 2)
    return PagedTensors(q, k_cache, v_cache, places.int(), seq_lens, reference)


def cut_into_pages(tensor: torch.Tensor, places: torch.Tensor, page_size: int) -> torch.Tensor:
    """Cut ``[B, S, H, D]`` into ``[pages, H, page, D]``, each page where ``places [B, n]`` says; 0 behind the end."""
    batch, seq, heads, width = tensor.shape
    columns = places.shape[1]
    padded = torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, columns * page_size - seq))
    pages = padded.view(batch * columns, page_size, heads, width).transpose(1, 2)
    container = torch.empty_like(pages, memory_format=torch.contiguous_format)
    container[places.flatten()] = pages
    return container
