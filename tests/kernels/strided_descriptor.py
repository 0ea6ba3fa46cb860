"""Tensor descriptors of any strides for the simulator of Gluon kernels, such as ragged ones."""

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.kernels.simulated_numbers import unset


class StridedDescriptor:
    """A tensor descriptor by what the hardware knows: memory, sizes, strides, and addresses modulo 2 ** 64.

    What lies outside of the sizes is read as 0 and not written; outside of the memory are others' bits.
    """

    def __init__(self, memory: Any, sizes: Sequence[int], strides: Sequence[int], block: Sequence[int]) -> None:
        self._memory, self._sizes, self._strides = memory, tuple(sizes), tuple(strides)
        self.block_shape, self.layout = list(block), None
        self.dtype = memory.dtype.type
        self.block_type = SimpleNamespace(nbytes=int(np.prod(block)) * memory.dtype.itemsize)

    def read(self, place: Sequence[int]) -> Any:
        found = np.zeros(self.block_shape, self._memory.dtype)
        for inside, begin, count in self._pieces(place):
            is_ours = begin + count <= len(self._memory)
            found[inside][:count] = self._memory[begin : begin + count] if is_ours else unset(self.dtype)
        return found

    def write(self, place: Sequence[int], tile: Any) -> None:
        for inside, begin, count in self._pieces(place):
            assert begin + count <= len(self._memory), "a store outside of the tensor"
            self._memory[begin : begin + count] = tile[inside][:count]

    def _pieces(self, place: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Yield for each row of a tile where it is, where in memory, and how many elements are within the sizes."""
        *outer, column = map(int, place)
        count = min(self.block_shape[-1], self._sizes[-1] - column)
        for inside in itertools.product(*map(range, self.block_shape[:-1])):
            at = [begin + step for begin, step in zip(outer, inside, strict=True)]
            if all(0 <= each < size for each, size in zip(at, self._sizes, strict=False)):
                begin = sum(each * stride for each, stride in zip(at, self._strides, strict=False)) + column
                yield inside, begin % (2**64 // self._memory.itemsize), count
