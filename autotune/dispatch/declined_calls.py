"""Calls that a candidate cannot take, told apart once by their signature: others like it go to the next at once."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

ALIGNMENT: Final = 16  # bytes, of addresses: all that copies by tensor maps ask for, and the widest loads
KEPT: Final = 256  # signatures of one kernel


class DeclinedCalls:
    """The candidates of a kernel that declined calls, of which signatures, and why; ``KEPT`` of them, then anew.

    Attributes:
        reasons: each decline in a line, once, in order.
    """

    __slots__ = ("_candidates", "reasons")

    def __init__(self) -> None:
        self._candidates: dict[Hashable, frozenset[int]] = {}
        self.reasons: tuple[str, ...] = ()

    def of(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> frozenset[int]:
        """Return the identities of the candidates that declined calls like this one."""
        signature = _sign(tensors, options)
        return frozenset() if signature is None else self._candidates.get(signature, frozenset())

    def add(self, candidate: int, tensors: Sequence[Any], options: Mapping[str, Any], reason: str) -> bool:
        """Keep that a candidate declined calls like this one; False where that is known, or cannot be told apart."""
        if (signature := _sign(tensors, options)) is None:
            return False
        known = self._candidates.get(signature, frozenset())
        if candidate in known:
            return False
        if len(self._candidates) >= KEPT:
            self._candidates, self.reasons = {}, ()  # others may read the old ones meanwhile
        self._candidates[signature] = known | {candidate}
        if reason not in self.reasons:
            self.reasons = (*self.reasons, reason)
        return True


def _sign(tensors: Sequence[Any], options: Mapping[str, Any]) -> Hashable | None:
    """Return all that a call may be declined by but contents: types, sizes, strides, devices, the alignment of
    addresses, and the values of options. None of a call that has no such signature, as one over fake tensors."""
    try:
        parts = (*map(_part, tensors), *((name, _part(value)) for name, value in options.items()))
        hash(parts)
    except (TypeError, RuntimeError):
        return None
    return parts


def _part(value: Any) -> Hashable:
    if not hasattr(value, "data_ptr"):
        return type(value), value
    is_aligned = value.data_ptr() % ALIGNMENT == 0
    return type(value), tuple(value.shape), value.stride(), value.dtype, value.device, is_aligned
