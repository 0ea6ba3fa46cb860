"""torch's FlexAttention: masks, score functions, attention that torch.compile compiled for one shape, the baseline."""

import os
import shutil
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import BaselineUnavailableError, UnknownNameError, one_line
from autotune.kernels.baselines.baseline import refuse_unless_ready
from autotune.shape import AttentionShape

if TYPE_CHECKING:
    import torch

    ScoreMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

DTYPES: Final = ("float16", "bfloat16", "float32")
KERNEL_OPTIONS: Final = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
SPARSE_BLOCK: Final = 128  # torch's default; a mask's blocks must be multiples of the kernel's


def causal_mask(offset: int = 0) -> "MaskMod":
    """Query i sees the keys up to ``i + offset``: bottom-right aligned where the offset is ``seq_kv - seq_q``."""

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return key <= query + offset

    return visible


def window_mask(window: int, offset: int = 0) -> "MaskMod":
    """A query sees the keys closer than ``window`` positions to its own, on both sides."""

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key - query - offset).abs() < window

    return visible


def document_mask(q_documents: "torch.Tensor", kv_documents: "torch.Tensor") -> "MaskMod":
    """A query sees the keys of its own document, given the documents' numbers, integers ``[S_q]`` and ``[S_kv]``."""

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return q_documents[query] == kv_documents[key]

    return visible


def alibi(slopes: "torch.Tensor", offset: int = 0) -> "ScoreMod":
    """Adds ``slopes[head] * (key - query - offset)`` with fp32 slopes ``[H]`` (Press et al., arXiv 2108.12409)."""

    def add_bias(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score + slopes[head] * (key - query - offset)

    return add_bias


def softcap(cap: float) -> "ScoreMod":
    """``cap * tanh(score / cap)``, as in Gemma 2 (arXiv 2408.00118)."""

    def bound(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        import torch

        return cap * torch.tanh(score / cap)

    return bound


def compile_attention(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    *,
    scale: float,
    score_mod: "ScoreMod | None" = None,
    mask_mod: "MaskMod | None" = None,
    kernel_options: Mapping[str, int] | None = None,
) -> "Callable[[], torch.Tensor]":
    """Compile FlexAttention of ``q [B, S_q, H, D]`` over ``k [B, S_kv, H_kv, D]`` and ``v [B, S_kv, H_kv, D_v]``.

    Without ``score_mod`` and ``mask_mod`` it is the no-op that others are compared with. The mask is one for all
    sequences and heads. Returns a call that was run once and gives ``[B, S_q, H, D_v]``; what dynamo, inductor and the
    compilers raise is not caught.
    """
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    block_mask, options = mask_blocks(mask_mod, q, k, kernel_options or {})
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    is_grouped = q.shape[1] != k.shape[1]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        settings: Any = {"scale": scale, "enable_gqa": is_grouped, "kernel_options": options or None}
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask, **settings)

    compiled = torch.compile(with_own_code(attend), dynamic=False, fullgraph=True)

    def run() -> torch.Tensor:
        return compiled(q, k, v).transpose(1, 2)  # type: ignore[no-any-return]

    run()
    return run


def mask_blocks(mask_mod: "MaskMod | None", q: Any, k: Any, options: Mapping[str, int]) -> tuple[Any, dict[str, int]]:
    """The block mask of ``q [B, S_q, H, D]`` and ``k [B, S_kv, H_kv, D]`` (tensors, or what has their shape and
    device), and the options that go with it.

    Under 128 queries torch computes all rows of a KV head as one block unless it is told otherwise, and refuses to
    where that is longer than a block of the mask (``create_flex_decoding_kernel``, torch 2.11 to 2.15).
    """
    from torch.nn.attention.flex_attention import create_block_mask

    options = dict(options)
    if mask_mod is None:
        return None, options
    seq_q, group = q.shape[1], q.shape[2] // k.shape[2]
    if seq_q < SPARSE_BLOCK and group & (group - 1) == 0 and seq_q * group > SPARSE_BLOCK:
        options.setdefault("BLOCK_M", SPARSE_BLOCK)
    blocks = (max(SPARSE_BLOCK, options.get("BLOCK_M", 0)), max(SPARSE_BLOCK, options.get("BLOCK_N", 0)))
    mask = create_block_mask(mask_mod, None, None, seq_q, k.shape[1], device=q.device, BLOCK_SIZE=blocks)
    return mask, options


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a code object of its own.

    torch.compile counts and keeps what it compiled by code object, which all closures of one ``def`` share: the ninth
    shape in a process would be refused, and each call would try the guards of all shapes before its own.
    """
    code: CodeType = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


class Flex:
    """FlexAttention over ``AttentionShape``, compiled once a shape; causal masks and windows are block masks.

    ``kernel_options`` are BLOCK_M, BLOCK_N, num_warps and num_stages of its Triton kernel, torch's own where they are
    not given; on the CPU they change nothing, and under 128 queries torch derives BLOCK_M itself.

    Example:
        >>> Flex({"BLOCK_M": 64, "num_warps": 4}).name
        'flex BLOCK_M=64 num_warps=4'

    Raises:
        UnknownNameError: an option is none of these four; torch would ignore it.
    """

    is_usual: Final = False  # it compiles for seconds
    verified_on_hardware: Final = True

    def __init__(self, kernel_options: Mapping[str, int] | None = None) -> None:
        self._options = dict(kernel_options or {})
        for name, value in self._options.items():
            if name not in KERNEL_OPTIONS:
                allowed = ", ".join(KERNEL_OPTIONS)
                raise UnknownNameError(f"kernel_options has {name}={value}, which is unknown; allowed: {allowed}")

    @property
    def name(self) -> str:
        return " ".join(["flex", *(f"{name}={value}" for name, value in self._options.items())])

    def available(self) -> str | None:
        try:
            import torch
            from torch.nn.attention import flex_attention  # noqa: F401
        except Exception as error:  # a broken install raises more than ImportError
            return f"flex needs torch 2.5 or newer ({error}): pip install 'torch>=2.5'"
        return _missing_on_gpu() if torch.cuda.is_available() else _missing_on_cpu()

    def unsupported(self, shape: Any) -> str | None:
        if not isinstance(shape, AttentionShape):
            return f"{type(shape).__name__}: flex computes an AttentionShape"
        if shape.dtype not in DTYPES:
            return f"dtype={shape.dtype}: flex takes {', '.join(DTYPES)}"
        if shape.varlen:
            return "varlen=True: flex takes packed sequences by a document mask only, which a shape does not hold"
        return None

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """A call over flash attention's ``Inputs`` that returns ``[B, S_q, H, D_v]``; compiled and run once here.

        Raises:
            MissingDependencyError: ``available`` says why.
            BaselineUnavailableError: ``unsupported`` says why, or torch cannot compile or run it on this device.
        """
        refuse_unless_ready(self, shape)
        try:
            # Of one problem with several sets of inputs, the first compiles.
            from autotune.kernels.flex_attention.compiled import attend

            attend(inputs, self._options)
        except Exception as error:  # dynamo, inductor and the compilers have no exception in common
            message = one_line(error)
            raise BaselineUnavailableError(f"{self.name} does not run here: {message}") from error
        return lambda: attend(inputs, self._options)


def mask_of(inputs: Any) -> "MaskMod | None":
    """The mask that inputs ask for, or None where it would hide nothing: a block mask costs time."""
    from torch.nn.attention.flex_attention import and_masks

    seq_q, seq_kv = inputs.q.shape[1], inputs.k.shape[1]
    offset = seq_kv - seq_q
    masks: list[Any] = []
    if inputs.causal and seq_q > 1:
        masks.append(causal_mask(offset))
    if inputs.window is not None and inputs.window < max(seq_q, seq_kv):
        masks.append(window_mask(inputs.window, offset))
    return and_masks(*masks) if len(masks) > 1 else next(iter(masks), None)


def _missing_on_gpu() -> str | None:
    try:
        import triton  # noqa: F401
    except Exception as error:
        return f'flex is compiled by triton on a GPU ({error}): pip install ".[gpu]" in the clone'
    return None


def _missing_on_cpu() -> str | None:
    """What inductor's C++ backend lacks: its vector instructions, or the compiler that it looks for."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX"):
        return f"flex on the CPU needs AVX2, which this processor lacks ({capability})"
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"flex on the CPU is compiled by {compiler}, which is not found: install g++, or name another in CXX"
    return None
