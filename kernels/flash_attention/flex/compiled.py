"""FlexAttention compiled once for each problem and set of options, and what is raised where torch refuses to."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

import torch
from triton.errors import TritonError
from triton.runtime.errors import OutOfResources

from autotune.errors import MESSAGE_LIMIT
from autotune.kernels.flash_attention.definition import Inputs
from autotune.kernels.flash_attention.flex.masks import MaskMod, ScoreMod, mask_of, softcap

SPARSE_BLOCK: Final = 128  # torch's default; a mask's blocks must be multiples of the kernel's
MAX_COMPILED: Final = 512  # more than a sweep has configs
# As Triton says it, and as torch's own launcher does (torch/csrc/inductor/static_launcher).
OUT_OF_RESOURCE: Final = re.compile(r"out of resource: ([^,]+?),? Required: (\d+),? Hardware limit: ?(\d+)")


class Layout(NamedTuple):
    """The properties of a tensor that torch compiles for."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def attend(inputs: Inputs, options: Mapping[str, int], *, with_lse: bool = False) -> Any:
    """Compute the output ``[B, S_q, H, D_v]`` in the inputs' dtype, and ``with_lse`` the fp32 natural log-sum-exp
    ``[B, H, S_q]`` beside it; compiles for seconds at the first call of a kind.

    With the log-sum-exp, ``PRESCALE_QK`` is left off: torch rounds the scaled queries to their dtype, which the output
    bears, but the log-sum-exp was off by up to 0.012 in bfloat16 (H200, torch 2.11, 2026-11-23), eager torch's by 1e-5.

    A later one with tensors of the same sizes and strides compiles and allocates nothing but its output and what torch
    needs between kernels, so that a CUDA graph can hold it.

    Raises:
        OutOfResources: the device has too little shared memory.
        TritonError: torch or Triton refuses these options otherwise.
    """
    if with_lse and "PRESCALE_QK" in options:
        options = {**options, "PRESCALE_QK": False}
    with torch.no_grad():  # what torch compiled is of one mode, whichever the caller is in
        return _compiled(_problem(inputs), tuple(options.items()), with_lse)(inputs.q, inputs.k, inputs.v)


def bind(inputs: Inputs, options: Mapping[str, int]) -> Callable[[], torch.Tensor]:
    """Bind ``attend`` over these inputs, and run it once: a call of what torch compiled, with nothing looked up."""
    return _compiled(_problem(inputs), tuple(options.items()), False).bind(inputs.q, inputs.k, inputs.v)


def _problem(inputs: Inputs) -> Inputs:
    """Return everything that a compiled call has in its code: inputs with the layouts of tensors in their places."""
    layouts: Any = {
        name: Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
        for name, tensor in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v))
    }
    return replace(inputs, **layouts)


@lru_cache(maxsize=MAX_COMPILED)
def _compiled(problem: Inputs, options: tuple[tuple[str, int], ...], with_lse: bool) -> "CompiledAttention":
    return compile_attention(
        *(problem.q, problem.k, problem.v),
        scale=problem.scale,
        score_mod=None if problem.softcap is None else softcap(problem.softcap),
        mask_mod=mask_of(problem),
        options=dict(options),
        with_lse=with_lse,
    )


def compile_attention(
    q: torch.Tensor | Layout,
    k: torch.Tensor | Layout,
    v: torch.Tensor | Layout,
    *,
    scale: float,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    options: Mapping[str, int] | None = None,
    gradients: bool = False,
    with_lse: bool = False,
) -> "CompiledAttention":
    """Compile FlexAttention of ``q [B, S_q, H, D]`` over ``k [B, S_kv, H_kv, D]`` and ``v [B, S_kv, H_kv, D_v]``.

    Without ``score_mod`` and ``mask_mod`` it is the no-op that others are compared with. The mask is one for all
    sequences and heads.

    Args:
        options: kernel options of torch's, its own choice where there are none.
        gradients: store the log-sum-exp for a backward pass, as torch does unless gradients are off.
        with_lse: return the natural log-sum-exp, too.

    Example:
        >>> call = compile_attention(q, k, v, scale=0.125, mask_mod=causal_mask()).bind(q, k, v)
        >>> out = call()  # [B, S_q, H, D_v]
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    block_mask, passed = _mask_blocks(mask_mod, q, k, options or {})
    settings: Any = {
        "score_mod": score_mod,
        "block_mask": block_mask,
        "scale": scale,
        "enable_gqa": q.shape[2] != k.shape[2],
        "kernel_options": passed or None,
    }
    if with_lse:
        settings["return_aux"] = AuxRequest(lse=True)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        with torch.set_grad_enabled(gradients):
            out = flex_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **settings)
            return (out[0].transpose(1, 2), out[1].lse) if with_lse else out.transpose(1, 2)

    return CompiledAttention(
        torch.compile(_with_own_code(attend), dynamic=False, fullgraph=True), has_options=bool(options)
    )


class CompiledAttention:
    """FlexAttention as ``torch.compile`` makes it; it compiles at the first call.

    ``has_options``: options were chosen for it, so that it must not be compiled with others.
    """

    def __init__(self, call: Callable[..., torch.Tensor], *, has_options: bool) -> None:
        self._call = call
        self._has_options = has_options
        self._is_ready = False

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Compute the output ``[B, S_q, H, D_v]``; raise what ``attend`` does."""
        if self._is_ready:
            return self._call(q, k, v)
        try:
            with _no_other_pipeline() if self._has_options else nullcontext():
                out = self._call(q, k, v)
        except Exception as error:  # dynamo, inductor and the compilers have no exception in common
            refused = refusal(error)
            if refused is None:
                raise
            raise refused from error
        self._is_ready = True
        return out

    def bind(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Return a call over these tensors, which was run once, and is torch's own from then on."""
        self(q, k, v)
        return partial(self._call, q, k, v)


def _no_other_pipeline() -> AbstractContextManager[object]:
    """Let torch refuse options that do not fit: newer releases quietly compile them with one stage.

    They would be timed as what they are not. (torch/_inductor/runtime/triton_heuristics.py,
    ``_make_launchers``, of torch 2.13 to 2.15; 2.11 and 2.12 always refuse them.)
    """
    from torch._inductor import config

    if not hasattr(config.triton, "dynamic_disable_pipelining"):
        return nullcontext()
    return config.patch({"triton.dynamic_disable_pipelining": False})  # type: ignore[no-any-return]


def _mask_blocks(mask_mod: MaskMod | None, q: Any, k: Any, options: Mapping[str, int]) -> tuple[Any, dict[str, int]]:
    """Return the block mask of ``q [B, S_q, H, D]`` and ``k [B, S_kv, H_kv, D]``, and the options that go with it.

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


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a code object of its own.

    torch.compile counts and keeps what it compiled by code object, which all closures of one ``def`` share: the ninth
    shape in a process would be refused, and each call would try the guards of all shapes before its own.
    """
    code: CodeType = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def refusal(error: Exception) -> TritonError | None:
    """Return an exception of a first call as Triton raises it for the same reason; None where it judges no option.

    Torch wraps the compiler's exceptions in several of its own, and some only in words.
    """
    text = " ".join(str(error).split())
    if found := OUT_OF_RESOURCE.search(text):
        return OutOfResources(int(found[2]), int(found[3]), found[1])
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return TritonError(f"torch refuses to compile it: {text[:MESSAGE_LIMIT]}")
    return None
