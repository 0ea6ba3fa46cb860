"""The attention of a model, and the shapes of its calls."""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from autotune.errors import InvalidShapeError
from autotune.shape import Shape

AnyShape = TypeVar("AnyShape", bound=Shape)

_FOLLOWS: Any = None  # the default of a field that follows another one; resolved at construction


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The attention sizes of one model, as its configuration states them.

    ``window`` and ``softcap`` are those of the layers that have one; where ``mixes_windows`` (Gemma, GPT-OSS) the other
    layers run full attention. ``head_dim_v`` follows ``head_dim``. ``sinks``: each head has a learned logit without a
    value; ``alibi``: scores are biased by distance; ``latent``: what is cached are latents that keys and values are
    computed from (MLA). ``latent_widths`` are those of a token's latent and of its first part, which is its value where
    queries and outputs are projected into that space, as decoding does. Chunked attention (Llama 4) changes no size and
    is not said here. ``source`` is the Hugging Face repository whose ``config.json`` holds the numbers, or says where
    else they are from.

    Example:
        >>> model = get_model("qwen2.5-7b")
        >>> model.heads, model.kv_heads, model.head_dim_v
        (28, 4, 128)
    """

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int = _FOLLOWS
    window: int | None = None
    softcap: float | None = None
    mixes_windows: bool = False
    causal: bool = True
    sinks: bool = False
    alibi: bool = False
    latent: bool = False
    latent_widths: tuple[int, int] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.head_dim_v is None:
            object.__setattr__(self, "head_dim_v", self.head_dim)

    @property
    def has_cache(self) -> bool:
        """True if decoding with it reads keys and values from a cache."""
        return self.causal and not self.latent

    def over_latents(self) -> "ModelShape":
        """Return what decoding over its cache of latents computes: one head of them for all query heads.

        Example:
            >>> get_model("deepseek-v3").over_latents().head_dim
            576
        """
        if self.latent_widths is None:
            return self
        keys, values = self.latent_widths
        return replace(self, kv_heads=1, head_dim=keys, head_dim_v=values)

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The window of each kind of its layers, None where they see all keys.

        Example:
            >>> get_model("gemma-2-9b").layer_windows
            (4096, None)
        """
        return (self.window, None) if self.mixes_windows else (self.window,)

    def shape(self, shape_class: type[AnyShape], **given: Any) -> AnyShape:
        """Return a shape with its heads and features, of layers without a window where it mixes them.

        Args:
            given: the sizes of the call, and fields that are to differ from the model's.

        Example:
            >>> get_model("gemma-2-9b").shape(AttentionShape, batch=1, seq_q=4096).softcap
            True

        Raises:
            InvalidShapeError: a field is out of range or is none.
        """
        own = {
            **{name: getattr(self, name) for name in ("heads", "kv_heads", "head_dim", "head_dim_v")},
            **{name: getattr(self, name) for name in ("causal", "sinks", "alibi")},
            "window": None if self.mixes_windows else self.window,
            "softcap": self.softcap is not None,
        }
        names = {field.name for field in fields(shape_class)}
        return shape_class(**{name: value for name, value in own.items() if name in names} | given)

    def tensor_parallel(self, degree: int) -> "ModelShape":
        """Return the part that one of ``degree`` ranks computes: its share of the heads.

        KV heads are split where there are enough of them, and otherwise replicated, so that each rank holds one; the
        rule of Megatron-LM and vLLM.

        Example:
            >>> shard = get_model("llama-3.1-70b").tensor_parallel(16)
            >>> shard.heads, shard.kv_heads
            (4, 1)

        Raises:
            InvalidShapeError: the heads cannot be shared evenly; the message lists the degrees that can.
        """
        if type(degree) is not int or not self._can_split(degree):
            allowed = [str(number) for number in range(1, self.heads + 1) if self._can_split(number)]
            raise InvalidShapeError(
                f"tp={degree!r} does not share {self.heads} heads and {self.kv_heads} KV heads of {self.name} evenly; "
                f"allowed: {', '.join(allowed)}"
            )
        if degree == 1:
            return self
        kv_heads = max(1, self.kv_heads // degree)
        return replace(self, name=f"{self.name} tp{degree}", heads=self.heads // degree, kv_heads=kv_heads)

    def _can_split(self, degree: int) -> bool:
        is_shared = degree >= 1 and self.heads % degree == 0
        return is_shared and (self.kv_heads % degree == 0 or degree % self.kv_heads == 0)  # split or replicated
