"""Places of the tokens that count in padded or packed rows, for ``autotune.attention_varlen``; found once a forward."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from autotune.errors import UnsupportedCallError

Index = tuple[torch.Tensor, ...]  # of rows and of places in them


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Tokens of a batch, one sequence after another: ``queries`` and ``keys`` say where they lie, None for all of them.

    ``offsets_q`` and ``offsets_k`` are int32 ``[sequences + 1]``, ``longest_q`` and ``longest_k`` the longest lengths.
    """

    queries: Index | None
    keys: Index | None
    offsets_q: torch.Tensor
    offsets_k: torch.Tensor
    longest_q: int
    longest_k: int


def pack_padded(
    queries: torch.Tensor | None, keys: torch.Tensor, query_length: int, sequences: torch.Tensor | None = None
) -> Packing:
    """Pack the tokens for which a bool ``[B, S]`` is true; without ``queries`` all ``query_length`` of a row count.

    ``sequences [B, S]`` number those that share a row, whose queries and keys are the same tokens then.
    """
    rows = keys.shape[0]
    if sequences is None:
        lengths_k = keys.sum(1)
        lengths_q = torch.full_like(lengths_k, query_length) if queries is None else queries.sum(1)
    else:
        numbers = _starts(sequences).flatten().cumsum(0) - 1
        count = int(numbers[-1]) + 1 if rows else 0
        lengths_k = numbers[keys.flatten()].bincount(minlength=count)
        lengths_q = (numbers if queries is None else numbers[queries.flatten()]).bincount(minlength=count)
    longest_q, longest_k = torch.stack([lengths_q, lengths_k]).amax(1).tolist() if rows else (0, 0)
    return Packing(
        queries=None if queries is None else queries.nonzero(as_tuple=True),
        keys=keys.nonzero(as_tuple=True),
        offsets_q=_offsets(lengths_q),
        offsets_k=_offsets(lengths_k),
        longest_q=max(1, longest_q),  # a hint, and those are positive
        longest_k=max(1, longest_k),
    )


def pack_sequences(sequences: torch.Tensor) -> Packing:
    """Pack rows ``[B, S]`` of tokens that are numbered by their sequence; none goes on in the next row."""
    starts = _starts(sequences)
    offsets = pad(starts.flatten().nonzero().flatten(), (0, 1), value=sequences.numel()).int()
    longest = int(offsets.diff().max())
    return Packing(queries=None, keys=None, offsets_q=offsets, offsets_k=offsets, longest_q=longest, longest_k=longest)


def ends_of_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """Return where the block of each token ends, int32 ``[B, S]``, given its number or -1; 0 of a token without one.

    Raises:
        UnsupportedCallError: the tokens of a block do not lie together.
    """
    places = torch.arange(blocks.shape[1], device=blocks.device)
    is_last = torch.ones_like(blocks, dtype=torch.bool)
    is_last[:, :-1] = blocks[:, 1:] != blocks[:, :-1]
    numbers = [row[last & (row >= 0)] for row, last in zip(blocks, is_last, strict=True)]
    if any(each.numel() != each.unique().numel() for each in numbers):
        raise UnsupportedCallError("block_sequence_ids with a block in several parts is not computed")
    ends = torch.where(is_last, places + 1, blocks.shape[1])
    ends = ends.flip(1).cummin(1).values.flip(1)
    return ends.masked_fill(blocks < 0, 0).int()


def has_holes(valid: torch.Tensor) -> bool:
    """Return if in a row of a bool ``[B, S]`` what is true does not lie together."""
    return bool((pad(valid, (1, 0)).int().diff(dim=1) > 0).sum(1).gt(1).any())


def _offsets(lengths: torch.Tensor) -> torch.Tensor:
    return pad(lengths.cumsum(0), (1, 0)).int()


def _starts(sequences: torch.Tensor) -> torch.Tensor:
    """Return which tokens of rows ``[B, S]`` are the first of their sequence."""
    starts = torch.ones_like(sequences, dtype=torch.bool)
    starts[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    return starts
