"""Stand-ins for FlashAttention 3 and 2 on the CPU."""

import sys
from types import ModuleType
from typing import Any, Final

import pytest
import torch

from tests.kernels.baselines.signatures import flash_attn, flash_attn_interface
from tests.kernels.baselines.stand_ins import Recorder, attend, gather

RECORDED: Final = {3: flash_attn_interface, 2: flash_attn}
NAMES: Final = {3: "flash_attn_interface", 2: "flash_attn"}


def answer(given: dict[str, Any]) -> torch.Tensor:
    """Compute a call of any of the functions: dense sequences, or pages by a table, queries packed or not."""
    q, offsets = given["q"], given.get("cu_seqlens_q")
    queries = list(q) if offsets is None else q.split(offsets.diff().tolist())
    left, right = given["window_size"]
    options = {
        "scale": given["softmax_scale"],
        "before": left,
        "after": 0 if given["causal"] else right,
        "softcap": given["softcap"],
        "slopes": given.get("alibi_slopes"),
    }
    table = given.get("page_table", given.get("block_table"))
    if table is None:
        sequences = [list(pair) for pair in zip(given["k"], given["v"], strict=True)]
    else:
        caches = [given[name] if name in given else given[name[0]] for name in ("k_cache", "v_cache")]
        lengths = given["cache_seqlens"] if "cache_seqlens" in given else given["cu_seqlens_k"].diff()
        used = [(row[: -(-int(n) // caches[0].shape[1])], int(n)) for row, n in zip(table, lengths, strict=True)]
        sequences = [gather(caches, pages, length) for pages, length in used]
    out = [attend(own, *pair, **options).to(q.dtype) for own, pair in zip(queries, sequences, strict=True)]
    return torch.stack(out) if offsets is None else torch.cat(out)


def install(monkeypatch: pytest.MonkeyPatch, version: int, *, old: bool = False) -> Recorder:
    """Let the package of this version be the stand-in's, until the test ends; ``old`` adds the log-sum-exp."""
    recorder, module = Recorder(), ModuleType(NAMES[version])
    for name, stub in vars(RECORDED[version]).items():
        if callable(stub):
            vars(module)[name] = recorder.replace(stub, lambda given: (answer(given), None) if old else answer(given))
    monkeypatch.setitem(sys.modules, NAMES[version], module)
    return recorder
