"""FlashAttention 3 and 2 over dense tensors and paged caches, where their packages are installed.

Names, arguments and limits are those of the sources of Dao-AILab/flash-attention at 0251105 (August 2026):
``hopper/flash_attn_interface.py`` and ``hopper/flash_api.cpp`` of the one, ``flash_attn/flash_attn_interface.py`` and
``csrc/flash_attn/flash_api.cpp`` (2.8.4) of the other. Tested against stand-ins that are as strict, not verified on
hardware.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from autotune.errors import BaselineUnavailableError, one_line
from autotune.kernels.baselines.baseline import OverCopies, offsets_of, refuse_unless_ready
from autotune.shape import AttentionShape, PagedShape

if TYPE_CHECKING:
    from autotune.kernels.flash_attention.definition import Inputs as DenseInputs
    from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs

DEVICE: Final = "cuda"
DTYPES: Final = ("float16", "bfloat16")
MAX_HEAD_DIM: Final = 256
PAGE_MULTIPLE: Final = 256  # of FlashAttention 2; 3 takes pages of any size

Run = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class FlashAttention3:
    """FlashAttention 3, for Hopper, over ``AttentionShape`` and ``PagedShape``, with its defaults.

    Dense tensors are a ``flash_attn_func``, and paged ones, queries packed or not, a ``flash_attn_with_kvcache``, which
    chooses the number of splits itself. A call follows the values of its tensors, but for caches and page table, which
    are copied when it is prepared: whole pages are read, and unwritten slots must be finite.

    Example (on a Hopper GPU):
        >>> inputs = KERNEL.make_inputs(shape, seed=0, device="cuda")  # of flash attention
        >>> out = FlashAttention3().prepare(shape, inputs)()
    """

    name: str = "flash_attn_3"
    is_usual: bool = True
    verified_on_hardware: bool = False

    def available(self) -> str | None:
        install = (
            "clone https://github.com/Dao-AILab/flash-attention and pip install --no-build-isolation ./hopper there"
        )
        return _missing("flash_attn_interface", install) or _missing_gpu(self.name, "Ampere to Hopper", (8, 9))

    def unsupported(self, shape: Any) -> str | None:
        reason = _unsupported(self.name, shape)
        if reason is None and shape.head_dim != shape.head_dim_v:
            wide = 128 < shape.head_dim <= 192 and 96 < shape.head_dim_v <= 128
            if not wide and shape.head_dim > 64:
                widths = f"head_dim={shape.head_dim}, head_dim_v={shape.head_dim_v}"
                return f"{widths}: {self.name} takes different ones up to 64 of keys, or 192 of keys and 128 of values"
        if reason is None and isinstance(shape, PagedShape) and shape.alibi:
            return f"alibi=True: {self.name} has none"
        return reason

    def prepare(self, shape: Any, inputs: Any) -> Run:
        """Return a call that returns a new tensor, ``[B, S_q, H, D_v]``, or ``[T, H, D_v]`` of packed queries.

        Raises:
            MissingDependencyError: ``available`` says why.
            BaselineUnavailableError: ``unsupported`` says why, or FlashAttention refuses it here.
        """
        refuse_unless_ready(self, shape)
        library: Any = importlib.import_module("flash_attn_interface")
        bind = _bind_dense if isinstance(shape, AttentionShape) else self._bind_paged
        return _ready(self.name, bind, library, shape, inputs)

    def serve(self, shape: Any, inputs: Any) -> torch.Tensor:
        """Compute dense attention, ``[B, S_q, H, D_v]``; a paged cache would have to be copied without its NaN.

        Raises:
            BaselineUnavailableError: the shape is paged, or FlashAttention refuses these tensors.
        """
        if not isinstance(shape, AttentionShape):
            raise BaselineUnavailableError(f"{self.name} serves no paged cache: slots without a token may hold NaN")
        try:
            return _bind_dense(importlib.import_module("flash_attn_interface"), shape, inputs)()
        except Exception as error:  # the bindings and CUDA have no exception in common
            raise BaselineUnavailableError(f"{self.name} does not run here: {one_line(error)}") from error

    def _bind_paged(self, library: Any, shape: PagedShape, inputs: "PagedInputs") -> Run:
        options = _options(inputs, causal=True)
        offsets = getattr(inputs, "cu_seqlens_q", None)
        if offsets is not None:
            options |= {"cu_seqlens_q": offsets, "max_seqlen_q": int(offsets.diff().max())}
        k_cache, v_cache, page_table = _readable_pages(inputs)

        def run() -> torch.Tensor:
            return _first(
                library.flash_attn_with_kvcache(
                    inputs.q, k_cache, v_cache, cache_seqlens=inputs.seq_lens, page_table=page_table, **options
                )
            )

        return OverCopies(run, (k_cache, v_cache))


@dataclass(frozen=True, slots=True)
class FlashAttention2:
    """FlashAttention 2 over ``AttentionShape`` and ``PagedShape``, with its defaults.

    As ``FlashAttention3``, but packed queries over pages are a ``flash_attn_varlen_func`` with a block table, which
    splits no keys. From 2.8.4 on ``flash_attn_with_kvcache`` waits for the device, which no CUDA graph can hold.
    """

    name: str = "flash_attn"
    is_usual: bool = False
    verified_on_hardware: bool = False

    def available(self) -> str | None:
        install = "pip install flash-attn --no-build-isolation"
        return _missing("flash_attn", install) or _missing_gpu(self.name, "Ampere or newer", (8, 99))

    def unsupported(self, shape: Any) -> str | None:
        reason = _unsupported(self.name, shape)
        if reason is None and shape.head_dim != shape.head_dim_v:
            return f"head_dim={shape.head_dim}, head_dim_v={shape.head_dim_v}: {self.name} takes one width"
        if reason is None and isinstance(shape, PagedShape) and shape.page_size % PAGE_MULTIPLE:
            return f"page_size={shape.page_size}: {self.name} takes multiples of {PAGE_MULTIPLE}"
        return reason

    def prepare(self, shape: Any, inputs: Any) -> Run:
        """As ``FlashAttention3.prepare``."""
        refuse_unless_ready(self, shape)
        library: Any = importlib.import_module("flash_attn")
        bind = _bind_dense if isinstance(shape, AttentionShape) else self._bind_paged
        return _ready(self.name, bind, library, shape, inputs)

    def _bind_paged(self, library: Any, shape: PagedShape, inputs: "PagedInputs") -> Run:
        options = _options(inputs, causal=True)
        if inputs.alibi_slopes is not None:
            options["alibi_slopes"] = inputs.alibi_slopes
        k_cache, v_cache, block_table = _readable_pages(inputs)
        offsets = getattr(inputs, "cu_seqlens_q", None)
        if offsets is None:

            def run() -> torch.Tensor:
                return _first(
                    library.flash_attn_with_kvcache(
                        inputs.q, k_cache, v_cache, cache_seqlens=inputs.seq_lens, block_table=block_table, **options
                    )
                )

            return OverCopies(run, (k_cache, v_cache))
        lengths = (offsets, offsets_of(inputs.seq_lens), int(offsets.diff().max()), int(inputs.seq_lens.max()))

        def run_packed() -> torch.Tensor:
            return _first(
                library.flash_attn_varlen_func(inputs.q, k_cache, v_cache, *lengths, block_table=block_table, **options)
            )

        return OverCopies(run_packed, (k_cache, v_cache))


def _bind_dense(library: Any, shape: AttentionShape, inputs: "DenseInputs") -> Run:
    """Bind the function that both versions share."""
    options = _options(inputs, causal=inputs.causal)
    return lambda: _first(library.flash_attn_func(inputs.q, inputs.k, inputs.v, **options))


def _ready(name: str, bind: Callable[..., Run], library: Any, shape: Any, inputs: Any) -> Run:
    """Return the bound call after its first run."""
    if inputs.q.device.type != DEVICE:
        raise BaselineUnavailableError(f"the tensors are on {inputs.q.device}: {name} takes them on {DEVICE}")
    try:
        run = bind(library, shape, inputs)
        run()
    except Exception as error:  # the bindings and CUDA have no exception in common
        raise BaselineUnavailableError(f"{name} does not run here: {one_line(error)}") from error
    return run


def _unsupported(name: str, shape: Any) -> str | None:
    """Return why neither version computes a shape, or None."""
    if not isinstance(shape, AttentionShape | PagedShape):
        return f"{type(shape).__name__}: {name} computes an AttentionShape or a PagedShape"
    if shape.dtype not in DTYPES:
        return f"dtype={shape.dtype}: {name} takes {' and '.join(DTYPES)}"
    for field in ("head_dim", "head_dim_v"):
        if getattr(shape, field) > MAX_HEAD_DIM:
            return f"{field}={getattr(shape, field)}: {name} takes up to {MAX_HEAD_DIM}"
    if isinstance(shape, PagedShape):
        if shape.kv_dtype != shape.dtype:
            return f"kv_dtype={shape.kv_dtype}: {name} takes caches of the queries' dtype, {shape.dtype}"
        if shape.sinks:
            return f"sinks=True: {name} has none"
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


def _readable_pages(inputs: "PagedInputs") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return finite copies of the caches, viewed as NHD, and a page table of pages that exist."""
    caches = [
        torch.nan_to_num(cache, out=cache.new_empty_strided(cache.shape, cache.stride()))
        for cache in (inputs.k_cache, inputs.v_cache)
    ]
    k_cache, v_cache = (cache if inputs.layout == "NHD" else cache.transpose(1, 2) for cache in caches)
    return k_cache, v_cache, inputs.page_table.clamp(0, k_cache.shape[0] - 1).contiguous()


def _first(result: Any) -> torch.Tensor:
    """Return the output alone: before September 2025 FlashAttention 3 always gave the log-sum-exp with it."""
    out: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return out


def _missing(module: str, install: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # one built for another torch or CUDA raises more than ImportError
        return f"{module} does not load ({one_line(error)}): {install}"
    return None


def _missing_gpu(name: str, generations: str, majors: tuple[int, int]) -> str | None:
    """Return why torch's current GPU is none of these compute capabilities, or None."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return f"{name} needs an NVIDIA GPU, and this torch finds none: install a driver and a CUDA build of it"
    major, minor = torch.cuda.get_device_capability()
    if not majors[0] <= major <= majors[1]:
        return f"{name} needs a GPU of {generations}; this one is sm_{major}{minor}"
    return None
