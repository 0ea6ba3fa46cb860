"""The space of FlexAttention: its default is what torch itself chooses, and what it rejects and why.

Torch's choice is asked of the installed torch, whose tables the space copies: 2.13's, which other versions share for
the GPUs of NVIDIA and the usual widths of a head.
"""

import hashlib
import importlib.metadata
import subprocess
import sys
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from autotune import implementation
from autotune.device import ARCHITECTURES, NVIDIA_H200, Device
from autotune.dtypes import QUERY_DTYPES
from autotune.errors import InvalidShapeError
from autotune.implementation import library_hash
from autotune.registry import get_implementation
from autotune.search_spaces.flash_attention.flex import (
    IMPLEMENTATION,
    MIN_HEAD_DIM,
    SPARSE_BLOCK,
    is_decode,
    torch_choice,
)
from autotune.shape import AttentionShape
from autotune.space import Config

SPACE = IMPLEMENTATION.space
DEVICES = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_70", "sm_999", "gfx9999")}
HEAD_DIMS = (16, 64, 72, 128, 192, 256)


def shape_of(**fields: Any) -> AttentionShape:
    sizes = {"batch": 4, "heads": 16, "seq_q": 1024, "seq_kv": 1024, "head_dim": 128}
    return AttentionShape(**{**sizes, "causal": True, **fields})


def chosen(shape: AttentionShape, device: Device) -> tuple[int, ...]:
    return tuple(torch_choice(shape, device))


@pytest.fixture
def heuristics(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torch's own tables, without a GPU of either vendor."""
    tables = pytest.importorskip("torch._inductor.template_heuristics.triton", reason="torch 2.15 has it elsewhere")
    monkeypatch.setattr(tables, "get_default_kpack", lambda: 2)
    monkeypatch.setattr(tables, "get_backend_num_stages", lambda: 2)
    return tables


CAPABILITIES = {
    **{arch: divmod(int(arch.removeprefix("sm_")), 10) for arch in DEVICES if arch.startswith("sm_") and len(arch) < 6},
    "gfx90a": (9, 0),
    "gfx942": (9, 4),
    "gfx950": (9, 5),
}


@pytest.mark.slow  # seconds to load inductor
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it loads inductor
@pytest.mark.parametrize("arch", CAPABILITIES)
def test_torch_would_choose_the_same(heuristics: Any, monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: CAPABILITIES[arch])
    kind = heuristics.CUDAConfigHeuristic if arch.startswith("sm_") else heuristics.ROCmConfigHeuristic
    torch_tables = kind()
    for dtype, head_dim in product(QUERY_DTYPES, HEAD_DIMS):
        asked = head_dim, getattr(torch, dtype)
        (own,) = torch_tables.get_flex_attn_fwd_configs(*asked)
        shape = shape_of(dtype=dtype, head_dim=head_dim)
        assert chosen(shape, DEVICES[arch]) == (own.block_m, own.block_n, own.num_stages, own.num_warps), shape
        (own,) = torch_tables.get_flex_decode_configs(*asked)
        shape = replace(shape, seq_q=1)
        assert chosen(shape, DEVICES[arch]) == (16, own.block_n, own.num_stages, own.num_warps), shape


@pytest.mark.slow  # seconds to load inductor
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 16), (16, 4), (12, 4), (12, 2), (1, 1), (128, 1)])
def test_torch_decodes_what_we_think_it_decodes(heads: int, kv_heads: int) -> None:
    from torch._inductor.kernel.flex.flex_decoding import _use_flex_decoding
    from torch._inductor.virtualized import V

    def tensor(*sizes: int) -> Any:
        return SimpleNamespace(get_size=lambda: sizes)

    graph: Any = SimpleNamespace(sizevars=SimpleNamespace(evaluate_expr=bool, guard_or_false=bool))
    for seq_q in (1, 2, 127, 128, 129):
        shape = shape_of(heads=heads, kv_heads=kv_heads, seq_q=seq_q, seq_kv=999)
        query, value = tensor(4, heads, seq_q, 128), tensor(4, kv_heads, 999, 128)
        with V.set_graph_handler(graph):
            decodes = _use_flex_decoding(query, tensor(1, 1, 1, 8), value, {}, heads != kv_heads)
        assert is_decode(shape) == bool(decodes), shape


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_valid_everywhere_and_torchs_own_where_that_fits(device: Device) -> None:
    for seq_q, seq_kv, head_dim, head_dim_v, dtype in product(
        (1, 100, 5000), (1, 5000), (16, 72, 256), (16, 256), QUERY_DTYPES
    ):
        for heads, kv_heads in ((1, 1), (12, 4), (128, 1)):
            shape = shape_of(heads=heads, kv_heads=kv_heads, seq_q=seq_q, seq_kv=seq_kv, dtype=dtype)
            shape = replace(shape, head_dim=head_dim, head_dim_v=head_dim_v)
            default = SPACE.default(shape, device)
            assert SPACE.why_invalid(default, shape, device) is None, shape
            own = torch_choice(shape, device)
            blocks = {"BLOCK_M": own.block_m, "BLOCK_N": own.block_n, "num_warps": own.warps, "num_stages": own.stages}
            named = Config({**default, **blocks})
            reason = SPACE.reject(named, shape, device)
            assert default == named if reason is None else "shared memory" in reason, shape


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (128, 64, 8, 3)),
        ({"head_dim": 64}, (128, 128, 4, 3)),
        ({"head_dim": 256}, (64, 32, 4, 3)),
        ({"dtype": "float32"}, (32, 64, 4, 3)),
        ({"seq_q": 1, "kv_heads": 4}, (16, 64, 2, 1)),
        ({"seq_q": 9, "kv_heads": 4}, (64, 64, 2, 1)),
        ({"seq_q": 100, "kv_heads": 4}, (128, 64, 2, 1)),  # torch's 512 rows in blocks that a mask allows
        ({"seq_q": 100, "heads": 12, "kv_heads": 4}, (128, 64, 8, 3)),
    ],
)
def test_the_default_on_an_h200(fields: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert tuple(SPACE.default(shape_of(**fields), NVIDIA_H200).values()) == (*expected, 0, 0, 0)


def test_a_choice_that_torch_makes_too_large_is_made_smaller() -> None:
    shape = shape_of(head_dim=256)
    assert chosen(shape, DEVICES["sm_86"]) == (32, 64, 3, 4)  # 128 KB, where sm_86 has 99
    assert tuple(SPACE.default(shape, DEVICES["sm_86"]).values()) == (32, 64, 4, 2, 0, 0, 0)


UNTOLD = {"PRESCALE_QK": 0, "BLOCKS_ARE_CONTIGUOUS": 0, "USE_TMA": 0}
VALID = Config(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=2, **UNTOLD)


@pytest.mark.parametrize(
    ("change", "fields", "arch", "reason"),
    [
        ({}, {}, "sm_90", None),
        ({"num_stages": 5}, {}, "sm_90", None),
        ({"num_stages": 5}, {}, "sm_86", "K and V tiles take 131072 bytes of shared memory, sm_86 has 101376"),
        ({"BLOCK_N": 128, "num_stages": 5}, {}, "sm_90", "K and V tiles take 262144 bytes of shared memory"),
        ({"num_warps": 2}, {}, "sm_90", "384 fp32 values a thread stay live, more than 256 registers hold"),
        ({"num_warps": 2, "num_stages": 1}, {"seq_q": 64, "kv_heads": 4}, "sm_90", None),  # torch's own, as it is
        ({"num_warps": 2, "num_stages": 2}, {"seq_q": 64, "kv_heads": 4}, "sm_90", "384 fp32 values a thread"),
        ({"BLOCK_M": 64}, {}, "sm_90", "8 warps would share 64 rows; each needs 16 of its own"),
        ({"BLOCK_M": 64}, {"dtype": "float32"}, "sm_90", None),
        ({"BLOCK_M": 16}, {"seq_q": 1}, "sm_90", None),
        ({"BLOCK_M": 16}, {"seq_q": 1, "kv_heads": 1}, "sm_90", None),
        ({"BLOCK_M": 16}, {"seq_q": 1, "heads": 32, "kv_heads": 1}, "sm_90", "BLOCK_M=16 is less than the 32 heads"),
        ({"BLOCK_M": 32}, {"seq_q": 5, "kv_heads": 4}, "sm_90", None),
        ({"BLOCK_M": 64}, {"seq_q": 5, "kv_heads": 4}, "sm_90", "BLOCK_M=64 is longer than the padded length of 20"),
        ({"BLOCK_N": 32}, {"seq_kv": 30}, "sm_90", None),
        ({}, {"seq_kv": 30}, "sm_90", "BLOCK_N=64 is longer than the padded length of 30"),
        ({"num_stages": 3}, {"seq_kv": 30}, "sm_90", None),  # torch's own
        ({"num_stages": 3}, {}, "gfx950", "num_stages above 2 does not pay on gfx950"),
        ({"PRESCALE_QK": 1}, {}, "sm_90", None),
        ({"PRESCALE_QK": 1}, {"softcap": True}, "sm_90", "PRESCALE_QK=1 changes the scores' base before softcap"),
        ({"BLOCKS_ARE_CONTIGUOUS": 1}, {}, "sm_90", None),
        ({"BLOCKS_ARE_CONTIGUOUS": 1}, {"window": 300}, "sm_90", "BLOCKS_ARE_CONTIGUOUS=1 is not so of a window"),
        ({"USE_TMA": 1}, {}, "sm_90", None),
        ({"USE_TMA": 1}, {}, "sm_86", "USE_TMA=1 needs tensor-map descriptors, which sm_86 lacks"),
        ({}, {"head_dim": 8}, "sm_90", "head_dim=8 is not supported by flex_attention; expected 16 or more"),
        ({}, {"head_dim_v": 8}, "sm_90", "head_dim_v=8 is not supported"),
    ],
)
def test_reject_names_the_value_and_the_limit(
    change: dict[str, Any], fields: dict[str, Any], arch: str, reason: str | None
) -> None:
    found = SPACE.reject(Config({**VALID, **change}), shape_of(**fields), DEVICES[arch])
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_dim": 8}, "head_dim=8"),
        ({"heads": 256, "kv_heads": 1, "seq_q": 4}, "heads=256 over kv_heads=1 with seq_q=4 are not supported"),
    ],
)
def test_what_torch_refuses_has_no_default_and_no_config(fields: dict[str, Any], message: str) -> None:
    shape = shape_of(**fields)
    with pytest.raises(InvalidShapeError, match=message):
        SPACE.default(shape, NVIDIA_H200)
    assert message in (IMPLEMENTATION.supports(shape, NVIDIA_H200) or "")
    assert list(SPACE.configs(shape, NVIDIA_H200)) == []


@pytest.mark.parametrize("fields", [{}, {"head_dim": 64}, {"seq_q": 4, "kv_heads": 4}, {"dtype": "float32"}], ids=str)
def test_configs_are_unique_hold_the_default_and_fit_a_block_of_the_mask(fields: dict[str, Any]) -> None:
    shape = shape_of(**fields)
    configs = list(SPACE.configs(shape, NVIDIA_H200))
    assert len(configs) == len(set(configs)) > 50
    assert SPACE.default(shape, NVIDIA_H200) in configs
    assert all(SPARSE_BLOCK % config.integer(name) == 0 for config in configs for name in ("BLOCK_M", "BLOCK_N"))
    assert all(config.integer("BLOCK_N") >= MIN_HEAD_DIM for config in configs)
    assert all(len(SPACE.hints(config, shape, NVIDIA_H200)) == 4 for config in configs)


def test_blocks_of_a_mask_are_those_that_configs_divide() -> None:
    from autotune.kernels.flash_attention.flex import compiled

    assert compiled.SPARSE_BLOCK == SPARSE_BLOCK


def test_the_source_is_the_version_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version("torch")
    assert IMPLEMENTATION.source_hash == library_hash("torch", version)
    assert IMPLEMENTATION.source_hash == hashlib.sha256(f"torch {version.split('+')[0]}".encode()).hexdigest()

    def install(version: str) -> str:
        implementation.installed_version.cache_clear()
        metadata = SimpleNamespace(
            read_text=lambda name: f"Metadata-Version: 2.1\nVersion: {version}\n", version=version
        )
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: {"torch": metadata}[name])
        return IMPLEMENTATION.source_hash

    assert install("2.99.0+cu130") == install("2.99.0") == library_hash("torch", "2.99.0+rocm7")
    assert len({install("2.99.0"), install("2.99.1"), install("")}) == 3

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    implementation.installed_version.cache_clear()
    assert IMPLEMENTATION.source_hash == library_hash("torch", "")
    implementation.installed_version.cache_clear()


def test_the_space_and_the_hash_need_neither_torch_nor_triton() -> None:
    code = "import sys; from autotune.registry import get_implementation"
    code += (
        "; get_implementation('flash_attention', 'flex').source_hash; print(*{'torch', 'triton'} & sys.modules.keys())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
    assert get_implementation("flash_attention", "flex") is IMPLEMENTATION


def runs(counts: Any, indices: Any) -> bool:
    """True if the blocks of keys that each block of queries has in a list follow one another."""
    return all(
        index[: int(count)].diff().eq(1).all()
        for count, index in zip(counts.flatten(), indices.flatten(end_dim=-2), strict=True)
    )


@pytest.mark.parametrize("seq_q", [2, 127, 128, 129, 400, 640])
@pytest.mark.parametrize("seq_kv", [1, 128, 300, 640])
@pytest.mark.parametrize("window", [None, 300])
def test_blocks_are_contiguous_where_torch_may_be_told_so(seq_q: int, seq_kv: int, window: int | None) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    from autotune.kernels.flash_attention.definition import DEFINITION
    from autotune.kernels.flash_attention.flex.masks import mask_of

    shape = shape_of(batch=1, heads=1, seq_q=seq_q, seq_kv=seq_kv, window=window)
    visible = mask_of(DEFINITION.make_inputs(shape, seed=0, device="cpu"))
    assert visible is not None
    mask = create_block_mask(visible, None, None, seq_q, seq_kv, device="cpu", BLOCK_SIZE=SPARSE_BLOCK)
    assert mask.full_kv_indices is not None
    is_contiguous = runs(mask.kv_num_blocks, mask.kv_indices) and runs(mask.full_kv_num_blocks, mask.full_kv_indices)
    told = Config(BLOCK_M=16, BLOCK_N=16, num_warps=1, num_stages=1, **{**UNTOLD, "BLOCKS_ARE_CONTIGUOUS": 1})
    reason = SPACE.reject(told, shape, NVIDIA_H200)
    assert is_contiguous if reason is None else window is not None
    if (seq_q, seq_kv, window) == (640, 640, 300):
        assert not is_contiguous  # masked blocks on both sides of whole ones
