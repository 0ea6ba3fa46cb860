"""The backend against the classes of the vLLM that is installed: nothing of it is imitated.

Without vLLM these are skipped; ``test_vllm_wheel.py`` installs its wheel, without what it requires, and runs them.
"""

import inspect
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch

pytest.importorskip("vllm.v1.attention.backend", reason="vLLM is not installed", exc_type=ImportError)

from vllm.plugins import DEFAULT_PLUGINS_GROUP
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import AttentionSelectorConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout, KVCacheTensor, create_kv_cache_views

from autotune.errors import UnsupportedCallError
from autotune.integrations.vllm import BACKEND, register
from autotune.integrations.vllm.backend import AutotuneBackend, AutotuneImpl, AutotuneMetadataBuilder
from autotune.integrations.vllm.limits import CACHES
from autotune.integrations.vllm.paged_batch import REFUSED, PagedBatch
from tests.contract.interpreting import interpret
from tests.integrations.vllm import recorded_batches
from tests.integrations.vllm.recorded_batches import LAYERS, ORDERS, LayerCase

CUSTOM: Final = AttentionBackendEnum.CUSTOM
HOPPER: Final = (9, 0)
# Fields of a step's metadata that change nothing of what is computed, or say it again.
WITHOUT_EFFECT: Final = {
    *("query_start_loc_cpu", "max_seq_len", "slot_mapping", "positions", "is_prefilling", "req_idx"),
    *("seq_lens_cpu_upper_bound", "encoder_seq_lens_cpu", "dcp_local_seq_lens_cpu_upper_bound"),
    *("logits_indices_padded", "num_logits_indices", "max_logits_per_req", "replayssm_decode_base_cpu"),
    *("_num_computed_tokens_cache", "_token_to_req_indices_cache"),
}
COMPUTED: Final = {
    *("query_start_loc", "seq_lens", "num_reqs", "num_actual_tokens", "max_query_len", "block_table_tensor", "causal"),
}


@pytest.fixture(autouse=True)
def no_backend() -> Iterator[None]:
    CUSTOM.clear_override()
    yield
    CUSTOM.clear_override()


def test_the_entry_point_of_the_package_registers_the_backend() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (name, value), *others = project["entry-points"][DEFAULT_PLUGINS_GROUP].items()
    assert not others
    EntryPoint(name, value, DEFAULT_PLUGINS_GROUP).load()()
    assert CUSTOM.get_class() is AutotuneBackend
    assert AttentionBackendEnum[AutotuneBackend.get_name()] is CUSTOM  # as a layer looks its backend up
    register()  # a process may load plugins twice
    assert CUSTOM.get_path() == BACKEND


def test_the_backend_of_another_package_stays(caplog: pytest.LogCaptureFixture) -> None:
    register_backend(CUSTOM, "other.package.Backend")
    register()
    assert CUSTOM.get_path() == "other.package.Backend"
    assert "stays other.package.Backend" in caplog.text


@pytest.mark.parametrize("ours", [AutotuneBackend, AutotuneImpl, AutotuneMetadataBuilder])
def test_nothing_abstract_is_left(ours: Any) -> None:
    assert not ours.__abstractmethods__


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (AutotuneBackend, AttentionBackend),
        (AutotuneImpl, AttentionImpl),
        (AutotuneMetadataBuilder, AttentionMetadataBuilder),
    ],
)
def test_what_is_overridden_takes_what_vllm_passes(ours: type, theirs: type) -> None:
    names = [name for name in dir(theirs) if callable(getattr(theirs, name)) and not name.startswith("__")]
    compared = 0
    for name in [*names, "__init__"]:
        mine, base = getattr(ours, name), getattr(theirs, name)
        if inspect.unwrap(getattr(mine, "__func__", mine)) is inspect.unwrap(getattr(base, "__func__", base)):
            continue
        if inspect.isclass(mine):
            continue
        expected, found = (list(inspect.signature(each).parameters.values()) for each in (base, mine))
        for parameter, own in zip(expected, found, strict=False):
            assert (own.name, own.kind) == (parameter.name, parameter.kind), name
            assert (own.default is own.empty) <= (parameter.default is parameter.empty), name
        assert len(found) >= len(expected), name
        assert all(own.default is not own.empty or own.kind is own.VAR_KEYWORD for own in found[len(expected) :]), name
        compared += 1
    assert compared


def reasons(**replaced: Any) -> list[str]:
    """Return what vLLM says against a configuration: that of a Llama on Hopper, but for what is replaced."""
    from vllm.platforms.interface import DeviceCapability

    capability = DeviceCapability(*replaced.pop("capability", HOPPER))
    given = {"head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": None} | replaced
    selected = AttentionSelectorConfig(**given)
    found: list[str] = AutotuneBackend.validate_configuration(device_capability=capability, **selected._asdict())
    return found


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"dtype": torch.float16, "kv_cache_dtype": "float16"},
        {"dtype": torch.float32},
        {"head_size": 512},
        {"head_size": 72},
        {"block_size": 48},
        {"has_sink": True, "has_sliding_window": True},
        {"use_kv_connector": True},
        {"capability": (8, 0)},
    ],
    ids=str,
)
def test_what_is_computed_is_valid(given: dict[str, Any]) -> None:
    assert reasons(**given) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"head_size": 100}, "head_size not supported"),
        ({"head_size": 320}, "head_size not supported"),
        ({"dtype": torch.float64}, "dtype not supported"),
        ({"block_size": 24}, "block_size not supported"),
        ({"use_mla": True}, "MLA not supported"),
        ({"use_sparse": True}, "sparse not supported"),
        ({"use_mm_prefix": True}, "partial multimodal token full attention not supported"),
        ({"use_rswa": True}, "R-SWA not supported"),
        ({"use_non_causal": True}, "non-causal attention not supported"),
        ({"use_batch_invariant": True}, "batch invariance not supported"),
        ({"use_pcp": True}, "PCP not supported"),
        ({"use_dcp": True}, "DCP not supported"),
        ({"capability": (7, 5)}, "compute capability not supported"),
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype=float16 is not the model's dtype, torch.bfloat16"),
        *(({"attn_type": each}, f"attention type {each} not supported") for each in AttentionType if each != "decoder"),
    ],
    ids=str,
)
def test_what_is_not_computed_has_a_reason(given: dict[str, Any], reason: str) -> None:
    assert reasons(**given) == [reason]


def test_every_other_cache_is_refused() -> None:
    from vllm.config.cache import KV_CACHE_DTYPES

    assert set(CACHES) < set(KV_CACHE_DTYPES)
    for name in set(KV_CACHE_DTYPES) - set(CACHES):
        assert "kv_cache_dtype not supported" in reasons(kv_cache_dtype=name)


def test_the_root_of_distances_is_not_offered() -> None:
    assert not AutotuneBackend.supports_alibi_sqrt()


def test_every_field_of_a_steps_metadata_is_known() -> None:
    assert {each.name for each in fields(CommonAttentionMetadata)} == COMPUTED | WITHOUT_EFFECT | set(REFUSED)


def builder(**additional_config: Any) -> Any:
    return AutotuneMetadataBuilder(
        None, ["layer"], SimpleNamespace(additional_config=additional_config), torch.device("cpu")
    )


def metadata(**replaced: Any) -> Any:
    offsets = torch.tensor([0, 1, 2], dtype=torch.int32)
    given: dict[str, Any] = {"query_start_loc": offsets, "query_start_loc_cpu": offsets}
    given["seq_lens"] = torch.ones(2, dtype=torch.int32)
    given |= {"num_reqs": 2, "num_actual_tokens": 2, "max_query_len": 1, "max_seq_len": 1}
    given |= {"block_table_tensor": torch.zeros(2, 4, dtype=torch.int32), "slot_mapping": torch.zeros(2).long()}
    return CommonAttentionMetadata(**given | replaced)


def test_the_builder_makes_batches_for_steps_captures_and_drafts() -> None:
    made, common = builder(autotune_mean_context=500), metadata()
    batches = (made.build(0, common), made.build_for_cudagraph_capture(common), made.build_for_drafting(common, 1))
    assert all(isinstance(each, PagedBatch) and each.is_decode and each.mean_context == 500 for each in batches)
    table = torch.ones(3, 4, dtype=torch.int32)
    assert made.update_block_table(batches[0], table, common.slot_mapping).page_table.tolist() == [[1] * 4] * 2
    assert made.get_cudagraph_support(None, None) is AttentionCGSupport.ALWAYS
    assert made.supports_update_block_table
    with pytest.raises(UnsupportedCallError, match=r"^causal=False"):
        made.build(0, metadata(causal=False))


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_the_caches_of_our_tests_lie_as_those_of_vllm(order: str) -> None:
    assert {each.name: each.value for each in KVCacheLayout} == ORDERS
    blocks, kv_heads, block_size, width = 3, 2, 16, 8
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=kv_heads, head_size=width, dtype=torch.float16)
    page = spec.page_size_bytes
    strides = (page * blocks, page) if order.startswith("L") else (page, page * LAYERS)
    place = KVCacheTensor(page * blocks * LAYERS, ["first", "second"], *strides)
    raw = torch.zeros(place.size, dtype=torch.int8)
    view = create_kv_cache_views(raw, spec, blocks, KVCacheLayout[order], place)[1]
    ours = recorded_batches.empty_cache((blocks, kv_heads, block_size, 2 * width), torch.float16, order)
    assert (view.shape, view.dtype, view.stride(), view.storage_offset()) == (
        *(ours.shape, ours.dtype, ours.stride(), ours.storage_offset()),
    )


def impl_failure(case: LayerCase) -> str | None:
    return recorded_batches.failure(case, "cpu", AutotuneImpl)


@pytest.mark.parametrize("batch", recorded_batches.BATCHES)
def test_the_layer_that_vllm_makes_is_attention(batch: str) -> None:
    assert AutotuneBackend.get_impl_cls() is AutotuneImpl
    assert interpret(impl_failure, LayerCase(batch=batch, feature="sinks in windows")) is None
