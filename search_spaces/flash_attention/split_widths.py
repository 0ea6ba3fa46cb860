"""The pieces of a head's columns, which the kernel of split widths and its space share; they are in its hash."""

from autotune.rounding import power_of_two
from autotune.search_spaces.bounds import MIN_BLOCK, padded_widths

Pieces = tuple[int, int]  # columns of the tiles of the main piece and of the rest; 0 where there is none


def split_widths(head_dim: int, head_dim_v: int) -> tuple[Pieces, Pieces]:
    """Return the pieces of queries and keys, and those of values.

    The main one is the largest power of two that is not wider than the head, the rest what is left, padded. A head
    that both would pad as far as one tile does is one tile, of ``padded_widths``.

    Example:
        >>> split_widths(72, 128)
        ((64, 16), (128, 0))
    """
    whole_k, whole_v = padded_widths(head_dim, head_dim_v)
    return _split(head_dim) or (whole_k, 0), _split(head_dim_v) or (whole_v, 0)


def _split(width: int) -> Pieces | None:
    """Return the pieces of a width that are together narrower than one tile; None where they are not."""
    padded = max(MIN_BLOCK, power_of_two(width))
    main = padded // 2
    rest = max(MIN_BLOCK, power_of_two(width - main))
    return (main, rest) if main + rest < padded else None
