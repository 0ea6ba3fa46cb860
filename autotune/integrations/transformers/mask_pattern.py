"""The keys that a query may see, read from the function that transformers builds a mask by.

Such a function is a closure over others: ``and(window(4), causal)``. Its parts are known by their names and their
variables; one that is not known is refused, so that no part of a mask is lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import UnsupportedCallError

if TYPE_CHECKING:
    import torch

MODULE: Final = "transformers.masking_utils"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPattern:
    """A pattern of positions: ``causal`` or both ways, ``window`` as in ``autotune.attention``.

    Sequences are cut into chunks of ``chunk_size``; ``sequences [B, S]`` numbers those that share a row, packed, and
    ``blocks [B, S]`` those tokens that see each other both ways inside a causal mask, -1 the others.
    """

    causal: bool = False
    window: int | None = None
    chunk_size: int | None = None
    sequences: "torch.Tensor | None" = None
    blocks: "torch.Tensor | None" = None


def read_pattern(mask_function: Callable[..., Any]) -> MaskPattern:
    """Return the pattern of a mask function of transformers.

    Raises:
        UnsupportedCallError: a part of it is none of those that kernels compute.
    """
    return _add(mask_function, MaskPattern())


def _add(part: Callable[..., Any], pattern: MaskPattern) -> MaskPattern:
    name = _name_of(part)
    if getattr(part, "__module__", "") == MODULE:
        variables = _variables(part)
        match name:
            case "causal_mask_function":
                return replace(pattern, causal=True)
            case "bidirectional_mask_function":
                return pattern
            case "and_masks.and_mask":
                for each in variables["mask_functions"]:
                    pattern = _add(each, pattern)
                return pattern
            case "or_masks.or_mask" if (blocks := _blocks_of(variables["mask_functions"])) is not None:
                return replace(pattern, causal=True, blocks=blocks)
            case "sliding_window_overlay.inner_mask":
                return replace(pattern, window=int(variables["sliding_window"]))
            case "sliding_window_bidirectional_overlay.inner_mask":
                return replace(pattern, window=int(variables["sliding_window"]) + 1)  # theirs is inclusive
            case "chunked_overlay.inner_mask":
                return replace(pattern, chunk_size=int(variables["chunk_size"]))
            case "packed_sequence_mask_function.inner_mask":
                return replace(pattern, sequences=variables["packed_sequence_mask"])
            case "remap_positions_for_packed_sequence.inner_mask":
                return _add(variables["mask_function"], pattern)  # distances within a sequence stay as they are
    raise UnsupportedCallError(
        f"mask_function has the part {name} of {getattr(part, '__module__', '?')}, which is not computed with "
        "attn_implementation='autotune'; expected causal, bidirectional, sliding windows, packed sequences or blocks"
    )


def _blocks_of(parts: Sequence[Callable[..., Any]]) -> "torch.Tensor | None":
    """Return the blocks of a union of a causal mask and blocks, None of another."""
    names = [_name_of(part) for part in parts]
    if sorted(names) != ["blockwise_overlay.inner_mask", "causal_mask_function"]:
        return None
    blocks: torch.Tensor = _variables(parts[names.index("blockwise_overlay.inner_mask")])["block_sequence_ids"]
    return blocks


def _name_of(part: Callable[..., Any]) -> str:
    return str(getattr(part, "__qualname__", repr(part))).replace(".<locals>", "")


def _variables(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what a function has from the functions around it."""
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    return {} if code is None else dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))
