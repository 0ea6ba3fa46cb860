"""Memory and barriers of a Hopper GPU over NumPy, for the simulator of Gluon kernels."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from tests.kernels.simulated_numbers import DTYPES, Tensor, unset

WARP_THREADS: Final = 32
GROUP_THREADS: Final = 128
BLOCK_COLUMNS: Final = 64  # of 16 bits, the widest swizzle


class Barrier:
    """An mbarrier: a phase ends when all have arrived and all expected bytes have."""

    def __init__(self) -> None:
        self.count = self.pending = self.bytes = self.phase = 0

    def arrive(self, count: int = 1, expected: int = 0, received: int = 0) -> None:
        self.pending -= count
        self.bytes += expected - received
        assert self.pending >= 0, "more arrivals than the barrier was made for"
        if self.pending == 0 and self.bytes == 0:
            self.phase ^= 1
            self.pending = self.count

    def describe(self) -> str:
        return f"a barrier of {self.count} stays in its phase {self.phase}"


class Named:
    """A named barrier of the block, by PTX's rules: all that sync or arrive count, and those that sync wait."""

    def __init__(self) -> None:
        self.present = self.total = self.rounds = 0

    def come(self, threads: int, total: int) -> None:
        self.present, self.total = self.present + threads, total
        assert self.present <= total, "more threads than the barrier is of"
        if self.present == total:
            self.present, self.rounds = 0, self.rounds + 1

    def describe(self) -> str:
        return f"{self.present} of {self.total} threads came"


class Shared:
    """A view of shared memory."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def shape(self) -> list[int]:
        return list(self.array.shape)

    @property
    def dtype(self) -> Any:
        return self.array.dtype.type

    def index(self, place: int) -> Any:
        found = self.array[place]
        return found[0] if isinstance(found[0], Barrier) else Shared(found)

    def reshape(self, shape: Sequence[int]) -> "Shared":
        view = self.array.reshape(tuple(shape))
        assert np.shares_memory(view, self.array)
        return Shared(view)

    def view_as(self, shape: Sequence[int]) -> "Shared | Runs":
        """Return what lies in the same memory from here on, in another shape."""
        if self.array.ndim == 3 and shape[-1] == BLOCK_COLUMNS < self.array.shape[2]:
            return Runs(self.array, shape[1:])
        memory = self.array
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        begin = (self.array.ctypes.data - memory.ctypes.data) // memory.itemsize
        return Shared(memory.reshape(-1)[begin : begin + int(np.prod(shape))].reshape(tuple(shape)))

    def slice(self, start: int, length: int, dim: int = 0) -> "Shared":
        return Shared(self.array[(slice(None),) * dim + (slice(start, start + length),)])

    def permute(self, order: Sequence[int]) -> "Shared":
        return Shared(self.array.transpose(tuple(order)))

    def store(self, value: Any) -> None:
        self.array[...] = value

    def load(self, layout: Any) -> Tensor:
        found: Tensor = self.array.copy().view(Tensor)
        return found


class Runs:
    """Tiles ``[tiles, rows, columns]`` by shorter runs of rows, ``[..., rows, 64]``.

    In memory a tile that is wider than its swizzle, 128 bytes, lies by blocks of so many columns, each with all rows.
    """

    def __init__(self, tiles: Any, shape: Sequence[int]) -> None:
        self._tiles, self._shape = tiles, tuple(shape)
        *_, self._rows, self._columns = self._shape
        self._blocks = int(np.prod(self._shape)) // self._rows // self._columns
        assert self._blocks == 1 or self._rows == tiles.shape[1]

    def index(self, place: int) -> Shared:
        _, rows, columns = self._tiles.shape
        pieces, width = rows // self._rows, self._blocks * self._columns
        tile, inside = divmod(place, columns // width * pieces)
        block, piece = divmod(inside, pieces)
        found = self._tiles[tile, piece * self._rows : (piece + 1) * self._rows, block * width : (block + 1) * width]
        blocks = found.reshape(self._rows, self._blocks, self._columns).transpose(1, 0, 2)
        assert np.shares_memory(blocks, self._tiles)
        return Shared(blocks.reshape(self._shape) if self._blocks == 1 else blocks[(None,) * (len(self._shape) - 3)])


class Descriptor:
    """A tensor descriptor of an array ``[B, S, H, D]``; what lies outside is read as 0 and not written."""

    def __init__(self, array: Any, rows: int, width: int | None = None, column: int = 0) -> None:
        self.array, self.layout = array, None
        self.block_shape = [1, rows, 1, width or array.shape[3]]
        self.dtype = array.dtype.type
        self.block_type = SimpleNamespace(nbytes=int(np.prod(self.block_shape)) * array.dtype.itemsize)

    def read(self, place: Sequence[int]) -> Any:
        found = np.zeros(self.block_shape, self.array.dtype)
        inner = self.array[tuple(map(slice, place, map(sum, zip(place, self.block_shape, strict=True))))]
        found[tuple(map(slice, inner.shape))] = inner
        return found

    def write(self, place: Sequence[int], tile: Any) -> None:
        inner = self.array[tuple(map(slice, place, map(sum, zip(place, self.block_shape, strict=True))))]
        inner[...] = tile[tuple(map(slice, inner.shape))]


def allocate(dtype: Any, shape: Sequence[int], layout: Any) -> Shared:
    if layout == "barrier":
        array = np.empty(tuple(shape), object)
        for place in itertools.product(*map(range, shape)):
            array[place] = Barrier()
        return Shared(array)
    held = DTYPES.get(dtype, dtype)
    return Shared(np.full(tuple(shape), unset(held), held))


def init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.pending = count


def expect(barrier: Barrier, size: int) -> None:
    barrier.arrive(1, expected=size)


class Pointer:
    """The address of an array, or of some of its elements."""

    def __init__(self, array: Any, offsets: Any = 0) -> None:
        self.array, self.offsets = array, offsets

    def __add__(self, offsets: Any) -> "Pointer":
        return Pointer(self.array, self.offsets + offsets)

    @property
    def dtype(self) -> SimpleNamespace:
        held = self.array.dtype.type
        return SimpleNamespace(element_ty=next((name for name, each in DTYPES.items() if each is held), held))


def store(pointer: Pointer, value: Any, mask: Any = True, *, cache_modifier: str = "") -> None:
    offsets, value = np.asarray(pointer.offsets), np.asarray(value)
    mask = np.broadcast_to(mask, value.shape)
    pointer.array.reshape(-1)[offsets[mask]] = value[mask]


def load(pointer: Pointer, mask: Any = True, other: Any = 0) -> Any:
    found = pointer.array.reshape(-1)[np.where(mask, pointer.offsets, 0)]
    if not np.ndim(found):
        return found if mask else pointer.array.dtype.type(other)
    return np.where(mask, found, np.asarray(other, pointer.array.dtype)).view(Tensor)
