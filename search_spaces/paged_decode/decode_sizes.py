"""The sizes of a paged decode on a GPU that its defaults follow."""

from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES, KV_ITEM_BYTES
from autotune.rounding import power_of_two
from autotune.search_spaces import bounds, compiled_tiles
from autotune.search_spaces.paged_decode.decode_merging import USUAL
from autotune.search_spaces.paged_decode.decode_work import keys_read
from autotune.shape import PagedShape

MAX_BLOCK_ROWS: Final = 64
# Numbers of a row: of narrow heads two have the bytes of a usual one (``USUAL``), of broad ones a tile has few keys and
# partial results many bytes, of wide ones a tile fills shared memory and registers sooner.
NARROW, WIDE = 64, 256
PROGRAMS: Final = 2  # an SM, and the keys of a tile of each, with as many bytes of values: enough in flight
TILE_BYTES: Final = 16384
MAX_BLOCK_K: Final = 128
BUSY: Final = 0.9  # programs an SM: whole sequences leave 4 of 132 SMs idle, and spare merging


def is_wide(shape: PagedShape) -> bool:
    """Return True if heads are so wide that a tile has few keys."""
    return max(shape.head_dim, shape.head_dim_v) > WIDE


class DecodeSizes:
    """The sizes of a shape on a device that configs follow.

    ``heads`` and ``block_k`` are of the usual tile. ``sequences`` are the programs, if none reads two KV heads and none
    is split; ``busy`` is how many of them an SM has in the mean of the time.
    """

    def __init__(self, shape: PagedShape, device: Device) -> None:
        self.shape, self.device, self.reads = shape, device, keys_read(shape)
        self.width_k, self.width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
        self.item_bytes = KV_ITEM_BYTES[shape.kv_dtype]
        self.key_bytes = (self.width_k + self.width_v) * self.item_bytes
        self.rows_of_a_head = shape.group * shape.seq_q
        self.rows = min(MAX_BLOCK_ROWS, max(bounds.MIN_BLOCK, power_of_two(self.rows_of_a_head)))
        self.sequences = shape.batch * shape.kv_heads * -(-self.rows_of_a_head // self.rows)
        self.window_hides = self.reads.longest < shape.max_context
        self.busy = self.sequences * self.reads.evenness / device.sm_count
        self.is_broad = USUAL < self.width_v <= WIDE
        self.has_large_memory = device.shared_memory_bytes >= bounds.LARGE_SHARED_MEMORY
        self.heads = self.heads_of(2)[-1]
        most_bytes, self.room = TILE_BYTES, device.shared_memory_bytes
        if device.shared_memory_bytes <= compiled_tiles.SMALL_SHARED_MEMORY and device.has("async_copies"):
            # Two blocks an SM, or its four schedulers have one warp each (benchmarks.architecture_defaults).
            most_bytes, self.room = most_bytes // 2, self.room // 2
        self.least_block_k = bounds.MIN_BLOCK if is_wide(shape) else bounds.MIN_BLOCK_K
        most = min(MAX_BLOCK_K, most_bytes // max(self.width_k, self.width_v) // self.item_bytes)
        self.block_k = max(self.least_block_k, most)

    def takes_large_tiles(self) -> bool:
        """Return True if whole sequences fill the SMs and large tiles were the best for them: of 16 bits, of few rows,
        where shared memory holds two; broad heads have small ones, of which an SM needs two."""
        return (
            self.busy >= (PROGRAMS * BUSY if self.is_broad else BUSY)
            and self.rows == bounds.MIN_BLOCK
            and self.item_bytes == 2
            and not is_wide(self.shape)
            and self.has_large_memory
        )

    def heads_of(self, most: int) -> list[int]:
        """List the KV heads that one program may read, whose rows one tile has anyhow: powers of two."""
        return [
            heads
            for heads in (1, 2, 4, 8)
            if heads == 1
            or (heads <= most and self.shape.kv_heads % heads == 0 and heads * self.rows_of_a_head <= bounds.MIN_BLOCK)
        ]

    def bytes_beside(self, block_k: int) -> int:
        """Return the bytes beside the tiles in flight: of the queries and the weights of one tile."""
        return self.rows * (self.width_k + block_k) * ITEM_BYTES[self.shape.dtype]
