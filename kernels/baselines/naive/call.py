"""Naive attention as a baseline, and the traffic between its kernels and memory by formula; loads no triton."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from autotune.dtypes import ITEM_BYTES
from autotune.errors import BaselineUnavailableError
from autotune.kernels.baselines.baseline import DTYPES, missing_feature, refuse_unless_ready, wrong_shape
from autotune.shape import MAX_LENGTH, AttentionShape

if TYPE_CHECKING:
    import torch

MAX_PROGRAMS: Final = MAX_LENGTH  # of a grid's first axis, and a program's number is an int32


class Naive:
    """Attention by three Triton kernels over ``AttentionShape``: scores, softmax, weighted sum.

    Scores and weights lie in memory in the tensors' own dtype, as in eager torch: it is what a half-precision model
    stored before fusion, and half the traffic of fp32. Within a kernel all is computed in fp32, products of fp32
    tensors as in the fused kernels. A query that sees no key has the output 0.
    """

    name: Final = "naive"
    is_usual: Final = False
    verified_on_hardware: Final = True

    def available(self) -> str | None:
        try:
            import torch
            import triton
        except Exception as error:  # a broken install raises more than ImportError
            return f'naive needs torch and triton ({error}): pip install ".[gpu]" in the clone'
        if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
            return "naive needs a CUDA or ROCm GPU, and none is here (TRITON_INTERPRET=1 checks numbers without one)"
        return None

    def unsupported(self, shape: Any) -> str | None:
        if (reason := wrong_shape(self.name, shape, (AttentionShape,), DTYPES)) is not None:
            return reason
        if shape.window is not None:
            return f"window={shape.window}: naive has no mask but the causal one"
        if (reason := missing_feature(self.name, shape, "softcap")) is not None:
            return reason
        rows = shape.batch * shape.heads * shape.seq_q
        if rows > MAX_PROGRAMS:
            return f"batch * heads * seq_q = {rows}: naive takes at most {MAX_PROGRAMS} rows of scores"
        return None

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """Bind a call over flash attention's ``Inputs`` that returns ``[B, S_q, H, D_v]``; compiles and runs it once.

        Each call allocates the scores ``[B, H, S_q, S_kv]``.
        """
        refuse_unless_ready(self, shape)
        import torch
        import triton

        from autotune.kernels.baselines.naive.launch import plan_launches

        q, k, v = inputs.q, inputs.k, inputs.v
        if q.device.type == "cpu" and not triton.knobs.runtime.interpret:
            raise BaselineUnavailableError("the tensors are on cpu: naive takes a GPU's")
        batch, seq_q, heads, _ = q.shape
        sizes = (batch, heads, seq_q, k.shape[1])

        def run() -> "torch.Tensor":
            scores = q.new_empty(sizes)
            out: torch.Tensor = q.new_empty((batch, seq_q, heads, v.shape[3]))
            for launch in plan_launches(q, k, v, scores, out, causal=inputs.causal, scale=inputs.scale):
                launch.run()
            return out

        try:
            run()
        except torch.OutOfMemoryError as error:
            raise BaselineUnavailableError(f"naive holds {sizes} scores in memory: {error}") from error
        return run


def memory_traffic(shape: AttentionShape) -> int:
    """Return bytes of every read and write of the three kernels: the sum of ``kernel_traffic``.

    The scores cross the memory four times, Q, K, V and the output once. Of equal lengths, heads and widths that is
    ``4 b B H S (S + D)`` with ``b`` bytes an element.
    """
    return sum(kernel_traffic(shape).values())


def kernel_traffic(shape: AttentionShape) -> dict[str, int]:
    """Return bytes that each kernel reads and writes, by its name in ``forward.py`` (and in a profiler).

    Each tensor counts once a kernel: what a kernel's tiles read again (queries and keys for other tiles of scores, a
    row in the softmax's second pass) comes from the caches. A mask saves nothing, since hidden scores are written, read
    and weighted like others. A kernel's writes count even where they still lie in the L2 when it ends.
    """
    queries = shape.batch * shape.heads * shape.seq_q  # rows of Q, of the output and of the scores
    keys = shape.batch * shape.kv_heads * shape.seq_kv  # rows of K and V: a group of query heads shares them
    scores = queries * shape.seq_kv
    elements = {
        "attention_scores": queries * shape.head_dim  # read Q
        + keys * shape.head_dim  # read K
        + scores,  # write the scores
        "softmax_rows": scores  # read the scores
        + scores,  # write the weights
        "weighted_sum": scores  # read the weights
        + keys * shape.head_dim_v  # read V
        + queries * shape.head_dim_v,  # write the output
    }
    return {kernel: count * ITEM_BYTES[shape.dtype] for kernel, count in elements.items()}
