"""The attention problem that cuDNN is given, its limits, and its graph; none of it needs a GPU."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

INSTALL: Final = 'pip install ".[cudnn]" in the clone'
DTYPES: Final = ("float16", "bfloat16")
MAX_HEAD_DIM: Final = 256
MAX_OFFSET: Final = 2**31 - 1  # of packed queries, in elements: cuDNN is given 32 bits
VECTOR: Final = 8  # elements of 16 bytes, by which cuDNN reads

Strides = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One attention problem as a cuDNN graph needs it: hashable, the key of the graphs that are kept.

    Strides are in elements, of batch (or page), head and position; the last dimension's is 1. ``seq_q`` and ``seq_kv``
    bound every sequence. Dense: ``page_size`` is None, all sequences have these lengths. Paged: lengths are on the GPU,
    and the caches hold ``pages`` pages. ``packed`` queries are ``[tokens, heads, head_dim]``, one sequence after
    another. ``causal`` is bottom-right aligned; a ``window`` of W leaves the keys closer than W positions.

    Example:
        >>> Problem(
        ...     batch=4, heads=12, kv_heads=12, seq_q=1024, seq_kv=1024, head_dim=64, head_dim_v=64, dtype="float16",
        ...     scale=0.125, causal=True, q_strides=(786432, 64, 768), k_strides=(786432, 64, 768),
        ...     v_strides=(786432, 64, 768),
        ... ).page_size is None
        True
    """

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    dtype: str
    kv_dtype: str | None = None  # None: dtype
    scale: float
    causal: bool
    window: int | None = None
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    page_size: int | None = None
    pages: int = 0
    packed: bool = False
    q_strides: Strides
    k_strides: Strides
    v_strides: Strides

    @property
    def is_masked(self) -> bool:
        """Return if a mask hides keys that exist; a single query, the last position, sees all without a window."""
        return self.window is not None or (self.causal and self.seq_q > 1)


def unsupported(problem: Problem, version: int | None = None) -> str | None:
    """Return why cuDNN cannot do a problem, or None.

    ``version`` is what ``cudnn.backend_version()`` says (91900 is 9.19.0); without it only what holds for all versions
    is looked at. These are the limits of NVIDIA's support matrix and of the frontend's ``sdpa_support_surface.h``
    (1.32); what is left of them, such as head dims that an older GPU lacks, cuDNN itself refuses at the first call.
    """
    reason = _beyond_limits(problem) or _missing_feature(problem)
    return reason if reason is not None or version is None else _too_old(problem, version)


def _beyond_limits(problem: Problem) -> str | None:
    if problem.dtype not in DTYPES:
        return f"dtype={problem.dtype}: cuDNN's attention takes {' and '.join(DTYPES)}"
    if problem.kv_dtype not in (None, problem.dtype):
        return f"kv_dtype={problem.kv_dtype}: cuDNN takes keys and values of the queries' dtype, {problem.dtype}"
    for name in ("head_dim", "head_dim_v"):
        if (width := getattr(problem, name)) % 8 or width > MAX_HEAD_DIM:
            return f"{name}={width}: cuDNN takes multiples of 8 up to {MAX_HEAD_DIM}"
    if problem.heads % problem.kv_heads:
        return f"heads={problem.heads}: cuDNN takes a multiple of kv_heads={problem.kv_heads}"
    size = problem.page_size
    if size is not None and (size < 1 or size & (size - 1)):
        return f"page_size={size}: cuDNN takes powers of two"
    if size is None and problem.is_masked and problem.seq_q > problem.seq_kv:
        return f"seq_q={problem.seq_q} is more than seq_kv={problem.seq_kv}: cuDNN aligns no mask bottom-right there"
    for name in ("q", "k", "v"):
        strides: Strides = getattr(problem, f"{name}_strides")
        if any(stride % VECTOR for stride in strides):  # Hopper returns wrong numbers, without an error
            return f"strides={strides} of {name}: cuDNN takes multiples of {VECTOR}"
    return None


def _missing_feature(problem: Problem) -> str | None:
    missing = {
        "softcap: cuDNN has none beside a mask of padding or causality": problem.softcap,
        "alibi: cuDNN has its own slopes only, and none with bottom-right masks": problem.alibi,
        "sinks with seq_q=1: cuDNN takes sinks for two or more queries": problem.sinks and problem.seq_q == 1,
        "packed queries over dense keys: only paged caches are wired here": problem.packed and not problem.page_size,
    }
    return next((reason for reason, is_asked in missing.items() if is_asked), None)


def _too_old(problem: Problem, version: int) -> str | None:
    if version in (91000, 91001):
        return f"cuDNN {version_text(version)}: the frontend refuses its attention, which has known bugs"
    needs = (
        ("paged caches", problem.page_size is not None, 90500),
        ("bottom-right masks", problem.is_masked, 90600),
        ("packed queries over pages", problem.packed, 90700),
        ("windows", problem.window is not None, 91002),
        ("head dims over 128", max(problem.head_dim, problem.head_dim_v) > 128, 91002),
        ("sinks", problem.sinks, 91300),
    )
    for feature, is_used, needed in needs:
        if is_used and version < needed:
            return f"{feature}: cuDNN {version_text(version)} is too old, {version_text(needed)} or newer has them"
    return None


def version_text(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


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
    """Return a validated ``cudnn.pygraph`` (frontend 1.30 or newer) of the problem; planning it is left to the caller.

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
