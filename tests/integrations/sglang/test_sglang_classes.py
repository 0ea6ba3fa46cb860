"""The backend against the classes of the SGLang that is installed: nothing of it is imitated.

Without SGLang these are skipped; ``test_sglang_wheel.py`` installs its wheel, without what it requires, and runs them.
"""

import inspect
import tomllib
from dataclasses import fields
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch

import tests.integrations.sglang.vision_operators  # noqa: F401  # before SGLang

pytest.importorskip("sglang", reason="SGLang is not installed")

from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.plugins import GENERAL_PLUGINS_GROUP

from autotune.errors import UnsupportedCallError
from autotune.integrations.sglang import NAME, register
from autotune.integrations.sglang.radix_backend import RadixBackend
from autotune.integrations.sglang.token_pool import EXTENDS, _mode_of, _refuse_layer
from tests.contract.interpreting import interpret
from tests.integrations.sglang import pool_batches
from tests.integrations.sglang.pool_batches import PoolCase

COMPUTED: Final = {"DECODE", "IDLE", *EXTENDS}
READ: Final = {
    *("forward_mode", "spec_info", "encoder_lens", "seq_lens", "seq_lens_cpu", "extend_seq_lens", "req_pool_indices"),
    *("out_cache_loc",),
}


def test_the_entry_point_of_the_package_registers_the_backend() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (name, value), *others = project["entry-points"][GENERAL_PLUGINS_GROUP].items()
    assert not others
    EntryPoint(name, value, GENERAL_PLUGINS_GROUP).load()()
    register()  # again
    assert ATTENTION_BACKEND_CHOICES.count(NAME) == 1
    case = PoolCase(batch="decode")
    table = torch.zeros(2, 32, dtype=torch.int32)
    runner = pool_batches.runner_of(case, table, pool_batches.PlainPool(case, 32, "cpu"))
    assert isinstance(ATTENTION_BACKENDS[NAME](runner), AttentionBackend)


def test_what_is_overridden_takes_what_sglang_passes() -> None:
    names = [
        name
        for name in vars(AttentionBackend)
        if inspect.isfunction(getattr(RadixBackend, name))
        and getattr(RadixBackend, name) is not getattr(AttentionBackend, name)
    ]
    assert {"forward_decode", "forward_extend", "init_forward_metadata", "init_cuda_graph_state"} <= set(names)
    for name in set(names) - {"__init__"}:
        base, mine = (
            list(inspect.signature(getattr(each, name)).parameters.values())
            for each in (AttentionBackend, RadixBackend)
        )
        assert [each.name for each in base if each.kind is not each.VAR_KEYWORD] == [
            each.name for each in mine[: len([each for each in base if each.kind is not each.VAR_KEYWORD])]
        ], name
        rest = [each for each in mine if each.name not in {own.name for own in base}]
        assert all(each.kind is each.VAR_KEYWORD or each.default is not each.empty for each in rest), name


def test_every_mode_is_computed_or_refused_by_name() -> None:
    assert {each.name for each in ForwardMode} > COMPUTED
    for mode in ForwardMode:
        step = SimpleNamespace(forward_mode=mode, spec_info=None, encoder_lens=None)
        if mode.name in COMPUTED:
            assert _mode_of(step) == mode.name
        else:
            with pytest.raises(UnsupportedCallError, match=f"forward_mode={mode.name}"):
                _mode_of(step)


def test_what_is_read_of_a_step_is_there() -> None:
    assert {each.name for each in fields(ForwardBatch)} >= READ


def layer(**options: Any) -> Any:
    return RadixAttention(num_heads=4, head_dim=16, scaling=0.25, num_kv_heads=2, layer_id=0, **options)


def test_what_is_read_of_a_layer_is_there() -> None:
    made = layer()
    _refuse_layer(made, {})
    assert set(vars(pool_batches.layer_of(PoolCase(batch="decode")))) <= {*vars(made), *made._modules}
    assert (made.sliding_window_size, made.logit_cap, made.k_scale) == (-1, 0.0, None)


@pytest.mark.parametrize("kind", [each for each in AttentionType if each is not AttentionType.DECODER])
def test_layers_of_other_kinds_are_refused_by_name(kind: Any) -> None:
    with pytest.raises(UnsupportedCallError, match=f"attn_type='{kind.value}'"):
        _refuse_layer(layer(attn_type=kind), {})


def test_the_pool_takes_what_the_backend_writes() -> None:
    names = list(inspect.signature(MHATokenToKVPool.set_kv_buffer).parameters)
    assert names[1:7] == ["layer", "loc_info", "cache_k", "cache_v", "k_scale", "v_scale"]


def pool_failure(batch: str) -> str | None:
    """Return how steps over a pool that SGLang makes are no attention in fp64, or None.

    The tests write to it: its own writing imports the server.
    """

    def made(case: PoolCase, tokens: int, device: str) -> Any:
        return MHATokenToKVPool(
            size=tokens - case.page_size,
            page_size=case.page_size,
            dtype=case.dtype,
            head_num=case.heads[1],
            head_dim=case.width,
            layer_num=1,
            device=device,
            enable_memory_saver=False,
        )

    case = PoolCase(batch=batch, feature="window")
    return pool_batches.failure(case, "cpu", RadixBackend, made)


@pytest.mark.parametrize("batch", pool_batches.BATCHES)
def test_steps_over_the_pool_of_sglang_are_attention(batch: str) -> None:
    assert interpret(pool_failure, batch) is None
