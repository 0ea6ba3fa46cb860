"""FlashAttention 3 and 2 over dense tensors and paged caches, where their packages are installed.

Names, arguments and limits are those of the sources of Dao-AILab/flash-attention at 0251105 (August 2026):
``hopper/flash_attn_interface.py`` and ``hopper/flash_api.cpp`` of the one, ``flash_attn/flash_attn_interface.py`` and
``csrc/flash_attn/flash_api.cpp`` (2.8.4) of the other. Tested against stand-ins that are as strict, not verified on
hardware.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

from autotune.kernels.baselines import baseline
from autotune.shape import AttentionShape, PagedShape

if TYPE_CHECKING:
    from autotune.kernels.flash_attention.definition import Inputs as DenseInputs
    from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs

DEVICE: Final = "cuda"
DTYPES: Final = ("float16", "bfloat16")
MAX_HEAD_DIM: Final = 256
PAGE_MULTIPLE: Final = 256  # of FlashAttention 2; 3 takes pages of any size

Run = Callable[[], torch.Tensor]


class _FlashAttention:
    name: ClassVar[str]
    is_usual: ClassVar[bool]
    verified_on_hardware: Final = False
    _module: ClassVar[str]
    _install: ClassVar[str]
    _gpus: ClassVar[tuple[str, int, int]]  # their generations, and the first and last major compute capability
    _table: ClassVar[str]  # the argument that takes the page table
    _packs_apart: ClassVar[bool]  # a function of its own takes packed queries over pages

    def available(self) -> str | None:
        missing = baseline.missing_module(self._module, self._install) or baseline.missing_nvidia_gpu(self.name)
        if missing is not None:
            return missing
        generations, first, last = self._gpus
        major, minor = torch.cuda.get_device_capability()
        if not first <= major <= last:
            return f"{self.name} needs a GPU of {generations}; this one is sm_{major}{minor}"
        return None

    def unsupported(self, shape: Any) -> str | None:
        if (reason := baseline.wrong_shape(self.name, shape, (AttentionShape, PagedShape), DTYPES)) is not None:
            return reason
        for field in ("head_dim", "head_dim_v"):
            if getattr(shape, field) > MAX_HEAD_DIM:
                return f"{field}={getattr(shape, field)}: {self.name} takes up to {MAX_HEAD_DIM}"
        if isinstance(shape, PagedShape):
            if shape.kv_dtype != shape.dtype:
                return f"kv_dtype={shape.kv_dtype}: {self.name} takes caches of the queries' dtype, {shape.dtype}"
            if shape.sinks:
                return baseline.missing_feature(self.name, shape, "sinks")
            if not shape.causal:
                return baseline.missing_full_mask(self.name, shape)
        return self._refuse(shape)

    def prepare(self, shape: Any, inputs: Any) -> Run:
        """Return a call that returns a new tensor, ``[B, S_q, H, D_v]``, or ``[T, H, D_v]`` of packed queries."""
        baseline.refuse_unless_ready(self, shape)
        baseline.refuse_elsewhere(self.name, inputs.q, DEVICE)
        with baseline.refusals_of(self.name):
            run = self._bind_dense(inputs) if isinstance(shape, AttentionShape) else self._bind_paged(inputs)
            run()
        return run

    def _bind_dense(self, inputs: "DenseInputs") -> Run:
        library: Any = importlib.import_module(self._module)
        options = _options(inputs, causal=inputs.causal)
        return lambda: _first(library.flash_attn_func(inputs.q, inputs.k, inputs.v, **options))

    def _bind_paged(self, inputs: "PagedInputs") -> Run:
        """Bind a call over finite copies of the caches, viewed as NHD, and a page table of pages that exist."""
        copies = baseline.without_nan(inputs.k_cache), baseline.without_nan(inputs.v_cache)
        k_cache, v_cache = (cache if inputs.layout == "NHD" else cache.transpose(1, 2) for cache in copies)
        options = _options(inputs, causal=True)
        options[self._table] = inputs.page_table.clamp(0, k_cache.shape[0] - 1).contiguous()
        if inputs.alibi_slopes is not None:
            options["alibi_slopes"] = inputs.alibi_slopes
        library: Any = importlib.import_module(self._module)
        offsets, lengths = getattr(inputs, "cu_seqlens_q", None), list[Any]()
        if offsets is None or not self._packs_apart:
            if offsets is not None:
                options |= {"cu_seqlens_q": offsets, "max_seqlen_q": int(offsets.diff().max())}
            attend = partial(library.flash_attn_with_kvcache, cache_seqlens=inputs.seq_lens)
        else:
            attend = library.flash_attn_varlen_func
            key_offsets = baseline.offsets_of(inputs.seq_lens)
            lengths = [offsets, key_offsets, int(offsets.diff().max()), int(inputs.seq_lens.max())]
        return baseline.OverCopies(lambda: _first(attend(inputs.q, k_cache, v_cache, *lengths, **options)), copies)

    def _refuse(self, shape: AttentionShape | PagedShape) -> str | None:
        """Return why this version does not compute a shape that the other may, or None."""
        raise NotImplementedError


class FlashAttention3(_FlashAttention):
    """FlashAttention 3, for Hopper, over ``AttentionShape`` and ``PagedShape``, with its defaults.

    Dense tensors are a ``flash_attn_func``, and paged ones, queries packed or not, a ``flash_attn_with_kvcache``, which
    chooses the number of splits itself. A call follows the values of its tensors, but for caches and page table, which
    are copied when it is prepared: whole pages are read, and unwritten slots must be finite.
    """

    name = "flash_attn_3"
    is_usual = True
    _module = "flash_attn_interface"
    _install = "clone https://github.com/Dao-AILab/flash-attention and pip install --no-build-isolation ./hopper there"
    _gpus = ("Ampere to Hopper", 8, 9)
    _table = "page_table"
    _packs_apart = False

    def serve(self, shape: Any, inputs: Any) -> torch.Tensor:
        """Compute dense attention, ``[B, S_q, H, D_v]``; a paged cache would have to be copied without its NaN."""
        baseline.refuse_pages(self.name, shape)
        with baseline.refusals_of(self.name):
            return self._bind_dense(inputs)()

    def _refuse(self, shape: AttentionShape | PagedShape) -> str | None:
        wide = 128 < shape.head_dim <= 192 and 96 < shape.head_dim_v <= 128
        if shape.head_dim != shape.head_dim_v and not wide and shape.head_dim > 64:
            widths = f"head_dim={shape.head_dim}, head_dim_v={shape.head_dim_v}"
            return f"{widths}: {self.name} takes different ones up to 64 of keys, or 192 of keys and 128 of values"
        return baseline.missing_feature(self.name, shape, "alibi") if isinstance(shape, PagedShape) else None


class FlashAttention2(_FlashAttention):
    """FlashAttention 2 over ``AttentionShape`` and ``PagedShape``, with its defaults.

    As ``FlashAttention3``, but packed queries over pages are a ``flash_attn_varlen_func`` with a block table, which
    splits no keys. From 2.8.4 on ``flash_attn_with_kvcache`` waits for the device, which no CUDA graph can hold.
    """

    name = "flash_attn"
    is_usual = False
    _module = "flash_attn"
    _install = "pip install flash-attn --no-build-isolation"
    _gpus = ("Ampere or newer", 8, 99)
    _table = "block_table"
    _packs_apart = True

    def _refuse(self, shape: AttentionShape | PagedShape) -> str | None:
        if shape.head_dim != shape.head_dim_v:
            return f"head_dim={shape.head_dim}, head_dim_v={shape.head_dim_v}: {self.name} takes one width"
        if isinstance(shape, PagedShape) and shape.page_size % PAGE_MULTIPLE:
            return f"page_size={shape.page_size}: {self.name} takes multiples of {PAGE_MULTIPLE}"
        return None


def _options(inputs: Any, *, causal: bool) -> dict[str, Any]:
    """Return the options that both share: a window of W is W - 1 keys before a query's own, and as many after it."""
    before = -1 if inputs.window is None else inputs.window - 1
    return {
        "softmax_scale": inputs.scale,
        "causal": causal,
        "window_size": (before, 0 if causal and before >= 0 else before),
        "softcap": inputs.softcap or 0.0,
    }


def _first(result: Any) -> torch.Tensor:
    """Return the output alone: before September 2025 FlashAttention 3 always gave the log-sum-exp with it."""
    out: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return out
