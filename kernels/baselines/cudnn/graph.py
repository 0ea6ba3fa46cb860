"""Builds the cuDNN graph of a problem; validating it needs neither a GPU nor cuDNN (frontend 1.30 or newer)."""

from enum import IntEnum
from typing import Any

from autotune.kernels.baselines.cudnn.problem import Problem


class Operand(IntEnum):
    """The ids by which a graph's tensors are bound to memory."""

    Q = 1
    K = 2
    V = 3
    OUT = 4
    LENGTHS_Q = 5
    LENGTHS_KV = 6
    PAGES_K = 7  # two tensors of the graph, one table
    PAGES_V = 8
    OFFSETS_Q = 9
    OFFSETS_OUT = 10
    SINKS = 11


def build_graph(problem: Problem, handle: Any = None) -> Any:
    """Return a validated ``cudnn.pygraph`` of the problem; planning it is left to the caller.

    Raises:
        cudnn.cudnnGraphNotSupportedError: cuDNN has no such attention.
    """
    import cudnn

    io_type = {"float16": cudnn.data_type.HALF, "bfloat16": cudnn.data_type.BFLOAT16}[problem.dtype]
    inner = {f"{name}_data_type": cudnn.data_type.FLOAT for name in ("intermediate", "compute")}
    graph = cudnn.pygraph(io_data_type=io_type, handle=handle, **inner)
    is_paged = problem.page_size is not None
    q_sizes = (problem.batch, problem.heads, problem.seq_q, problem.head_dim)
    kv_sizes = (problem.pages if is_paged else problem.batch, problem.kv_heads, problem.page_size or problem.seq_kv)
    offsets = {"ragged_offset": _integers(graph, Operand.OFFSETS_Q, problem.batch + 1)} if problem.packed else {}
    q = _tensor(graph, Operand.Q, q_sizes, (*problem.q_strides, 1), io_type, **offsets)
    k = _tensor(graph, Operand.K, (*kv_sizes, problem.head_dim), (*problem.k_strides, 1), io_type)
    v = _tensor(graph, Operand.V, (*kv_sizes, problem.head_dim_v), (*problem.v_strides, 1), io_type)
    options = _mask_options(problem) | (_paged_options(graph, problem) if is_paged else {})
    if problem.sinks:
        sizes, strides = (1, problem.heads, 1, 1), (problem.heads, 1, 1, 1)
        options["sink_token"] = _tensor(graph, Operand.SINKS, sizes, strides, cudnn.data_type.FLOAT)
    out, _ = graph.sdpa(name="sdpa", q=q, k=k, v=v, generate_stats=False, attn_scale=problem.scale, **options)
    out.set_uid(int(Operand.OUT)).set_output(True).set_data_type(io_type)
    out.set_dim([*q_sizes[:3], problem.head_dim_v]).set_stride([*out_strides(problem), 1])
    if problem.packed:
        out.set_ragged_offset(_integers(graph, Operand.OFFSETS_OUT, problem.batch + 1))
    graph.validate()
    return graph


def out_strides(problem: Problem) -> tuple[int, int, int]:
    """Return the strides of batch, head and position of the output, which is contiguous ``[B, S, H, D]``."""
    row = problem.heads * problem.head_dim_v
    return problem.seq_q * row, problem.head_dim_v, row


def _mask_options(problem: Problem) -> dict[str, Any]:
    """Return the options of a band about the diagonal that ends bottom-right."""
    import cudnn

    if not problem.is_masked:
        return {}
    options: dict[str, Any] = {"diagonal_alignment": cudnn.diagonal_alignment.BOTTOM_RIGHT}
    if problem.window is not None:
        options["diagonal_band_left_bound"] = problem.window  # keeps key + window > query, as our windows do
        options["diagonal_band_right_bound"] = problem.window - 1
    if problem.causal:
        options["diagonal_band_right_bound"] = 0
    return options


def _paged_options(graph: Any, problem: Problem) -> dict[str, Any]:
    """Return lengths and page tables, ``[batch, 1, pages of a sequence, 1]``; cuDNN wants the lengths of both sides."""
    assert problem.page_size is not None
    columns = problem.seq_kv // problem.page_size
    return {
        "use_padding_mask": True,
        "seq_len_q": _integers(graph, Operand.LENGTHS_Q, problem.batch),
        "seq_len_kv": _integers(graph, Operand.LENGTHS_KV, problem.batch),
        "paged_attention_k_table": _integers(graph, Operand.PAGES_K, problem.batch, columns),
        "paged_attention_v_table": _integers(graph, Operand.PAGES_V, problem.batch, columns),
        "paged_attention_max_seq_len_kv": problem.seq_kv,
    }


def _integers(graph: Any, operand: Operand, count: int, columns: int = 1) -> Any:
    import cudnn

    strides = (columns, columns, 1, 1)
    return _tensor(graph, operand, (count, 1, columns, 1), strides, cudnn.data_type.INT32)


def _tensor(
    graph: Any, operand: Operand, sizes: tuple[int, ...], strides: tuple[int, ...], data_type: Any, **more: Any
) -> Any:
    tensor = graph.tensor(name=operand.name.lower(), dim=list(sizes), stride=list(strides), data_type=data_type, **more)
    return tensor.set_uid(int(operand))
