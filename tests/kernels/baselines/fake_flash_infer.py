"""A stand-in for FlashInfer on the CPU."""

import sys
from types import ModuleType
from typing import Any, Final

import pytest
import torch

from tests.kernels.baselines.signatures import flashinfer
from tests.kernels.baselines.stand_ins import Recorder, attend, gather

WRAPPERS: Final = {
    "ragged": flashinfer.BatchPrefillWithRaggedKVCacheWrapper,
    "decode": flashinfer.BatchDecodeWithPagedKVCacheWrapper,
    "prefill": flashinfer.BatchPrefillWithPagedKVCacheWrapper,
}


def options_of(given: dict[str, Any], k_scale: float | None = None) -> dict[str, Any]:
    return {
        "scale": given["sm_scale"] * (1.0 if k_scale is None else k_scale),
        "before": given["window_left"],
        "after": 0 if given.get("causal", True) else -1,
        "softcap": given["logits_soft_cap"],
    }


def answer_one(given: dict[str, Any]) -> torch.Tensor:
    """Compute one dense sequence."""
    return attend(given["q"], given["k"], given["v"], **options_of(given)).to(given["q"].dtype)


def answer_run(layout: str, planned: dict[str, Any], given: dict[str, Any]) -> torch.Tensor:
    """Compute a wrapper's run after its plan: ragged keys and values, or pages, of which decode has a query each."""
    q = given["q"]
    offsets = planned.get("qo_indptr")
    queries = q.split(1 if offsets is None else offsets.diff().tolist())
    if "kv_indptr" in planned:
        lengths = planned["kv_indptr"].diff().tolist()
        sequences = [list(pair) for pair in zip(given["k"].split(lengths), given["v"].split(lengths), strict=True)]
    else:
        prefix = "" if offsets is None else "paged_kv_"
        counts, last = planned[f"{prefix}indptr"].diff(), planned[f"{prefix}last_page_len"]
        caches = [cache if layout == "NHD" else cache.transpose(1, 2) for cache in given["paged_kv_cache"]]
        lengths = ((counts - 1).clamp(min=0) * planned["page_size"] + last).tolist()
        pages = planned[f"{prefix}indices"].split(counts.tolist())
        sequences = [gather(caches, own, length) for own, length in zip(pages, lengths, strict=True)]
    options = options_of(planned, given.get("k_scale"))
    out = torch.cat([attend(own, *pair, **options) for own, pair in zip(queries, sequences, strict=True)]).to(q.dtype)
    return out if given.get("v_scale") is None else (out * given["v_scale"]).to(q.dtype)


def wrapper(recorder: Recorder, label: str, stub: Any) -> type:
    """Make a wrapper's class: what it was made with is recorded in its plan, whose tensors are copied as the library's
    are to the device."""

    class Wrapper:
        def __init__(self, *arguments: Any, **named: Any) -> None:
            made = Recorder()
            made.replace(stub.__init__, dict)(self, *arguments, **named)
            self.made = made.calls[0].given
            self.workspace = self.made["float_workspace_buffer"]

        def plan(self, *arguments: Any, **named: Any) -> None:
            recorder.replace(stub.plan, dict, f"{label}.plan")(self, *arguments, **named)
            given = recorder.calls[-1].given
            self.planned = {
                name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in given.items()
            }
            given |= {name: self.made[name] for name in ("use_tensor_cores", "backend") if name in self.made}

        def run(self, *arguments: Any, **named: Any) -> Any:
            def answer(given: dict[str, Any]) -> torch.Tensor:
                return answer_run(self.made["kv_layout"], self.planned, given)

            return recorder.replace(stub.run, answer, f"{label}.run")(self, *arguments, **named)

    return Wrapper


def install(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Let ``import flashinfer`` find the stand-in, until the test ends."""
    recorder, module = Recorder(), ModuleType("flashinfer")
    for label, stub in WRAPPERS.items():
        vars(module)[stub.__name__] = wrapper(recorder, label, stub)
    function = flashinfer.single_prefill_with_kv_cache
    vars(module)[function.__name__] = recorder.replace(function, answer_one)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    return recorder
