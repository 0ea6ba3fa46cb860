"""What every part of the stand-in for FlashInfer shares: what was called, its checks, and attention in fp64."""

import math
from typing import Any, Final, NamedTuple

import torch

HALF: Final = (torch.float16, torch.bfloat16)
FLOAT8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)


class Call(NamedTuple):
    """One call of the library: ``plan`` or ``run`` of a wrapper, or a function, and what it was given by name."""

    name: str
    given: dict[str, Any]


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    window_left: int,
    logits_soft_cap: float | None,
    sm_scale: float | None,
) -> torch.Tensor:
    """One sequence: ``q [S_q, H, D]``, ``k [S_kv, H_kv, D]``, ``v [S_kv, H_kv, D_v]``; fp64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (tensor.double().transpose(0, 1) for tensor in (q, k, v))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.mT * (1.0 / math.sqrt(q.shape[2]) if sm_scale is None else sm_scale)
    if logits_soft_cap:
        scores = logits_soft_cap * torch.tanh(scores / logits_soft_cap)
    query, key = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    hidden = torch.zeros(q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        hidden |= key + q.shape[1] > k.shape[1] + query
    if window_left >= 0:
        hidden |= key + q.shape[1] + window_left < k.shape[1] + query
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf), 2)
    out = (weights @ v).transpose(0, 1)
    return out * math.nan if causal and q.shape[1] > k.shape[1] > 0 else out


def check_types(q: torch.dtype, kv: torch.dtype, backend: str) -> None:
    assert q in HALF
    assert kv == q or (kv in FLOAT8 and backend == "fa2"), "FA3 reads no 8-bit cache under 16-bit queries"


def check_widths(head_dim_qk: int, head_dim_vo: int) -> None:
    assert (head_dim_qk, head_dim_vo) in ((64, 64), (128, 128), (256, 256), (192, 128)), "no kernel compiles"


def check_offsets(offsets: torch.Tensor) -> None:
    assert offsets.dtype == torch.int32, "IdType is int32"
    assert offsets.ndim == 1
    assert int(offsets[0]) == 0
    assert bool((offsets.diff() >= 0).all())


def without_self(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in ("self", "__class__")}


class Library:
    """What was called, in order, and what to raise at the next plan."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.fails: Exception | None = None

    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def last(self, name: str) -> dict[str, Any]:
        return next(call.given for call in reversed(self.calls) if call.name == name)

    def record(self, name: str, given: dict[str, Any]) -> None:
        self.calls.append(Call(name, without_self(given)))
        if self.fails is not None:
            raise self.fails


class Wrapper:
    """What the three wrappers have in common."""

    name = ""
    library: Library

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str, use_cuda_graph: bool) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert not bool(float_workspace_buffer.any()), "must be initialized to 0"
        assert kv_layout in ("NHD", "HND")
        assert not use_cuda_graph
        self.workspace, self.layout = float_workspace_buffer, kv_layout
        self.planned: dict[str, Any] | None = None

    def keep(self, given: dict[str, Any]) -> None:
        """Remember a plan; its tensors are copied, as those of the library are to the device."""
        self.library.record(f"{self.name}.plan", given)
        self.planned = {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in without_self(given).items()
        }
        assert self.planned["pos_encoding_mode"] == "NONE"
        types = (self.planned["q_data_type"], self.planned["kv_data_type"] or self.planned["q_data_type"])
        assert all(isinstance(dtype, torch.dtype) for dtype in types)
        assert self.planned["num_qo_heads"] % self.planned["num_kv_heads"] == 0

    def options(self, *, causal: bool, k_scale: float | None = None) -> dict[str, Any]:
        assert self.planned is not None
        scale = self.planned["sm_scale"]
        assert type(scale) is float
        return {
            "causal": causal,
            "window_left": self.planned["window_left"],
            "logits_soft_cap": self.planned["logits_soft_cap"],
            "sm_scale": scale if k_scale is None else scale * k_scale,
        }

    def check_queries(self, q: torch.Tensor, tokens: int, head_dim: int) -> None:
        assert self.planned is not None
        assert tuple(q.shape) == (tokens, self.planned["num_qo_heads"], head_dim)
        assert q.dtype == self.planned["q_data_type"]
        assert q.stride(-1) == 1

    def check_pages(self, indptr: torch.Tensor, indices: torch.Tensor, last: torch.Tensor, page_size: int) -> None:
        check_offsets(indptr)
        assert indices.dtype == last.dtype == torch.int32
        assert len(indptr) == len(last) + 1
        assert len(indices) == int(indptr[-1])
        counts = indptr.diff()
        assert bool(((last >= 1) & (last <= page_size) | (counts == 0) & (last == 0)).all())

    def sequences(self, caches: Any, prefix: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values ``[length, H_kv, D]`` of each sequence, gathered by what was planned."""
        assert isinstance(caches, tuple)
        planned = self.planned
        assert planned is not None
        slots = []
        for cache in caches:
            assert cache.dtype == (planned["kv_data_type"] or planned["q_data_type"])
            assert cache.stride() == caches[0].stride(), "k/v strides differs"
            middle = (planned["page_size"], planned["num_kv_heads"])
            assert tuple(cache.shape[1:3]) == (middle if self.layout == "NHD" else middle[::-1])
            slots.append(cache if self.layout == "NHD" else cache.transpose(1, 2))
        indptr, indices = planned[f"{prefix}indptr"].tolist(), planned[f"{prefix}indices"].long()
        last = planned[f"{prefix}last_page_len"].tolist()
        assert bool(((indices >= 0) & (indices < len(caches[0]))).all()), "illegal access"
        found = []
        for sequence, filled in enumerate(last):
            pages = indices[indptr[sequence] : indptr[sequence + 1]]
            length = max(0, len(pages) - 1) * planned["page_size"] + filled
            keys, values = (slot.float()[pages].flatten(0, 1)[:length] for slot in slots)
            found.append((keys, values))
        return found
