"""FlashInfer's attention over dense tensors and paged caches, where flashinfer-python is installed.

Names, arguments and limits are those of the sources of flashinfer-python 0.5.3 (``prefill.py``, ``decode.py`` and what
they compile). It was run with torch 2.11 and CUDA 13 on an H200 on 2026-11-21, against attention in fp64: dense bf16
causal attention of grouped heads, of one sequence and of several, and paged decode in bf16 with groups of 1, 4 and 8,
and over caches in e4m3 and e5m2. What else it takes was tested against a stand-in that is as strict.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

import torch

from autotune.errors import BaselineUnavailableError
from autotune.kernels.baselines import baseline
from autotune.shape import AttentionShape, PagedShape

if TYPE_CHECKING:
    from autotune.kernels.flash_attention.definition import Inputs as DenseInputs
    from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs

DEVICE: Final = "cuda"
INSTALL: Final = "pip install flashinfer-python (and CUDA's nvcc or flashinfer-jit-cache, for its kernels)"
DTYPES: Final = ("float16", "bfloat16")
FLOAT8: Final = ("float8_e4m3fn", "float8_e5m2")
HEAD_DIMS: Final = (64, 128, 256)
DENSE_WIDTHS: Final = ((192, 128),)  # of keys and values, as in DeepSeek's prefill
TENSOR_CORE_GROUP: Final = 4  # the other decode kernel takes groups of 1, 2, 3, 4 and 8 alone
# The documentation recommends 128 MiB, and planning raises where the workspace does not hold the partial outputs of
# split keys. FA2's are fp32: for each query head up to (2 x SMs / KV heads) tiles of 128 rows, 64 of heads of 256
# (PrefillPlan in include/flashinfer/attention/scheduler.cuh, 0.5.3). On 132 SMs that is more than 132 MiB with groups
# of 8 and heads of 128 or 256, as in Llama 3.1 70B, and twice that with groups of 16; by formula, no GPU was asked.
WORKSPACE_BYTES: Final = 512 * 2**20

Run = Callable[[], torch.Tensor]


class Pages(NamedTuple):
    """A page table as FlashInfer takes it, int32: the pages ``[N]`` of all sequences, one sequence after another.

    Those of sequence i are ``indptr[i]`` to ``indptr[i + 1]``, of ``[B + 1]``; ``last_page_len [B]`` counts the tokens
    in the last of them, 0 where there is none.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    last_page_len: torch.Tensor


def list_pages(page_table: torch.Tensor, seq_lens: torch.Tensor, *, page_size: int) -> Pages:
    """List the pages in use of a ``page_table [B, max_pages]``; waits for the device."""
    lengths = seq_lens.long().clamp(min=0)
    counts = (lengths + page_size - 1) // page_size
    is_used = torch.arange(page_table.shape[1], device=page_table.device) < counts[:, None]
    last = lengths - (counts - 1).clamp(min=0) * page_size
    return Pages(baseline.offsets_of(counts), page_table[is_used].int(), last.int())


class FlashInfer:
    """FlashInfer over ``AttentionShape`` and ``PagedShape``, planned once, as its users do it for all layers of a step.

    One dense sequence is a ``single_prefill_with_kv_cache``; several are packed one after another for
    ``BatchPrefillWithRaggedKVCacheWrapper``. One query a sequence over pages is
    ``BatchDecodeWithPagedKVCacheWrapper``, on tensor cores for groups of 4 and more; several, or packed ones, are
    ``BatchPrefillWithPagedKVCacheWrapper``. The library chooses between its FA2 and FA3 kernels, but for 8-bit caches,
    which FA2 alone reads. Scales of such a cache are one number in FlashInfer; where the KV heads have different ones,
    queries and output are multiplied by them, an operation more each.

    A call follows the values of its tensors, but for page table and lengths, which are read when it is prepared. The
    workspace of its wrappers is memory that their users pay for, 512 MiB here, once for all that are alive.
    """

    name: Final = "flashinfer"
    is_usual: Final = False
    verified_on_hardware: Final = True

    def __init__(self) -> None:
        # One a device for all calls, which run one after another; it lives as long as one of their wrappers.
        self._workspaces: WeakValueDictionary[torch.device, torch.Tensor] = WeakValueDictionary()

    def available(self) -> str | None:
        return baseline.missing_module("flashinfer", INSTALL) or baseline.missing_nvidia_gpu(self.name)

    def unsupported(self, shape: Any) -> str | None:
        if (reason := baseline.wrong_shape(self.name, shape, (AttentionShape, PagedShape), DTYPES)) is not None:
            return reason
        more = DENSE_WIDTHS if isinstance(shape, AttentionShape) else ()
        widths = [*((width, width) for width in HEAD_DIMS), *more]
        if (shape.head_dim, shape.head_dim_v) not in widths:
            given = f"head_dim={shape.head_dim}, head_dim_v={shape.head_dim_v}"
            return f"{given}: flashinfer takes {', '.join(f'{keys}/{values}' for keys, values in widths)}"
        return _missing_in_dense(shape) if isinstance(shape, AttentionShape) else _missing_in_paged(shape)

    def prepare(self, shape: Any, inputs: Any) -> Run:
        """Return a call that returns a new tensor, ``[B, S_q, H, D_v]``, or ``[T, H, D_v]`` of packed queries.

        Kernels that were never compiled on this machine are compiled here, which takes minutes.
        """
        baseline.refuse_unless_ready(self, shape)
        baseline.refuse_elsewhere(self.name, inputs.q, DEVICE)
        with baseline.refusals_of(self.name):
            is_dense = isinstance(shape, AttentionShape)
            run = self._bind_dense(shape, inputs) if is_dense else self._bind_paged(shape, inputs)
            run()
        return run

    def _bind_dense(self, shape: AttentionShape, inputs: "DenseInputs") -> Run:
        flashinfer: Any = importlib.import_module("flashinfer")
        q, k, v = inputs.q, inputs.k, inputs.v
        # A window has a left side alone; where one query is the last position, the mask hides nothing else.
        options: dict[str, Any] = {"causal": inputs.causal or inputs.window is not None, **_options(inputs)}
        if shape.batch == 1:

            def run_one() -> torch.Tensor:
                out: torch.Tensor = flashinfer.single_prefill_with_kv_cache(
                    q[0], k[0], v[0], kv_layout="NHD", **options
                )
                return out[None]

            return run_one
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(self._workspace(q.device), "NHD")
        batch, seq_q = q.shape[:2]
        lengths = torch.ones(batch, dtype=torch.int64, device=q.device)
        wrapper.plan(
            baseline.offsets_of(lengths * seq_q),
            baseline.offsets_of(lengths * k.shape[1]),
            *(shape.heads, shape.kv_heads, shape.head_dim),
            head_dim_vo=shape.head_dim_v,
            q_data_type=q.dtype,
            kv_data_type=k.dtype,
            **options,
        )

        def run() -> torch.Tensor:
            out: torch.Tensor = wrapper.run(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))
            return out.reshape(batch, seq_q, shape.heads, shape.head_dim_v)

        return run

    def _bind_paged(self, shape: PagedShape, inputs: "PagedInputs") -> Run:
        caches = (inputs.k_cache, inputs.v_cache)
        if caches[0].stride() != caches[1].stride():
            strides = " and ".join(str(cache.stride()) for cache in caches)
            raise BaselineUnavailableError(f"strides={strides} of keys and values: flashinfer takes the same of both")
        q, offsets = inputs.q, getattr(inputs, "cu_seqlens_q", None)
        wrapper = self._plan_pages(shape, inputs, offsets)
        attend = _with_scales(lambda q, **scales: wrapper.run(q, caches, **scales), inputs, shape)

        def run() -> torch.Tensor:
            if offsets is not None:
                return attend(q)
            return attend(q.flatten(0, 1)).reshape(*q.shape[:3], shape.head_dim_v)

        return run

    def _plan_pages(self, shape: PagedShape, inputs: "PagedInputs", offsets: torch.Tensor | None) -> Any:
        """Return a planned wrapper: that of decode for one query a sequence, else that of prefill."""
        flashinfer: Any = importlib.import_module("flashinfer")
        q, kv_dtype, lengths = inputs.q, inputs.k_cache.dtype, inputs.seq_lens
        first: tuple[torch.Tensor, ...] = ()
        room = (self._workspace(q.device), inputs.layout)
        options = _options(inputs)
        if offsets is None and q.shape[1] == 1:
            on_tensor_cores = shape.group >= TENSOR_CORE_GROUP
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(*room, use_tensor_cores=on_tensor_cores)
        else:
            if offsets is None:
                offsets = baseline.offsets_of(torch.full_like(lengths, q.shape[1]))
            if bool((offsets.diff() > lengths).any()):
                raise BaselineUnavailableError(
                    "a sequence has more queries than keys: flashinfer masks none of these keys"
                )
            backend = "auto" if kv_dtype == q.dtype else "fa2"
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(*room, backend=backend)
            first = (offsets,)
            options["causal"] = True
        wrapper.plan(
            *(*first, *list_pages(inputs.page_table, lengths, page_size=shape.page_size)),
            *(shape.heads, shape.kv_heads, shape.head_dim, shape.page_size),
            q_data_type=q.dtype,
            kv_data_type=kv_dtype,
            **options,
        )
        return wrapper

    def _workspace(self, device: torch.device) -> torch.Tensor:
        """Return the device's workspace: bytes that begin as zeros, as the library's first use wants them."""
        if (found := self._workspaces.get(device)) is None:
            found = self._workspaces[device] = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return found


def _missing_in_dense(shape: AttentionShape) -> str | None:
    if shape.window is not None and not shape.causal and shape.seq_q > 1:
        return f"window={shape.window}, causal=False: flashinfer's windows have a left side alone"
    if (shape.causal or shape.window is not None) and shape.seq_q > shape.seq_kv:
        return f"seq_q={shape.seq_q} is more than seq_kv={shape.seq_kv}: flashinfer aligns no mask bottom-right there"
    return None


def _missing_in_paged(shape: PagedShape) -> str | None:
    if shape.kv_dtype not in (shape.dtype, *FLOAT8):
        return f"kv_dtype={shape.kv_dtype}: flashinfer takes caches of {', '.join((shape.dtype, *FLOAT8))}"
    if shape.sinks:
        return "sinks=True: flashinfer has them in kernels for Blackwell alone"
    if shape.alibi:
        return "alibi=True: flashinfer has slopes of its own, none of the caller's"
    return baseline.missing_full_mask("flashinfer", shape)


def _options(inputs: Any) -> dict[str, Any]:
    """Return the options that all functions share; ``window_left`` counts the keys before a query's own."""
    return {
        "window_left": -1 if inputs.window is None else inputs.window - 1,
        "logits_soft_cap": inputs.softcap,
        "sm_scale": inputs.scale,
    }


def _with_scales(
    run: Callable[..., torch.Tensor], inputs: "PagedInputs", shape: PagedShape
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return ``run`` over queries ``[T, H, D]`` and a cache that is multiplied by its scales, fp32 ``[H_kv]``."""
    k_scale, v_scale = inputs.k_scale, inputs.v_scale
    if k_scale is None or v_scale is None:
        return run
    if all(bool((scale == scale[0]).all()) for scale in (k_scale, v_scale)):
        scales = {"k_scale": float(k_scale[0]), "v_scale": float(v_scale[0])}
        return lambda q: run(q, **scales)
    k_factors, v_factors = (scale.repeat_interleave(shape.group)[:, None] for scale in (k_scale, v_scale))

    def scaled(q: torch.Tensor) -> torch.Tensor:
        return run(torch.mul(q, k_factors, out=torch.empty_like(q))).mul_(v_factors)

    return scaled
