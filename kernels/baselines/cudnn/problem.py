"""The attention problem that cuDNN is given, and its limits."""

from dataclasses import dataclass
from typing import Final

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
    """Format cuDNN's version: ``91900`` as ``9.19.0``."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
