"""The traffic between naive attention's kernels and memory, by formula; without triton."""

from autotune.shape import ITEM_BYTES, AttentionShape


def memory_traffic(shape: AttentionShape) -> int:
    """Return bytes of every read and write of the three kernels: the sum of ``kernel_traffic``.

    The scores cross the memory four times, Q, K, V and the output once. Of equal lengths, heads and widths that is
    ``4 b B H S (S + D)`` with ``b`` bytes an element.
    """
    return sum(kernel_traffic(shape).values())


def kernel_traffic(shape: AttentionShape) -> dict[str, int]:
    """Return bytes that each kernel reads and writes, by its name in ``forward.py`` (and in a profiler).

    Each tensor counts once a kernel: what a kernel's tiles read again (queries and keys for other tiles of scores, a
    row in the softmax's second pass) comes from the caches. A mask saves nothing, since hidden scores are written, read
    and weighted like others. A kernel's writes count even where they still lie in the L2 when it ends.
    """
    queries = shape.batch * shape.heads * shape.seq_q  # rows of Q, of the output and of the scores
    keys = shape.batch * shape.kv_heads * shape.seq_kv  # rows of K and V: a group of query heads shares them
    scores = queries * shape.seq_kv
    elements = {
        "attention_scores": queries * shape.head_dim  # read Q
        + keys * shape.head_dim  # read K
        + scores,  # write the scores
        "softmax_rows": scores  # read the scores
        + scores,  # write the weights
        "weighted_sum": scores  # read the weights
        + keys * shape.head_dim_v  # read V
        + queries * shape.head_dim_v,  # write the output
    }
    return {kernel: count * ITEM_BYTES[shape.dtype] for kernel, count in elements.items()}
