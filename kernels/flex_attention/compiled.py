"""FlexAttention compiled once for each problem and set of options, and what is raised where torch refuses to."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch
from triton.errors import TritonError
from triton.runtime.errors import OutOfResources

from autotune.errors import MESSAGE_LIMIT
from autotune.kernels.baselines.flex import mask_blocks, mask_of, softcap, with_own_code
from autotune.kernels.flash_attention.kernel import Inputs

MAX_COMPILED: Final = 512  # more than a sweep has configs
# As Triton says it, and as torch's own launcher does (torch/csrc/inductor/static_launcher).
OUT_OF_RESOURCE: Final = re.compile(r"out of resource: ([^,]+?),? Required: (\d+),? Hardware limit: ?(\d+)")


class Layout(NamedTuple):
    """What torch compiles for of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a compiled call has in its code: inputs without their values, where they have names as there."""

    q: Layout
    k: Layout
    v: Layout
    causal: bool
    window: int | None
    softcap: float | None
    scale: float


def attend(inputs: Inputs, options: Mapping[str, int]) -> torch.Tensor:
    """The output ``[B, S_q, H, D_v]`` in the inputs' dtype; compiles for seconds at the first call of a kind.

    A later one with tensors of the same sizes and strides compiles and allocates nothing but its output and what torch
    needs between kernels, so that a CUDA graph can hold it.

    Raises:
        OutOfResources: the device has too little shared memory.
        TritonError: torch or Triton refuses these options otherwise.
    """
    q, k, v = (
        Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
        for tensor in (inputs.q, inputs.k, inputs.v)
    )
    problem = Problem(q, k, v, inputs.causal, inputs.window, inputs.softcap, inputs.scale)
    with torch.no_grad():  # torch would store the log-sum-exp for a backward pass
        return _compiled(problem, tuple(options.items()))(inputs.q, inputs.k, inputs.v)


@lru_cache(maxsize=MAX_COMPILED)
def _compiled(problem: Problem, options: tuple[tuple[str, int], ...]) -> "Compiled":
    return Compiled(problem, dict(options))


class Compiled:
    """FlexAttention of one problem with one set of options; compiled at the first call."""

    def __init__(self, problem: Problem, options: Mapping[str, int]) -> None:
        self._call = torch.compile(with_own_code(_attention(problem, options)), dynamic=False, fullgraph=True)
        self._is_ready = False

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self._is_ready:
            return self._call(q, k, v)  # type: ignore[no-any-return]
        try:
            with _no_other_pipeline():
                out: torch.Tensor = self._call(q, k, v)
        except Exception as error:  # dynamo, inductor and the compilers have no exception in common
            refused = refusal(error)
            if refused is None:
                raise
            raise refused from error
        self._is_ready = True
        return out


def _no_other_pipeline() -> AbstractContextManager[object]:
    """Where options do not fit, newer torch quietly compiles them with one stage; here it refuses them.

    Otherwise they would be timed as what they are not. (torch/_inductor/runtime/triton_heuristics.py,
    ``_make_launchers``, of torch 2.13 to 2.15; 2.11 and 2.12 always refuse them.)
    """
    from torch._inductor import config

    if not hasattr(config.triton, "dynamic_disable_pipelining"):
        return nullcontext()
    return config.patch({"triton.dynamic_disable_pipelining": False})  # type: ignore[no-any-return]


def _attention(problem: Any, options: Mapping[str, int]) -> Callable[..., torch.Tensor]:
    """What torch compiles: over ``[B, S, H, D]``, with the masks and scores of a problem."""
    from torch.nn.attention.flex_attention import flex_attention

    block_mask, options = mask_blocks(mask_of(problem), problem.q, problem.k, options)
    settings: Any = {
        "score_mod": None if problem.softcap is None else softcap(problem.softcap),
        "block_mask": block_mask,
        "scale": problem.scale,
        "enable_gqa": problem.q.shape[2] != problem.k.shape[2],
        "kernel_options": options or None,
    }

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **settings).transpose(1, 2)

    return attend


def refusal(error: Exception) -> TritonError | None:
    """An exception of a first call as what Triton raises for the same reason; None where it is no verdict on options.

    Torch wraps the compiler's exceptions in several of its own, and some only in words.
    """
    text = " ".join(str(error).split())
    if found := OUT_OF_RESOURCE.search(text):
        return OutOfResources(int(found[2]), int(found[3]), found[1])
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return TritonError(f"torch refuses to compile it: {text[:MESSAGE_LIMIT]}")
    return None
