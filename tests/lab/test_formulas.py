"""Traffic by formula against counting: loops over elements and tiles, and torch's own operations as they are issued."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.dtypes import ITEM_BYTES
from autotune.kernels.baselines.eager import Eager
from autotune.kernels.baselines.naive import kernel_traffic
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.lab.formulas import (
    eager_movements,
    evaluate,
    fused_movements,
    naive_movements,
    product_flops,
    tile_traffic,
    total_bytes,
    works,
)
from autotune.search_spaces.flash_attention.operation import cost
from autotune.shape import AttentionShape

SHAPES: dict[str, dict[str, Any]] = {
    "one-sequence": {"batch": 1, "heads": 2, "seq_q": 12, "head_dim": 8, "dtype": "float32"},
    "batch": {"batch": 2, "heads": 3, "seq_q": 10, "seq_kv": 17, "head_dim": 8, "head_dim_v": 16, "dtype": "float32"},
    "causal": {"batch": 2, "heads": 2, "seq_q": 11, "head_dim": 8, "dtype": "bfloat16", "causal": True},
    "more-keys": {"batch": 1, "heads": 4, "seq_q": 7, "seq_kv": 19, "head_dim": 16, "causal": True},
    "more-queries": {"batch": 1, "heads": 1, "seq_q": 19, "seq_kv": 7, "head_dim": 8, "causal": True},
    "groups": {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 9, "head_dim": 8, "dtype": "float32", "causal": True},
    "one-kv-head": {"batch": 1, "heads": 3, "kv_heads": 1, "seq_q": 5, "seq_kv": 8, "head_dim": 8, "dtype": "float16"},
    "one-head": {"batch": 2, "heads": 1, "seq_q": 6, "head_dim": 8, "dtype": "float32"},
    "one-query": {"batch": 2, "heads": 2, "seq_q": 1, "seq_kv": 9, "head_dim": 8, "dtype": "float32"},
    "window": {"batch": 1, "heads": 2, "seq_q": 21, "head_dim": 8, "window": 4, "causal": True},
    "window-both-ways": {"batch": 1, "heads": 2, "seq_q": 14, "seq_kv": 23, "head_dim": 8, "window": 3},
}
by_shape = pytest.mark.parametrize("fields", SHAPES.values(), ids=list(SHAPES))


def sees(shape: AttentionShape, query: int, key: int) -> bool:
    """True if a query sees a key: the last query and the last key are aligned."""
    ahead = key - (query + shape.seq_kv - shape.seq_q)
    if shape.causal and ahead > 0:
        return False
    return shape.window is None or abs(ahead) < shape.window


def pairs(shape: AttentionShape) -> list[tuple[int, int]]:
    return [(i, j) for i in range(shape.seq_q) for j in range(shape.seq_kv) if sees(shape, i, j)]


@by_shape
def test_flops_are_those_of_a_loop_over_pairs(fields: dict[str, Any]) -> None:
    shape = AttentionShape(**fields)
    counted = {"product Q K^T": 0, "product P V": 0, "scaling": 0, "softmax": 0}
    for _ in range(shape.batch * shape.heads):
        for _ in pairs(shape):
            counted["product Q K^T"] += sum(2 for _ in range(shape.head_dim))
            counted["product P V"] += sum(2 for _ in range(shape.head_dim_v))
            counted["scaling"] += 1
            counted["softmax"] += len(("max", "subtract", "exp", "add", "divide"))
    assert {work.step.partition(":")[0]: work.flops for work in works(shape)} == counted
    assert product_flops(shape) == counted["product Q K^T"] + counted["product P V"] == cost(shape).flops


@by_shape
def test_naive_moves_each_element_that_its_kernels_touch(fields: dict[str, Any]) -> None:
    """Elements that loops over the kernels' definitions read and write, each once a kernel; masks save nothing."""
    shape = AttentionShape(**{**fields, "window": None})
    touched: dict[tuple[str, str], set[tuple[Any, ...]]] = {}

    def touch(kernel: str, action: str, *element: Any) -> None:
        touched.setdefault((kernel, action), set()).add(element)

    for batch in range(shape.batch):
        for head in range(shape.heads):
            kv_head = head // (shape.heads // shape.kv_heads)
            for i in range(shape.seq_q):
                for j in range(shape.seq_kv):
                    for d in range(shape.head_dim):
                        touch("attention_scores", "read", "q", batch, head, i, d)
                        touch("attention_scores", "read", "k", batch, kv_head, j, d)
                    touch("attention_scores", "write", batch, head, i, j)
                    touch("softmax_rows", "read", batch, head, i, j)
                    touch("softmax_rows", "write", batch, head, i, j)
                    touch("weighted_sum", "read", "weights", batch, head, i, j)
                    for d in range(shape.head_dim_v):
                        touch("weighted_sum", "read", "v", batch, kv_head, j, d)
                        touch("weighted_sum", "write", batch, head, i, d)
    found: dict[tuple[str, str], int] = {}
    for movement in naive_movements(shape):
        key = (movement.kernel, movement.action)
        found[key] = found.get(key, 0) + movement.elements
    assert found == {key: len(elements) for key, elements in touched.items()}
    item = ITEM_BYTES[shape.dtype]
    by_kernel = {kernel: item * sum(n for (k, _), n in found.items() if k == kernel) for kernel, _ in found}
    assert kernel_traffic(shape) == by_kernel
    assert total_bytes(naive_movements(shape)) == sum(by_kernel.values())


class Bytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors that operations take and return; views move nothing, ``masked_fill`` clones first."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if function.is_view or name in ("_unsafe_view", "expand", "view", "transpose"):
            return result
        read = [tensor for tensor in args if isinstance(tensor, torch.Tensor)]
        self.total += sum(spread_bytes(tensor) for tensor in [*read, result])
        if name == "masked_fill":
            self.total += spread_bytes(read[0]) + spread_bytes(result)
        return result


def spread_bytes(tensor: torch.Tensor) -> int:
    """A tensor's bytes, what is repeated by a stride of 0 counted once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return elements * tensor.element_size()


@pytest.mark.parametrize(
    "fields", [f for f in SHAPES.values() if "window" not in f], ids=[n for n in SHAPES if "window" not in n]
)
def test_eager_moves_what_its_operations_take_and_return(fields: dict[str, Any]) -> None:
    shape = AttentionShape(**fields)
    call = Eager().prepare(shape, DEFINITION.make_inputs(shape, seed=0, device="cpu"))
    with Bytes() as counted:
        call()
    blind = shape.causal and shape.seq_q > shape.seq_kv  # another masked_fill, of the output
    extra = 4 * shape.batch * shape.heads * shape.seq_q * shape.head_dim_v * ITEM_BYTES[shape.dtype] + shape.seq_q
    assert total_bytes(eager_movements(shape)) == counted.total - (extra if blind else 0)


def test_masked_fill_clones_before_it_fills() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
        torch.zeros(8, 8).masked_fill(torch.ones(8, 8, dtype=torch.bool), 1.0)
    names = {event.key for event in profiler.key_averages()}
    assert {"aten::masked_fill", "aten::clone", "aten::copy_", "aten::masked_fill_"} <= names


@by_shape
@pytest.mark.parametrize("tile", [(4, 4), (16, 4), (3, 5), (8, 16), (64, 64)], ids=str)
@pytest.mark.parametrize("keeps_q", [True, False], ids=["keeps-q", "reads-q-again"])
def test_tiles_load_what_a_walk_over_them_loads(fields: dict[str, Any], tile: tuple[int, int], keeps_q: bool) -> None:
    """A program loads the key blocks from the first to the last of which a query of its own sees a key."""
    shape = AttentionShape(**fields)
    block_q, block_k = tile
    loaded = {"q": 0, "k": 0, "v": 0, "out": 0}
    for _ in range(shape.batch * shape.heads):
        for first in range(0, shape.seq_q, block_q):
            queries = range(first, min(first + block_q, shape.seq_q))
            blocks = [range(start, min(start + block_k, shape.seq_kv)) for start in range(0, shape.seq_kv, block_k)]
            seen = [n for n, keys in enumerate(blocks) if any(sees(shape, i, j) for i in queries for j in keys)]
            visited = blocks[seen[0] : seen[-1] + 1] if seen else []
            loaded["q"] += len(queries) * shape.head_dim * (1 if keeps_q else len(visited))
            loaded["out"] += len(queries) * shape.head_dim_v
            for keys in visited:
                loaded["k"] += len(keys) * shape.head_dim
                loaded["v"] += len(keys) * shape.head_dim_v
    found = tile_traffic(shape, block_q, block_k, keeps_q=keeps_q)
    item = ITEM_BYTES[shape.dtype]
    assert {name: getattr(found, name) for name in loaded} == {name: n * item for name, n in loaded.items()}
    assert found.total == item * sum(loaded.values())


def test_tiles_as_long_as_everything_load_each_input_once() -> None:
    shape = AttentionShape(batch=2, heads=3, seq_q=50, seq_kv=70, head_dim=64, head_dim_v=32)
    assert tile_traffic(shape, 64, 128).total == total_bytes(fused_movements(shape)) == cost(shape).bytes


def test_the_exercise_of_the_origins() -> None:
    """Batch 2, 16 heads, S 1024, D 64, tiles of 64 x 64, fp32: 16 tiles a head, 16 KB a tile."""
    shape = AttentionShape(batch=2, heads=16, seq_q=1024, head_dim=64, dtype="float32")
    found = tile_traffic(shape, 64, 64)
    tile = 16 * 2**10
    assert (found.q, found.out) == (32 * 16 * tile, 32 * 16 * tile)
    assert (found.k, found.v) == (32 * 16 * 16 * tile, 32 * 16 * 16 * tile)
    assert tile_traffic(shape, 64, 64, keeps_q=False).q == found.k


def test_the_assignments_intensities() -> None:
    """10.7 FLOPs a byte at S 128 and 15.1 at 1024 (D 64, fp32), and 32 MiB of scores at 1024."""
    for seq, expected in ((128, 10.67), (512, 14.22), (1024, 15.06)):
        shape = AttentionShape(batch=1, heads=8, seq_q=seq, head_dim=64, dtype="float32")
        assert product_flops(shape) / total_bytes(naive_movements(shape)) == pytest.approx(expected, abs=0.005)
    scores = next(m for m in naive_movements(shape) if m.action == "write")
    assert scores.bytes == 32 * 2**20


def test_a_formula_is_the_product_of_its_symbols() -> None:
    shape = AttentionShape(batch=3, heads=4, kv_heads=2, seq_q=5, seq_kv=7, head_dim=8, head_dim_v=16, causal=True)
    assert evaluate("2 B H_kv S_kv D_v", shape) == 2 * 3 * 2 * 7 * 16
    assert evaluate("P", shape) == len(pairs(shape)) == 3 + 4 + 5 + 6 + 7
