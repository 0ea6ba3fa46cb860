"""Calls that can be repeated: of every kernel, in every form of arguments that a launch takes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

import torch

from autotune.device import NVIDIA_H200
from autotune.kernels import known_calls
from autotune.kernels.flash_attention.gluon_hopper import kernel as gluon
from autotune.kernels.flash_attention.triton import kernel as dense
from autotune.kernels.flash_attention.triton_masked import kernel as masked
from autotune.kernels.flash_attention.triton_split_keys import kernel as shares
from autotune.kernels.flash_attention.triton_split_values import kernel as columns
from autotune.kernels.flash_attention.triton_split_width import kernel as pieces
from autotune.kernels.flash_attention_varlen.gluon_hopper import kernel as packed
from autotune.kernels.flash_attention_varlen.triton import kernel as varlen
from autotune.kernels.paged_decode.gluon_hopper_latent import kernel as hopper_latents
from autotune.kernels.paged_decode.triton import kernel as decode
from autotune.kernels.paged_decode.triton_latent import kernel as latents
from autotune.kernels.paged_prefill.gluon_hopper import kernel as gathered
from autotune.kernels.paged_prefill.triton import kernel as prefill
from autotune.search_spaces.bounds import MAX_WIDTH
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION as GLUON
from autotune.search_spaces.flash_attention_varlen.gluon_hopper import IMPLEMENTATION as PACKED
from autotune.search_spaces.paged_prefill.gluon_hopper import IMPLEMENTATION as GATHERED
from autotune.shape import AttentionShape, PagedShape
from autotune.space import Config
from autotune.varlen_shape import VarlenShape

HALF: Final = torch.float16
TILES: Final[dict[str, Any]] = {"BLOCK_Q": 16, "BLOCK_K": 16, "num_warps": 4, "num_stages": 1}
DENSE: Final = AttentionShape(
    batch=2, heads=4, kv_heads=2, seq_q=20, seq_kv=40, head_dim=16, head_dim_v=32, causal=True, dtype="float16"
)
WIDE: Final = replace(DENSE, head_dim=272, head_dim_v=264)
SQUARE: Final = replace(DENSE, head_dim_v=16)  # whose output is like its queries
PAGED: Final = PagedShape(
    batch=3, heads=4, kv_heads=2, max_context=64, head_dim=16, head_dim_v=32, page_size=8, dtype="float16"
)
PAGES, COLUMNS = 9, 5  # of a cache, and of its table
PREFILL_TILES: Final[dict[str, Any]] = {**TILES, "SMALL_Q": 0, "order": "head"}
DECODE_TILES: Final[dict[str, Any]] = {"BLOCK_ROWS": 16, "HEADS": 1, "BLOCK_K": 16, "num_warps": 4, "num_stages": 1}
SPLIT: Final[dict[str, Any]] = {
    **DECODE_TILES,
    "schedule": "split",
    "NUM_SPLITS": 2,
    "COMBINE": "kernel",
    "PARTIALS": "float16",
}
SHARES: Final[dict[str, Any]] = {**TILES, "NUM_SPLITS": 2, "PARTIALS": "float16"}
FLAT: Final[dict[str, Any]] = {**DECODE_TILES, "schedule": "flat", "PROGRAMS_PER_SM": 1}


@dataclass(frozen=True)
class Problem:
    """A bound kernel, what makes its tensors, and the options of a call."""

    call: Any
    draw: Callable[[], dict[str, torch.Tensor]]
    options: dict[str, Any]

    def checked(self, tensors: dict[str, torch.Tensor], **options: Any) -> Any:
        """Call the ordinary way."""
        with mock.patch.object(known_calls, "is_direct", return_value=False):
            return self.call(**tensors, **self.options | options)


def draw_dense(shape: AttentionShape = DENSE) -> dict[str, torch.Tensor]:
    dtype = getattr(torch, shape.dtype)
    q = torch.randn(shape.batch, shape.seq_q, shape.heads, shape.head_dim, dtype=dtype)
    k = torch.randn(shape.batch, shape.seq_kv, shape.kv_heads, shape.head_dim, dtype=dtype)
    return {"q": q, "k": k, "v": torch.randn(*k.shape[:3], shape.head_dim_v, dtype=dtype)}


def draw_padded(shape: AttentionShape = DENSE) -> dict[str, torch.Tensor]:
    """Draw tensors of one head more, of which the first is left out: other strides, other addresses."""
    wider = replace(shape, heads=shape.heads + shape.group, kv_heads=shape.kv_heads + 1)
    first = {"q": shape.group, "k": 1, "v": 1}
    return {name: each[:, :, first[name] :] for name, each in draw_dense(wider).items()}


def draw_shifted(shape: AttentionShape = DENSE) -> dict[str, torch.Tensor]:
    """Draw tensors of which the values begin at no multiple of 16 bytes."""
    drawn = draw_dense(shape)
    room = torch.zeros(drawn["v"].numel() + 1, dtype=drawn["v"].dtype)[1:].view(drawn["v"].shape)
    return drawn | {"v": room.copy_(drawn["v"])}


def draw_paged(shape: PagedShape = PAGED, **extra: torch.Tensor) -> dict[str, torch.Tensor]:
    kv = getattr(torch, shape.kv_dtype)
    sizes = (PAGES, shape.page_size, shape.kv_heads)
    sizes = sizes if shape.layout == "NHD" else (PAGES, shape.kv_heads, shape.page_size)
    queries = (shape.heads, shape.head_dim) if shape.seq_q == 1 else (shape.seq_q, shape.heads, shape.head_dim)
    return {
        "q": torch.randn(shape.batch, *queries, dtype=getattr(torch, shape.dtype)),
        "k_cache": torch.randn(*sizes, shape.head_dim).to(kv),
        "v_cache": torch.randn(*sizes, shape.head_dim_v).to(kv),
        "page_table": torch.randint(PAGES, (shape.batch, COLUMNS), dtype=torch.int32),
        "seq_lens": torch.randint(shape.seq_q, COLUMNS * shape.page_size, (shape.batch,), dtype=torch.int32),
    } | {name: values.clone() for name, values in extra.items()}


def draw_packed(shape: PagedShape = PAGED, **extra: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = draw_paged(shape, **extra)
    offsets = torch.tensor([0, 4, 4, 11], dtype=torch.int32)
    return tensors | {"q": torch.randn(11, PAGED.heads, PAGED.head_dim, dtype=HALF), "cu_seqlens_q": offsets}


def attend(
    shape: AttentionShape = DENSE,
    *,
    loads: str = "descriptor",
    draw: Callable[[AttentionShape], dict[str, torch.Tensor]] = draw_dense,
    **options: Any,
) -> Problem:
    call = dense.KERNEL.bind(Config(**TILES, loads=loads), shape)
    return Problem(call, lambda: draw(shape), options)


def attend_in_shares(
    shape: AttentionShape = DENSE,
    *,
    loads: str = "descriptor",
    splits: int = 2,
    draw: Callable[[AttentionShape], dict[str, torch.Tensor]] = draw_dense,
    **options: Any,
) -> Problem:
    call = shares.KERNEL.bind(Config(**{**SHARES, "NUM_SPLITS": splits}, loads=loads), shape)
    return Problem(call, lambda: draw(shape), options)


def attend_in_pieces(head_dim: int, head_dim_v: int, *, loads: str, **options: Any) -> Problem:
    shape = replace(DENSE, head_dim=head_dim, head_dim_v=head_dim_v)
    return Problem(pieces.KERNEL.bind(Config(**TILES, loads=loads), shape), lambda: draw_dense(shape), options)


def attend_masked(
    kind: str | None, *, loads: str, has_more: bool = False, shape: AttentionShape = DENSE, **options: Any
) -> Problem:
    """Attend with a mask that all queries share, or a bias of all heads, or none; wide heads by columns of values."""
    shape = replace(shape, attn_mask=kind, sinks=has_more, kv_ends=has_more)
    sizes = {"boolean": (2, 1, 1, 40), "additive": (2, 4, 20, 40)}

    def draw() -> dict[str, torch.Tensor]:
        operands = {} if kind is None else {"attn_mask": torch.randn(sizes[kind], dtype=HALF)}
        if kind == "boolean":
            operands["attn_mask"] = operands["attn_mask"] > 0
        more = {"sinks": torch.randn(4), "kv_ends": torch.randint(0, 40, (2, 20), dtype=torch.int32)}
        return draw_dense(shape) | operands | (more if has_more else {})

    if shape.head_dim > MAX_WIDTH:
        return Problem(columns.KERNEL.bind(Config(**TILES, BLOCK_V=128, loads=loads), shape), draw, options)
    call = masked.KERNEL.bind(Config(**TILES, hidden_tiles="computed", loads=loads), shape)
    return Problem(call, draw, options)


def attend_in_gluon(shape: AttentionShape = DENSE, **options: Any) -> Problem:
    config = GLUON.space.default(shape, NVIDIA_H200)
    return Problem(gluon.KERNEL.bind(config, shape), lambda: draw_dense(shape), options)


def decode_with(config: dict[str, Any], shape: PagedShape = PAGED, **options: Any) -> Problem:
    features = {name: value for name, value in options.items() if isinstance(value, torch.Tensor)}
    rest = {name: value for name, value in options.items() if name not in features}
    return Problem(decode.KERNEL.bind(Config(**config), shape), lambda: draw_paged(shape, **features), rest)


def draw_latents(shape: PagedShape) -> dict[str, torch.Tensor]:
    drawn = draw_paged(shape)
    return drawn | {"v_cache": drawn["k_cache"][..., : shape.head_dim_v]}


def decode_latents(*, splits: int, **options: Any) -> Problem:
    tile: dict[str, Any] = {"BLOCK_ROWS": 16, "BLOCK_K": 16, "SCORES": "each", "num_warps": 4, "num_stages": 1}
    shape = PagedShape(batch=3, heads=4, max_context=64, head_dim=288, page_size=8, dtype="float16")
    call = latents.KERNEL.bind(Config(**tile, NUM_SPLITS=splits), shape)
    return Problem(call, lambda: draw_latents(shape), options)


def decode_latents_in_gluon(*, splits: int, page_size: int = 32, **options: Any) -> Problem:
    shape = PagedShape(batch=3, heads=4, max_context=160, head_dim=320, page_size=page_size, dtype="float16")
    call = hopper_latents.KERNEL.bind(Config(NUM_SPLITS=splits, slots=2), shape)
    return Problem(call, lambda: draw_latents(shape), options)


def prefill_with(shape: PagedShape = PAGED, **options: Any) -> Problem:
    features = {name: value for name, value in options.items() if isinstance(value, torch.Tensor)}
    rest = {name: value for name, value in options.items() if name not in features}
    call = prefill.KERNEL.bind(Config(**PREFILL_TILES), replace(shape, seq_q=4))
    return Problem(call, lambda: draw_packed(shape, **features), rest)


def draw_varlen() -> dict[str, torch.Tensor]:
    rows = {"q": (11, 4, 16), "k": (30, 2, 16), "v": (30, 2, 32)}
    offsets = {"cu_seqlens_q": [0, 4, 4, 11], "cu_seqlens_k": [0, 10, 12, 30]}
    return {name: torch.randn(sizes, dtype=HALF) for name, sizes in rows.items()} | {
        name: torch.tensor(values, dtype=torch.int32) for name, values in offsets.items()
    }


def varlen_with(*, loads: str, sinks: torch.Tensor | None = None, **options: Any) -> Problem:
    sizes: dict[str, Any] = {"batch": 3, "heads": 4, "kv_heads": 2, "max_seq_q": 8, "head_dim": 16, "head_dim_v": 32}
    shape = VarlenShape(**sizes, max_seq_kv=20, dtype="float16", causal=True, sinks=sinks is not None)
    config = Config(**TILES, sequences="longest", order="head", loads=loads)
    given = {} if sinks is None else {"sinks": sinks}
    draw = lambda: draw_varlen() | {name: each.clone() for name, each in given.items()}  # noqa: E731
    return Problem(varlen.KERNEL.bind(config, shape), draw, options)


def packed_in_gluon(*, sinks: torch.Tensor | None = None, has_used: bool = False, **options: Any) -> Problem:
    sizes: dict[str, Any] = {"batch": 3, "heads": 4, "kv_heads": 2, "max_seq_q": 8, "head_dim": 16, "head_dim_v": 32}
    shape = VarlenShape(**sizes, max_seq_kv=20, dtype="float16", causal=True, sinks=sinks is not None)
    used = {"seqused_q": [3, 0, 7], "seqused_k": [10, 1, 18]} if has_used else {}

    def draw() -> dict[str, torch.Tensor]:
        numbers = {name: torch.tensor(values, dtype=torch.int32) for name, values in used.items()}
        return draw_varlen() | numbers | ({} if sinks is None else {"sinks": sinks.clone()})

    return Problem(packed.KERNEL.bind(PACKED.space.default(shape, NVIDIA_H200), shape), draw, options)


def padded_with(*, loads: str, **options: Any) -> Problem:
    """Attend over a padded batch whose heads come before its rows."""
    sizes: dict[str, Any] = {"batch": 3, "heads": 4, "kv_heads": 2, "max_seq_q": 8, "head_dim": 16, "head_dim_v": 32}
    shape = VarlenShape(**sizes, max_seq_kv=20, dtype="float16", causal=True)
    config = Config(**TILES, sequences="longest", order="head", loads=loads)
    rows = {"q": (3, 4, 8, 16), "k": (3, 2, 20, 16), "v": (3, 2, 20, 32)}
    lens = {"seqused_q": [8, 5, 0], "seqused_k": [20, 9, 0], "kv_starts": [0, 2, 0]}

    def draw() -> dict[str, torch.Tensor]:
        drawn = {name: torch.randn(size, dtype=HALF).transpose(1, 2) for name, size in rows.items()}
        return drawn | {name: torch.tensor(values, dtype=torch.int32) for name, values in lens.items()}

    return Problem(varlen.KERNEL.bind(config, shape), draw, {"cu_seqlens_q": None, "cu_seqlens_k": None} | options)


def gathered_with(shape: PagedShape = PAGED, **options: Any) -> Problem:
    """As ``prefill_with``, by the kernel that lays pages side by side."""
    problem = prefill_with(shape, **options)
    call = gathered.KERNEL.bind(GATHERED.space.default(replace(shape, seq_q=512), NVIDIA_H200), replace(shape, seq_q=4))
    return Problem(call, problem.draw, problem.options)


def padded_in_gluon(*, sinks: torch.Tensor | None = None, has_all: bool = True, **options: Any) -> Problem:
    """As ``padded_with``; of its numbers not ``has_all`` leaves the lengths of the keys alone."""
    problem = padded_with(loads="pointer", **options)
    sizes: dict[str, Any] = {"batch": 3, "heads": 4, "kv_heads": 2, "max_seq_q": 8, "head_dim": 16, "head_dim_v": 32}
    shape = VarlenShape(**sizes, max_seq_kv=20, dtype="float16", causal=True, sinks=sinks is not None)

    def draw() -> dict[str, torch.Tensor]:
        drawn = {name: each for name, each in problem.draw().items() if has_all or name in ("q", "k", "v", "seqused_k")}
        return drawn | ({} if sinks is None else {"sinks": sinks.clone()})

    return Problem(packed.KERNEL.bind(PACKED.space.default(shape, NVIDIA_H200), shape), draw, problem.options)


def problems() -> Iterator[Problem]:
    """Yield calls of all kernels, of all forms of arguments that their launches take."""
    heads = torch.zeros(PAGED.heads)
    for loads in ("descriptor", "pointer"):
        yield attend(loads=loads)
        yield attend(SQUARE, loads=loads, return_lse=True, scale=0.3)
        yield attend(loads=loads, draw=draw_padded)
        yield attend(loads=loads, draw=draw_shifted)
        yield attend_in_pieces(40, 32, loads=loads)
        yield attend_in_pieces(32, 40, loads=loads, return_lse=True, scale=0.3)
        yield attend_masked("boolean", loads=loads, return_lse=True)
        yield attend_masked("additive", loads=loads, has_more=True, scale=0.3)
        yield attend_masked(None, loads=loads, shape=WIDE, return_lse=True)
        yield attend_masked("additive", loads=loads, has_more=True, shape=WIDE, scale=0.3)
    yield attend_masked(None, loads="pointer", has_more=True)
    yield attend_in_shares()
    yield attend_in_shares(draw=draw_shifted, return_lse=True)
    yield attend_in_shares(SQUARE, loads="pointer", splits=1, scale=0.3)
    yield attend(replace(DENSE, causal=False, window=7, softcap=True, dtype="bfloat16"), softcap=20.0)
    yield attend(replace(DENSE, causal=False, dtype="float32"), scale=0.25)
    yield attend_in_gluon()
    yield attend_in_gluon(replace(SQUARE, dtype="bfloat16"), return_lse=True, scale=0.3)
    for config in (SPLIT, FLAT, {**SPLIT, "NUM_SPLITS": 1}, {**SPLIT, "COMBINE": "last"}):
        yield decode_with(config)
    yield decode_with(SPLIT, replace(PAGED, sinks=True, alibi=True), sinks=heads, alibi_slopes=heads, return_lse=True)
    yield decode_with(FLAT, replace(PAGED, seq_q=2, window=9, softcap=True, layout="HND"), softcap=30.0)
    scale = torch.ones(())
    yield decode_with(SPLIT, replace(PAGED, kv_dtype="float8_e4m3fn"), k_scale=scale, v_scale=scale)
    per_slot = torch.ones(9, PAGED.page_size, PAGED.kv_heads)
    yield decode_with(FLAT, replace(PAGED, kv_dtype="int8"), k_scale=per_slot, v_scale=per_slot)
    yield decode_latents(splits=1, scale=0.3)
    yield decode_latents(splits=2, return_lse=True)
    yield decode_latents_in_gluon(splits=1, scale=0.3)
    yield decode_latents_in_gluon(splits=2, return_lse=True)
    yield decode_latents_in_gluon(splits=1, page_size=1, scale=0.3)
    yield varlen_with(loads="pointer", sinks=heads, return_lse=True)
    yield varlen_with(loads="descriptor", scale=0.3)
    yield packed_in_gluon(sinks=heads, return_lse=True)
    yield packed_in_gluon(has_used=True, scale=0.3)
    yield padded_with(loads="pointer", return_lse=True)
    yield padded_with(loads="descriptor", scale=0.3)
    yield padded_in_gluon(sinks=heads, return_lse=True)
    yield padded_in_gluon(has_all=False, scale=0.3)
    yield prefill_with()
    yield prefill_with(return_lse=True, scale=0.1)
    yield gathered_with(replace(PAGED, alibi=False), return_lse=True)
    yield gathered_with(replace(PAGED, alibi=False, kv_dtype="float8_e4m3fn"), k_scale=scale, v_scale=scale)
    yield prefill_with(replace(PAGED, kv_dtype="float8_e4m3fn"), k_scale=scale, v_scale=scale)
    yield prefill_with(replace(PAGED, kv_dtype="int8", causal=False), k_scale=per_slot, v_scale=per_slot)
