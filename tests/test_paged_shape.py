"""``PagedShape`` says no in one line, follows its own fields, and lies as far from others as its sizes."""

import copy
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.dtypes import KV_ITEM_BYTES
from autotune.errors import InvalidShapeError, UnknownNameError
from autotune.shape import AttentionShape, PagedShape

SIZES: dict[str, Any] = {"batch": 64, "heads": 32, "kv_heads": 8, "max_context": 8192, "head_dim": 128}

BAD: list[tuple[dict[str, Any], list[str]]] = [
    *(({name: value}, [f"{name}={value}", "from 1 to 2147483647"]) for name in ("batch", "heads") for value in (0, -1)),
    *(({"seq_q": value}, [f"seq_q={value}", "from 1 to 2147483647"]) for value in (0, 2**31)),
    *(({"max_context": value}, [f"max_context={value}", "from 1 to 1073741824"]) for value in (0, 2**30 + 1)),
    *(({"mean_context": value}, [f"mean_context={value}", "from 1 to 8192"]) for value in (0, 8193)),
    *(({"page_size": value}, [f"page_size={value}", "from 1 to 1024"]) for value in (0, 1025)),
    *(({name: 100}, [f"{name}=100", "a multiple of 8"]) for name in ("head_dim", "head_dim_v")),
    *(({name: 264}, [f"{name}=264", "from 8 to 256, or 512"]) for name in ("head_dim", "head_dim_v")),
    *(({"head_dim": value}, [f"head_dim={value}", "a multiple of 8 from 8 to 256, or 512"]) for value in (0, 4, 520)),
    ({"batch": 2.0}, ["batch=2.0", "an integer from"]),
    ({"kv_heads": 5}, ["heads=32", "kv_heads=5", "multiple"]),
    ({"window": 0}, ["window=0", "from 1"]),
    ({"layout": "NDH"}, ["layout='NDH'", "'NHD' or 'HND'"]),
    ({"layout": None}, ["layout=None", "'NHD' or 'HND'"]),
    ({"context": 8192}, ["context is not a field of PagedShape", "allowed: batch, heads", "max_context, mean_context"]),
    *(({name: 1}, [f"{name}=1", "True or False"]) for name in ("softcap", "sinks", "alibi")),
    ({"head_dim": 264}, ["head_dim and head_dim_v of latents: 576/512, 320/256, 288/256"]),
    ({"head_dim": 576}, ["kv_heads=8 is not allowed with head_dim=576", "a cache of latents; expected 1"]),
    *(
        ({"head_dim": keys, "kv_heads": 1, "head_dim_v": values}, [f"head_dim_v={values}", f"head_dim={keys}", right])
        for keys, values, right in (
            (576, 576, "expected 512"),
            (320, 512, "expected 256"),
            (288, 256.0, "expected 256"),
        )
    ),
    ({"head_dim": 512, "head_dim_v": 576}, ["head_dim_v=576", "from 8 to 256, or 512"]),
    ({"head_dim": [576]}, ["head_dim=[576]", "a multiple of 8"]),
]


@pytest.mark.parametrize(("fields", "words"), BAD, ids=lambda item: "-".join(map(str, item)) if item else "")
def test_bad_fields_are_named_with_value_and_what_is_allowed(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidShapeError) as caught:
        PagedShape(**{**SIZES, **fields})
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_unknown_dtypes_list_the_known_ones() -> None:
    queries = "float16 (fp16, half), bfloat16 (bf16), float32 (fp32, float)"
    one_byte = "float8_e4m3fn (fp8, fp8_e4m3), float8_e5m2 (fp8_e5m2), int8"
    with pytest.raises(UnknownNameError) as caught:
        PagedShape(**SIZES, kv_dtype="int4")
    assert str(caught.value) == f"kv_dtype='int4' is unknown; allowed: {queries}, {one_byte}"
    for dtype in ("int8", "fp8"):
        with pytest.raises(UnknownNameError) as caught:
            PagedShape(**SIZES, dtype=dtype)
        assert str(caught.value) == f"dtype='{dtype}' is unknown; allowed: {queries}"
    with pytest.raises(UnknownNameError, match=r"^kv_dtype=torch.float64 is unknown; allowed: float16"):
        PagedShape(**SIZES, kv_dtype=torch.float64)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp8", "float8_e4m3fn"),
        ("fp8_e4m3", "float8_e4m3fn"),
        ("fp8_e5m2", "float8_e5m2"),
        ("FP8", "float8_e4m3fn"),
        ("INT8", "int8"),
        ("bf16", "bfloat16"),
        (torch.float8_e4m3fn, "float8_e4m3fn"),
        (torch.int8, "int8"),
    ],
    ids=str,
)
def test_types_of_caches_have_short_names_in_any_case(name: Any, dtype: str) -> None:
    assert PagedShape(**SIZES, kv_dtype=name) == PagedShape(**SIZES, kv_dtype=dtype)


@pytest.mark.parametrize(("keys", "values"), [(576, 512), (320, 256), (288, 256)])
def test_latents_have_one_head_and_narrower_values(keys: int, values: int) -> None:
    shape = PagedShape(batch=64, heads=128, max_context=8192, head_dim=keys)
    assert (shape.kv_heads, shape.head_dim_v, shape.group, shape.is_latent) == (1, values, 128, True)
    assert shape == PagedShape(**{**SIZES, "heads": 128, "kv_heads": 1, "head_dim": keys}, head_dim_v=values)
    assert f"128/1 heads of {keys}/{values}" in str(shape)
    assert not PagedShape(**SIZES).is_latent
    assert shape.distance(PagedShape(**SIZES)) == math.inf


def test_layouts_ignore_case() -> None:
    assert [PagedShape(**SIZES, layout=name).layout for name in ("nhd", "Hnd")] == ["NHD", "HND"]


def test_shapes_are_copied_and_pickled() -> None:
    shape = PagedShape(**SIZES)
    assert copy.deepcopy(shape) == shape
    assert pickle.loads(pickle.dumps(shape)) == shape


def test_fields_follow_those_that_are_given() -> None:
    shape = PagedShape(batch=1, heads=4, max_context=100, head_dim=64, dtype="fp16")
    assert (shape.kv_heads, shape.mean_context, shape.head_dim_v, shape.kv_dtype) == (4, 100, 64, "float16")
    assert (shape.seq_q, shape.page_size, shape.layout) == (1, 16, "NHD")
    given = replace(shape, kv_heads=2, mean_context=50, head_dim_v=512, kv_dtype="bf16")
    assert (given.kv_heads, given.mean_context, given.head_dim_v, given.kv_dtype) == (2, 50, 512, "bfloat16")


@pytest.mark.parametrize("kv_dtype", KV_ITEM_BYTES)
def test_every_type_of_cache_is_a_name(kv_dtype: str) -> None:
    shape = PagedShape(**SIZES, kv_dtype=kv_dtype)
    assert PagedShape(**shape.as_dict()) == shape  # type: ignore[arg-type]


def test_columns_are_the_fields_in_order() -> None:
    names = "batch heads kv_heads seq_q max_context mean_context head_dim head_dim_v page_size dtype kv_dtype window"
    assert list(PagedShape(**SIZES).as_dict()) == [*names.split(), "softcap", "sinks", "alibi", "layout", "causal"]


def test_distance_is_that_of_the_logarithms_and_of_evenness() -> None:
    shape = PagedShape(**SIZES, mean_context=4096, seq_q=2)
    assert shape.coordinates() == (6.0, 2.0, 3.0, 1.0, 4 * 0.5, 12.0)
    assert shape.distance(replace(shape, batch=16, seq_q=1)) == pytest.approx(math.sqrt(5))
    assert shape.distance(AttentionShape(batch=1, heads=1, seq_q=1, head_dim=64)) == math.inf


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ((8192, 8192), (4096, 4096), 1.0),  # one length, of all sequences
        ((8192, 4096), (4096, 2048), 1.0),
        ((8192, 4096), (4096, 4096), 2.0),  # as much work, in one as even as can be
        ((8192, 8192), (8192, 4096), math.sqrt(5)),
        ((8192, 6144), (8192, 6144), 0.0),
        ((8192, 3072), (8192, 4096), math.hypot(0.5, math.log2(4 / 3))),  # a table that fills
        ((65536, 1500), (131072, 1500), 4 * (1500 / 65536 - 1 / 64)),  # all tokens of the 64 are 96,000
    ],
)
def test_how_even_lengths_are_counts_more_than_how_long(
    one: tuple[int, int], other: tuple[int, int], distance: float
) -> None:
    shapes = [PagedShape(**{**SIZES, "max_context": longest, "mean_context": mean}) for longest, mean in (one, other)]
    assert shapes[0].distance(shapes[1]) == shapes[1].distance(shapes[0]) == pytest.approx(distance)


def test_a_sequence_alone_is_as_long_as_the_mean_whatever_its_table_holds() -> None:
    sizes = SIZES | {"batch": 1}
    alone, wide = PagedShape(**sizes), PagedShape(**sizes | {"max_context": 65536, "mean_context": 8192})
    assert (alone.evenness, wide.evenness) == (1.0, 1.0)
    assert 0.0 < wide.distance(alone) < 1e-300  # no distance, and yet not the very shape
    assert wide.distance(replace(wide)) == 0.0
    two = PagedShape(**SIZES | {"batch": 2, "max_context": 65536, "mean_context": 8192})
    assert two.evenness == 0.5  # the longest has all tokens of the two, at most


def test_more_queries_than_keys_are_a_shape() -> None:
    """Prefill is checked on them, and a call of ``paged_decode`` may have them: those before the first key see none."""
    assert PagedShape(**SIZES | {"max_context": 8}, seq_q=100).seq_q == 100


def test_differences_name_fields_of_the_family_with_both_values() -> None:
    shape = PagedShape(**SIZES, layout="HND", dtype="fp16")
    other = PagedShape(**SIZES | {"batch": 1}, sinks=True)
    assert shape.differences(other) == (
        "dtype (bfloat16, not float16), kv_dtype (bfloat16, not float16), layout (NHD, not HND), "
        "sinks (True, not False)"
    )
    assert shape.differences(replace(shape, batch=1)) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"kv_dtype": "int8"},
        {"head_dim": 64},
        {"head_dim_v": 64},
        {"page_size": 32},
        {"window": 128},
        {"softcap": True},
        {"sinks": True},
        {"alibi": True},
        {"layout": "HND"},
    ],
    ids=str,
)
def test_other_families_are_infinitely_far(change: dict[str, Any]) -> None:
    shape = PagedShape(**SIZES)
    assert shape.distance(replace(shape, **change)) == math.inf


def test_text_says_what_is_unusual() -> None:
    shape = PagedShape(**SIZES)
    assert str(shape) == "batch 64, 32/8 heads of 128, context 8192, NHD pages of 16, bfloat16"
    changed = replace(
        shape, kv_heads=32, seq_q=4, mean_context=50, head_dim_v=64, kv_dtype="int8", window=9, sinks=True
    )
    assert str(changed) == (
        "batch 64, 32 heads of 128/64, 4 queries, context 8192 (mean 50), NHD pages of 16, bfloat16 over int8, "
        "window 9, sinks"
    )
