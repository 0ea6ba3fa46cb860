"""Paged prefill over pages laid side by side: the problems of its gate, and the bugs that those must catch."""

from typing import Any, Final

from autotune.kernels.paged_prefill.inputs import check_shape
from autotune.shape import PagedShape
from autotune.space import Config
from tests.contract.implementations.flash_attention_varlen_gluon_hopper import SIMPLE
from tests.contract.planting import Gate, Mutant, Planted

SIZES: Final[dict[str, Any]] = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 48, "max_context": 300, "head_dim": 32}
SHAPES: Final = {
    "plain": PagedShape(**SIZES, dtype="float16"),
    "window": PagedShape(**SIZES, dtype="float16", window=60, sinks=True, layout="HND"),
    "e4m3": PagedShape(**SIZES, dtype="float16", kv_dtype="float8_e4m3fn"),
    "wide": PagedShape(**{**SIZES, "head_dim": 40}, head_dim_v=24, dtype="float16", page_size=64, causal=False),
}
# Keys of each sequence, and its new queries: about a block of what is copied, about a page, and none of either.
LENGTHS: Final = ((130, 33, 0, 63), (65, 33, 2, 0))
CONFIG: Final = Config(SIMPLE)

LAUNCH: Final = "launch.py"  # what copies is tested on its own: ``tests.kernels.paged_prefill.test_gather``
MUTANTS: Final = (
    Mutant("keys of all that there is room for", LAUNCH, "seqused_k=seq_lens", "seqused_k=None", "plain"),
    Mutant("unscaled", LAUNCH, "scales=None if k_scale is None or v_scale is None else", "scales=None if True else",
           "e4m3"),
    Mutant("scales of keys for values", LAUNCH, "HeadScales(k_scale, v_scale,", "HeadScales(k_scale, k_scale,", "e4m3"),
    Mutant("scale of the first head", LAUNCH, "each.stride(0) if each.ndim else 0", "0", "e4m3"),
    Mutant("sequences closer than their keys", LAUNCH, "room, widths = max_pages *", "room, widths = max_pages // 2 *",
           "plain"),
    Mutant("queries of the keys", LAUNCH, "cu_seqlens_q, gathered.offsets", "gathered.offsets, gathered.offsets",
           "plain"),
    Mutant("causal where all is seen", LAUNCH, "causal=causal,", "causal=True,", "wide"),
    Mutant("no window", LAUNCH, "window=window,", "window=None,", "window"),
    Mutant("no sinks", LAUNCH, "sinks=sinks,", "sinks=None,", "window"),
    Mutant("twice the scale", LAUNCH, "scale=scale,", "scale=2.0 * scale,", "plain"),
)  # fmt: skip

PLANTED: Final = Planted({name: Gate(check_shape(shape, *LENGTHS), CONFIG) for name, shape in SHAPES.items()}, MUTANTS)
