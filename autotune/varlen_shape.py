"""The shape of attention over packed sequences, each of a length of its own."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from autotune.dtypes import QUERY_DTYPES, parse_dtype
from autotune.errors import InvalidShapeError
from autotune.shape import EVENNESS_WEIGHT, MAX_CONTEXT, Shape

_FOLLOWS: Any = None  # the default of a field that follows another one; resolved at construction
MAX_WIDTH: Final = 256  # of heads


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenShape(Shape):
    """Attention over packed sequences: queries ``[T_q, heads, head_dim]`` against keys and values ``[T_kv, ...]``.

    Only the GPU knows the lengths. ``batch`` sequences have ``max_seq_q`` queries and ``max_seq_kv`` keys at most and
    ``mean_seq_q`` and ``mean_seq_kv`` in the mean, rounded up: all five are hints of how the work is spread, never read
    from the device, and a kernel takes any number of sequences of any lengths. ``kv_heads``, ``mean_seq_q``,
    ``max_seq_kv`` and ``head_dim_v`` follow ``heads``, ``max_seq_q``, ``max_seq_q`` and ``head_dim`` where they are not
    given; ``mean_seq_kv`` follows ``mean_seq_q`` where the longest are alike, and else ``max_seq_kv``. ``causal`` is
    bottom-right aligned in each sequence, and a ``window`` of W leaves the keys closer than W positions to the query's
    own, as in ``AttentionShape``. ``softcap`` and ``sinks`` say whether the feature is on; its values are given at the
    call. ``dtype`` may be torch's, or short: ``"bf16"``.

    Example:
        >>> VarlenShape(batch=64, heads=32, kv_heads=8, max_seq_q=4096, mean_seq_q=900, head_dim=128).mean_seq_kv
        900

    Raises:
        InvalidShapeError: a field is out of range or is none; the message names it, its value and what is allowed.
        UnknownNameError: the dtype does not exist.
    """

    FAMILY: ClassVar[tuple[str, ...]] = ("dtype", "head_dim", "head_dim_v", "causal", "window", "softcap", "sinks")

    batch: int
    heads: int
    kv_heads: int = _FOLLOWS
    max_seq_q: int
    mean_seq_q: int = _FOLLOWS
    max_seq_kv: int = _FOLLOWS
    mean_seq_kv: int = _FOLLOWS
    head_dim: int
    head_dim_v: int = _FOLLOWS
    dtype: str = "bfloat16"
    causal: bool = False
    window: int | None = None
    softcap: bool = False
    sinks: bool = False

    def __post_init__(self) -> None:
        if type(self.dtype) is not str or self.dtype not in QUERY_DTYPES:
            object.__setattr__(self, "dtype", parse_dtype(self.dtype))
        self._follow({"kv_heads": "heads", "mean_seq_q": "max_seq_q", "max_seq_kv": "max_seq_q"})
        mean = "mean_seq_q" if self.max_seq_kv == self.max_seq_q else "max_seq_kv"
        self._follow({"mean_seq_kv": mean, "head_dim_v": "head_dim"})
        self._require_int("batch", "heads", "kv_heads")
        self._require_int("max_seq_q", "max_seq_kv", high=MAX_CONTEXT)
        self._require_int("mean_seq_q", high=self.max_seq_q)
        self._require_int("mean_seq_kv", high=self.max_seq_kv)
        for name in ("head_dim", "head_dim_v"):
            width = getattr(self, name)
            if type(width) is not int or width % 8 or not 8 <= width <= MAX_WIDTH:
                raise InvalidShapeError(
                    f"{name}={width!r} is not allowed; expected a multiple of 8 from 8 to {MAX_WIDTH}"
                )
        if self.heads % self.kv_heads:
            raise InvalidShapeError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if self.window is not None:
            self._require_int("window")
        self._require_bool("causal", "softcap", "sinks")

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def is_even(self) -> bool:
        """True if all sequences are as long as the longest."""
        return self.batch == 1 or (self.mean_seq_q, self.mean_seq_kv) == (self.max_seq_q, self.max_seq_kv)

    @property
    def evenness(self) -> float:
        """The evenness of the numbers of keys, from above 0 to 1, as of ``PagedShape``."""
        return self.mean_seq_kv / min(self.max_seq_kv, self.batch * self.mean_seq_kv)

    def coordinates(self) -> tuple[float, ...]:
        """Place the shape among its family: log2 of batch, heads per KV head, KV heads and the mean lengths, and
        evenness times ``EVENNESS_WEIGHT``."""
        sizes = (self.batch, self.group, self.kv_heads, self.mean_seq_q, self.mean_seq_kv)
        return (*map(math.log2, sizes), EVENNESS_WEIGHT * self.evenness)

    def __str__(self) -> str:
        heads = f"{self.heads} heads" if self.group == 1 else f"{self.heads}/{self.kv_heads} heads"
        dims = f"{self.head_dim}" if self.head_dim == self.head_dim_v else f"{self.head_dim}/{self.head_dim_v}"
        queries = _lengths_text(self.max_seq_q, self.mean_seq_q)
        keys = _lengths_text(self.max_seq_kv, self.mean_seq_kv)
        lengths = queries if queries == keys else f"{queries} x {keys}"
        mask = "causal" if self.causal else "full"
        features = [f"window {self.window}"] if self.window else []
        features += [name for name in ("softcap", "sinks") if getattr(self, name)]
        return ", ".join(
            [f"{self.batch} packed", f"{heads} of {dims}", f"seq up to {lengths}", self.dtype, mask, *features]
        )


def _lengths_text(longest: int, mean: int) -> str:
    return f"{longest}" if mean == longest else f"{longest} (mean {mean})"
