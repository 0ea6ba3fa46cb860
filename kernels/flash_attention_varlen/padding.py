"""Checks of what says which rows of a sequence count: int32, one number a sequence, counted from its first row.

Each raises ``InputMismatchError``, whose message says what is wrong and what is expected.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.tensors import check_together, describe

# Of queries, of keys, and of the keys that do not count at first: as a padded batch names them, and packed sequences.
PADDED: Final = ("q_lens", "kv_lens", "kv_starts")
PACKED: Final = ("seqused_q", "seqused_k", "kv_starts")

Numbers = Mapping[str, torch.Tensor | None]


def refuse_bytes(q: torch.Tensor, numbers: Numbers) -> None:
    """Refuse queries of one byte an element, which no kernel of a padded batch takes."""
    if q.element_size() == 1:
        name = next(name for name, each in numbers.items() if each is not None)
        raise InputMismatchError(f"{name} is given, and q is {describe(q)}; expected 16 or 32 bits in a padded batch")


def check_padding(numbers: Numbers, sequences: int, like: Mapping[str, torch.Tensor]) -> None:
    """Refuse what is no int32 number a sequence, contiguous and where the first tensor of ``like`` is; reads none."""
    given = {name: each for name, each in numbers.items() if each is not None}
    for name, each in given.items():
        is_vector = isinstance(each, torch.Tensor) and tuple(each.shape) == (sequences,) and each.is_contiguous()
        if not is_vector or each.dtype != torch.int32:
            raise InputMismatchError(
                f"{name} is {describe(each)}; expected ({sequences},) int32, contiguous: a number for each sequence"
            )
    if given:
        first = next(iter(like))
        check_together({first: like[first], **given})


def check_counts(numbers: Numbers, queries: Sequence[int], keys: Sequence[int]) -> None:
    """Read the numbers, and refuse those beyond a sequence, given how many rows each has; waits for the GPU."""
    q_name, kv_name, starts_name = numbers
    _check_within(q_name, numbers[q_name], queries, "its queries")
    _check_within(kv_name, numbers[kv_name], keys, "its keys")
    lens = numbers[kv_name]
    if lens is None:
        _check_within(starts_name, numbers[starts_name], keys, "its keys")
    else:
        _check_within(starts_name, numbers[starts_name], lens.tolist(), f"its {kv_name}")


def _check_within(name: str, numbers: torch.Tensor | None, bounds: Sequence[int], of: str) -> None:
    if numbers is None:
        return
    for sequence, (number, bound) in enumerate(zip(numbers.tolist(), bounds, strict=True)):
        if not 0 <= number <= bound:
            raise InputMismatchError(f"{name}[{sequence}]={number} is not allowed; expected 0 to {bound}, {of}")
