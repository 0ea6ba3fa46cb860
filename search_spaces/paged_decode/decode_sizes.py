"""The sizes of a paged decode on a GPU that its default follows, and which of its rules apply."""

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
# Where so few SMs have a second program of so many keys, a third of each is dealt out more evenly: 3 drawn problems of
# the H200 (2026-11-28), 0.90 to 0.97; of 1024 keys 1.02.
FEW_SECOND, LONG_FEW_SECOND, SPLITS_OF_FEW_SECOND = 1.3, 1536, 3
MOSTLY: Final = 0.7  # of the SMs: fewer programs are too few
BUSY: Final = 0.9  # programs an SM: whole sequences leave 4 of 132 SMs idle, and spare merging
# Of sequences no longer than this, and about half as long in the mean, a program each is the fastest where most SMs
# have one: 4 drawn problems of the H200 (2026-11-28) take 0.77 to 0.85 of the time of splits and of equal shares of all
# tiles, 4 with means of 256 and the longest of 1024 take 1.2 to 1.3.
SHORTEST, LEAST_EVENNESS = 640, 0.4
VERY_UNEVEN: Final = 0.25
# Few narrow heads of short sequences in 16 bits, rows of half a tile or more, are read by many small programs: 2
# problems of 64/8 heads of 64 take 0.80 (H200), and 0.89 and 0.90 (both GPUs) of the time of fewer splits of larger
# tiles; of 2 more, over 1941 and 4096 tokens of the H200, it or all of it but the stages is the best of 237 and of 31.
FEW_SEQUENCES, FEW_SPLITS, FEW_STAGES = 0.25, 32, 4
FEW_LENGTHS: Final = (1024, 4096)
# Splits of so few tiles gain less by a third stage than by their programs being all resident.
FEW_TILES: Final = 3


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

    def has_few_second(self) -> bool:
        """Return True if whole sequences of one length are long, and a few SMs would have two where others have one."""
        return (
            self.takes_large_tiles()
            and 1.0 < self.busy <= FEW_SECOND
            and self.reads.evenness == 1.0
            and self.reads.longest >= LONG_FEW_SECOND
            and NARROW < self.width_v <= USUAL
        )

    def are_short(self) -> bool:
        """Return True if sequences of different lengths are all so short that splitting none takes less time."""
        return (
            self.reads.longest <= SHORTEST
            and self.reads.evenness >= LEAST_EVENNESS
            and self.sequences / self.device.sm_count >= MOSTLY
            and self.busy < BUSY
            and NARROW < self.width_v <= USUAL
            and self.rows == bounds.MIN_BLOCK
            and self.item_bytes == 2
        )

    def has_few_tiles(self) -> bool:
        """Return True if a very uneven batch has fewer tiles than programs that would take equal shares of them.

        One problem says so, 4 x 8/1 heads of 128 over 8192 tokens, 2048 in the mean: splits of as many keys took 0.90
        of the time of equal shares (NVIDIA H200, 2026-11-27; on an H100 other splits took 0.77).
        """
        tiles = self.sequences * self.reads.mean / self.block_k
        return (
            tiles < PROGRAMS * self.device.sm_count
            and self.reads.evenness <= VERY_UNEVEN
            and NARROW < self.width_v <= USUAL
            and self.rows == bounds.MIN_BLOCK
            and self.item_bytes == 2
            and self.has_large_memory
        )

    def are_few(self) -> bool:
        """Return True if few narrow heads of short sequences are read the fastest by many small programs."""
        shortest, longest = FEW_LENGTHS
        return (
            shortest <= self.reads.longest <= longest
            and self.busy <= FEW_SEQUENCES
            and max(self.width_k, self.width_v) <= NARROW
            and not self.window_hides
            and self.rows == bounds.MIN_BLOCK
            and 2 * self.rows_of_a_head >= bounds.MIN_BLOCK
            and self.item_bytes == 2
            and self.has_large_memory
        )

    def suits_narrow_window(self) -> bool:
        """Return True if a window hides keys from narrow heads of 16 bits, on GPUs as recorded."""
        return (
            self.window_hides
            and max(self.width_k, self.width_v) <= NARROW
            and self.rows == bounds.MIN_BLOCK
            and self.item_bytes == 2
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

    def suits_few_warps(self) -> bool:
        """Return True if small tiles of such heads and lengths were the faster with few warps, on GPUs as recorded."""
        return (
            self.rows == bounds.MIN_BLOCK
            and max(self.width_k, self.width_v) <= USUAL
            and self.item_bytes == 2
            and self.reads.evenness >= LEAST_EVENNESS
            and self.has_large_memory
        )

    def is_crowded(self, heads: int, block_k: int, splits: int) -> bool:
        """Return True if an SM holds all splits of a ragged batch at once only with a tile less in flight each."""
        if self.reads.evenness == 1.0 or splits == 1:
            return False
        programs = self.sequences * splits / heads / self.device.sm_count
        tile, beside = block_k * self.key_bytes, self.bytes_beside(block_k)
        is_short = self.reads.longest * heads <= FEW_TILES * block_k * splits
        return is_short and programs * (2 * tile + beside) > self.device.shared_memory_bytes

    def bytes_beside(self, block_k: int) -> int:
        """Return the bytes beside the tiles in flight: of the queries and the weights of one tile."""
        return self.rows * (self.width_k + block_k) * ITEM_BYTES[self.shape.dtype]
