"""Attention of SGLang's layers over its pool of tokens: all that its backend computes, without a line of SGLang.

A layer's keys are ``[tokens, kv_heads, D]`` and its values ``[tokens, kv_heads, D_v]``; ``page_size`` tokens that lie
together are a page. A request's tokens are numbers of the pool, in its row of ``req_to_token``.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from autotune.errors import UnsupportedCallError, UsageError
from autotune.paged import paged_decode, paged_prefill
from autotune.rounding import power_of_two

EXTENDS: Final = ("EXTEND", "MIXED")
QUANTIZED: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
ADVICE: Final = "choose another --attention-backend"
MEAN_CONTEXT: Final = "AUTOTUNE_SGLANG_MEAN_CONTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBatch:
    """A step: keys of each request, int32 ``[B]``, its pages, int32 ``[B, pages]``, and where its queries begin, int32
    ``[B + 1]``; each has one query without ``offsets``."""

    lengths: torch.Tensor
    page_table: torch.Tensor
    offsets: torch.Tensor | None = None


class TokenPoolAttention:
    """Attention backend of SGLang, made of its model runner.

    Raises:
        UnsupportedCallError: a model or a pool that is not computed; the message names it.
        UsageError: ``AUTOTUNE_SGLANG_MEAN_CONTEXT`` is no number of tokens.
    """

    forward_metadata: PoolBatch | None = None
    needs_cpu_seq_lens: bool = True  # the table of an eager step is as wide as its longest request needs

    def __init__(self, model_runner: Any) -> None:
        _refuse_runner(model_runner)
        self._pool = model_runner.token_to_kv_pool
        self._req_to_token: torch.Tensor = model_runner.req_to_token_pool.req_to_token
        self._page_size: int = model_runner.page_size
        self._one = torch.ones((), dtype=torch.float32, device=self._req_to_token.device)
        self._graphs: PoolBatch | None = None
        self._mean_context = mean_context_of(os.environ)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Make the batch of an eager step.

        Raises:
            UnsupportedCallError: a mode of speculation, or of an encoder and decoder; the message names it.
        """
        mode = _mode_of(forward_batch)
        if mode == "IDLE":
            self.forward_metadata = None
            return
        lengths = forward_batch.seq_lens
        width = self._width(forward_batch)
        offsets = None
        if mode in EXTENDS:
            offsets = torch.zeros(lengths.shape[0] + 1, dtype=torch.int32, device=lengths.device)
            torch.cumsum(forward_batch.extend_seq_lens, 0, dtype=torch.int32, out=offsets[1:])
        table = self._pages(forward_batch, width)
        self.forward_metadata = PoolBatch(lengths=lengths.int(), page_table=table, offsets=offsets)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers that all CUDA graphs of decode steps read."""
        width = -(-self._req_to_token.shape[1] // self._page_size)
        numbers = torch.zeros(max_bs, width + 1, dtype=torch.int32, device=self._req_to_token.device)
        self._graphs = PoolBatch(lengths=numbers[:, 0].clone(), page_table=numbers[:, 1:].clone())

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Fill the buffers of a CUDA graph for a step, before it is captured or replayed.

        Raises:
            UnsupportedCallError: the graph is of another step than of decoding.
        """
        mode = _mode_of(forward_batch)
        if mode in EXTENDS or self._graphs is None:
            raise UnsupportedCallError(
                f"CUDA graphs of forward_mode={mode} are not captured by 'autotune'; turn them off"
            )
        rows = forward_batch.seq_lens.shape[0]
        batch = PoolBatch(lengths=self._graphs.lengths[:rows], page_table=self._graphs.page_table[:rows])
        batch.lengths.copy_(forward_batch.seq_lens)
        width = self._width(forward_batch)
        batch.page_table[:, :width].copy_(self._pages(forward_batch, width))  # behind it no request has tokens
        self.forward_metadata = batch

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Do nothing: the buffers are filled before a replay."""

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1  # of requests that pad a graph: the pool's token 0 is nobody's

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """Compute the new tokens of each request, ``q [T, H * D]``, and return ``[T, H * D_v]``.

        Raises:
            UnsupportedCallError: a layer or a keyword that is not computed; the message names it.
        """
        _refuse_layer(layer, others)
        batch = self.forward_metadata
        assert batch is not None  # SGLang makes no call of an idle step
        if save_kv_cache and k is not None and v is not None:
            scales = (layer.k_scale, layer.v_scale)
            self._pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v, *scales)
        k_cache = self._paged(self._pool.get_key_buffer(layer.layer_id))
        v_cache = self._paged(self._pool.get_value_buffer(layer.layer_id))
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = q.new_empty(q.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        window = layer.sliding_window_size
        options: dict[str, Any] = {
            "scale": layer.scaling,
            "window": None if window is None or window < 0 else window + 1,  # theirs leaves one's own key out
            "softcap": layer.logit_cap or None,
            "sinks": sinks,
            "mean_context": self._mean_context,
            "out": out,
        }
        if k_cache.dtype in QUANTIZED:
            options |= {"k_scale": self._scale(layer.k_scale), "v_scale": self._scale(layer.v_scale)}
        if batch.offsets is None:
            paged_decode(q, k_cache, v_cache, batch.page_table, batch.lengths, **options)
        else:
            paged_prefill(q, k_cache, v_cache, batch.page_table, batch.lengths, batch.offsets, **options)
        return out.view(q.shape[0], -1)

    forward_decode = forward_extend  # one query a request; the step's metadata says which it is

    def _width(self, forward_batch: Any) -> int:
        """Return so many pages that the longest request has room: few numbers, since each is a pick of its own."""
        most = -(-self._req_to_token.shape[1] // self._page_size)
        if forward_batch.seq_lens_cpu is None:
            return most
        longest = max(1, int(forward_batch.seq_lens_cpu.max()))
        return min(most, power_of_two(-(-longest // self._page_size)))

    def _pages(self, forward_batch: Any, width: int) -> torch.Tensor:
        """Return each request's first pages; those behind its tokens may be any."""
        first = self._req_to_token[:, : width * self._page_size : self._page_size]
        rows = first.index_select(0, forward_batch.req_pool_indices)
        return rows.int() if self._page_size == 1 else (rows // self._page_size).int()

    def _paged(self, tokens: torch.Tensor) -> torch.Tensor:
        if tokens.ndim != 3:
            raise UnsupportedCallError(f"the pool's buffer is {tuple(tokens.shape)}; expected [tokens, kv_heads, D]")
        pages = tokens.shape[0] // self._page_size
        return tokens[: pages * self._page_size].view(pages, self._page_size, *tokens.shape[1:])

    def _scale(self, scale: torch.Tensor | None) -> torch.Tensor:
        """Return a layer's scale; SGLang has none where it is 1."""
        return self._one if scale is None else scale.detach().float().reshape(())


def mean_context_of(environment: Mapping[str, str]) -> int | None:
    """Return the hint of a server's mean context, in tokens, that the environment has; None without.

    The table of a CUDA graph has room for the longest request that there can be, which is taken for the mean without a
    hint. It is one number for the server's life, since a graph keeps the kernel that it was captured with.
    """
    value = environment.get(MEAN_CONTEXT, "")
    if not value:
        return None
    if not (value.isascii() and value.isdecimal() and int(value) > 0):
        raise UsageError(f"{MEAN_CONTEXT}={value!r} is not allowed; expected an integer from 1, in tokens")
    return int(value)


def _mode_of(forward_batch: Any) -> str:
    mode: str = forward_batch.forward_mode.name
    if mode not in ("DECODE", "IDLE", *EXTENDS):
        raise UnsupportedCallError(f"forward_mode={mode} is not computed by 'autotune'; {ADVICE}")
    for name in ("spec_info", "encoder_lens"):
        if getattr(forward_batch, name, None) is not None:
            raise UnsupportedCallError(f"{name} is given, and not computed by 'autotune'; {ADVICE}")
    return mode


def _refuse_runner(runner: Any) -> None:
    if getattr(runner, "use_mla_backend", False):
        raise UnsupportedCallError(f"MLA is not computed by 'autotune'; {ADVICE}")
    if runner.model_config.is_encoder_decoder:
        raise UnsupportedCallError(f"models of an encoder and a decoder are not computed by 'autotune'; {ADVICE}")
    if getattr(runner.token_to_kv_pool, "swa_layer_nums", 0):
        raise UnsupportedCallError(
            "a pool of their own for layers of sliding windows is not read by 'autotune'; --disable-hybrid-swa-memory"
        )


def _refuse_layer(layer: Any, others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None and value is not False:
            raise UnsupportedCallError(f"{name} is given, and not computed by 'autotune'; {ADVICE}")
    kind = getattr(layer.attn_type, "value", layer.attn_type)
    if layer.is_cross_attention or kind != "decoder":
        shown = "cross attention" if layer.is_cross_attention else f"attn_type={kind!r}"
        raise UnsupportedCallError(f"{shown} is not computed by 'autotune'; {ADVICE}")
    if layer.use_irope or layer.xai_temperature_len > 0:
        name = "use_irope" if layer.use_irope else "xai_temperature_len"
        raise UnsupportedCallError(f"{name}={getattr(layer, name)} is not computed by 'autotune'; {ADVICE}")
    if layer.logit_cap and layer.logit_capping_method != "tanh":
        raise UnsupportedCallError(
            f"logit_capping_method={layer.logit_capping_method!r} is not computed; expected 'tanh'"
        )
