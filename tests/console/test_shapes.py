"""The shape options: what each of them becomes, what a model gives, and what a model alone stands for."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from autotune import registry
from autotune.console.shape_options import ShapeOptions, parse_sizes
from autotune.console.shapes import KINDS, USUAL, Usual, describe, describe_model
from autotune.errors import InvalidShapeError, UsageError
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.tuning_command import tuning_command
from autotune.varlen_shape import VarlenShape
from tests import sample

DECODE = PagedShape(batch=64, heads=32, kv_heads=8, max_context=8192, head_dim=128)


def shapes_of(**given: Any) -> list[Shape]:
    return [shape for _, shape in describe(ShapeOptions(**given)).problems]


def shape_of(**given: Any) -> AttentionShape:
    (shape,) = shapes_of(seq="512", **given)
    assert isinstance(shape, AttentionShape)
    return shape


def paged_of(**given: Any) -> PagedShape:
    (shape,) = shapes_of(operation="paged_decode", **given)
    assert isinstance(shape, PagedShape)
    return shape


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1024", [1024]),
        ("512, 1024", [512, 1024]),
        ("512,...,4096", [512, 1024, 2048, 4096]),
        ("512,...,3000", [512, 1024, 2048, 3000]),
        ("64,512,...,1024,64", [64, 512, 1024]),
        ("512,...,512", [512]),
    ],
)
def test_sizes_are_read_as_they_are_written(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text, "seq") == sizes


@pytest.mark.parametrize("text", ["...", "...,512", "512,...", "512,,1024", "1024;2048", "1e3", "1.5"])
def test_sizes_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^context="):
        parse_sizes(text, "context")


def test_a_model_gives_what_is_not_said() -> None:
    shape = shape_of(model="deepseek-v3", tp=8)
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim_v) == (16, 16, 192, 128)
    shape = shape_of(model="flux.1", head_dim=64, heads=8, kv_heads=2)
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim_v) == (8, 2, 64, 64)
    assert not shape.causal
    assert shape_of(model="flux.1", causal=True).causal


def test_a_model_gives_its_window_and_softcap_unless_they_are_said() -> None:
    assert shape_of(model="mistral-7b-v0.1", seq_kv=8192).window == 4096
    assert shape_of(model="mistral-7b-v0.1", window=128).window == 128
    assert shape_of(model="grok-1").softcap
    assert not shape_of(model="grok-1", softcap=False).softcap
    assert shape_of(model="gpt-oss-20b").sinks
    assert not shape_of(model="gpt-oss-20b", sinks=False).sinks
    assert shape_of(softcap=True).softcap
    assert not shape_of().softcap


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_an_operand_is_an_option_of_dense_attention(kind: str) -> None:
    assert shape_of(attn_mask=kind, sinks=True) == replace(shape_of(), attn_mask=kind, sinks=True)
    assert shape_of(kv_ends=True) == replace(shape_of(), kv_ends=True)


def test_an_unknown_operand_is_named_by_its_option() -> None:
    with pytest.raises(InvalidShapeError, match="--attn-mask='bool' is not allowed; expected None, 'boolean', 'additi"):
        shape_of(attn_mask="bool")


def test_the_defaults_are_16384_tokens_of_16_causal_heads_of_128() -> None:
    assert shapes_of(seq="1024,32768") == [sample.shape(1024), sample.shape(32768, batch=1)]


def test_the_defaults_of_a_cache_are_64_sequences_of_8192_tokens_of_32_heads() -> None:
    assert paged_of() == DECODE


PAGED_OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "context": ({"context": "512"}, {"max_context": 512, "mean_context": 512}),
    "mean-context": ({"mean_context": 100}, {"mean_context": 100}),
    "ragged": ({"ragged": True}, {"mean_context": 4096}),
    "ragged-odd": ({"ragged": True, "context": "5"}, {"max_context": 5, "mean_context": 2}),
    "ragged-least": ({"ragged": True, "context": "1"}, {"max_context": 1, "mean_context": 1}),
    "ragged-alone": ({"ragged": True, "batch": "1"}, {"batch": 1, "mean_context": 8192}),
    "queries": ({"queries": 4}, {"seq_q": 4}),
    "batch": ({"batch": "3"}, {"batch": 3}),
    "heads": ({"heads": 64}, {"heads": 64}),  # on 8 KV heads, as the 32
    "kv-heads": ({"kv_heads": 4}, {"kv_heads": 4}),
    "both-heads": ({"heads": 12, "kv_heads": 12}, {"heads": 12, "kv_heads": 12}),
    "head-dim": ({"head_dim": 256}, {"head_dim": 256, "head_dim_v": 256}),
    "dtype": ({"dtype": "fp16"}, {"dtype": "float16", "kv_dtype": "float16"}),
    "kv-dtype": ({"kv_dtype": "float8_e4m3fn"}, {"kv_dtype": "float8_e4m3fn"}),
    "page-size": ({"page_size": 64}, {"page_size": 64}),
    "layout": ({"layout": "HND"}, {"layout": "HND"}),
    "window": ({"window": 128}, {"window": 128}),
    "softcap": ({"softcap": True}, {"softcap": True}),
    "sinks": ({"sinks": True}, {"sinks": True}),
    "alibi": ({"alibi": True}, {"alibi": True}),
    "model": ({"model": "qwen2.5-7b"}, {"heads": 28, "kv_heads": 4}),
    "tp": ({"model": "llama-3.1-70b", "tp": 8}, {"heads": 8, "kv_heads": 1}),
    "model-sinks": ({"model": "gpt-oss-20b"}, {"heads": 64, "head_dim": 64, "head_dim_v": 64, "sinks": True}),
    "model-no-sinks": ({"model": "gpt-oss-20b", "sinks": False}, {"heads": 64, "head_dim": 64, "head_dim_v": 64}),
    "model-alibi": ({"model": "mpt-7b"}, {"kv_heads": 32, "alibi": True}),
    "model-window": ({"model": "mistral-7b-v0.1"}, {"window": 4096}),
}


@pytest.mark.parametrize(("given", "changes"), PAGED_OPTIONS.values(), ids=PAGED_OPTIONS)
def test_each_option_of_a_cache_reaches_the_shape(given: dict[str, Any], changes: dict[str, Any]) -> None:
    assert paged_of(**given).as_dict() == {**DECODE.as_dict(), **changes}


VARLEN = VarlenShape(batch=16, heads=16, max_seq_q=1024, head_dim=128, causal=True)


def varlen_of(**given: Any) -> VarlenShape:
    (shape,) = shapes_of(operation="flash_attention_varlen", **given)
    assert isinstance(shape, VarlenShape)
    return shape


VARLEN_OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "seq": ({"seq": "4096"}, {"batch": 4, **dict.fromkeys(("max_seq_q", "mean_seq_q"), 4096)}),
    "seq-kv": ({"seq_kv": 77}, {"max_seq_kv": 77}),
    "mean": ({"mean_seq": 300}, {"mean_seq_q": 300}),
    "means": ({"mean_seq": 300, "mean_seq_kv": 20}, {"mean_seq_q": 300, "mean_seq_kv": 20}),
    "ragged": ({"ragged": True, "seq_kv": 64}, {"mean_seq_q": 512, "max_seq_kv": 64, "mean_seq_kv": 32}),
    "ragged-one": ({"ragged": True, "batch": "1"}, {"batch": 1}),
    "features": (
        {"causal": False, "window": 9, "softcap": True, "sinks": True, "dtype": "fp16"},
        {"causal": False, "window": 9, "softcap": True, "sinks": True, "dtype": "float16"},
    ),
    "heads": ({"heads": 8, "kv_heads": 2, "head_dim": 64}, {"heads": 8, "kv_heads": 2, "head_dim": 64}),
    "model": ({"model": "gpt-oss-20b"}, {"heads": 64, "kv_heads": 8, "head_dim": 64, "sinks": True}),
}


@pytest.mark.parametrize(("given", "changes"), VARLEN_OPTIONS.values(), ids=VARLEN_OPTIONS)
def test_each_option_of_packed_sequences_reaches_the_shape(given: dict[str, Any], changes: dict[str, Any]) -> None:
    fields = VARLEN.as_dict()
    followers = {"kv_heads": "heads", "max_seq_kv": "max_seq_q", "mean_seq_kv": "mean_seq_q", "head_dim_v": "head_dim"}
    for name, source in followers.items():
        if name not in changes and source in changes:
            fields[name] = changes[source]
    if "max_seq_kv" in changes and "mean_seq_kv" not in changes:
        fields["mean_seq_kv"] = changes["max_seq_kv"]
    assert varlen_of(**given).as_dict() == {**fields, **changes}


def test_options_of_packed_sequences_exclude_each_other_and_are_named() -> None:
    with pytest.raises(UsageError, match="--ragged and --mean-seq=9 exclude each other"):
        varlen_of(ragged=True, mean_seq=9)
    with pytest.raises(UsageError, match="--mean-seq=2048 is not allowed; expected an integer from 1 to 1024"):
        varlen_of(mean_seq=2048)
    with pytest.raises(UsageError, match="--mean-seq=9 is not for flash_attention; --mean-seq is for --operation "):
        shape_of(mean_seq=9)
    with pytest.raises(UsageError, match="--context='9' is not for flash_attention_varlen; --context is for"):
        varlen_of(context="9")
    with pytest.raises(UsageError, match="--attn-mask='boolean' is not for flash_attention_varlen; --attn-mask is for"):
        varlen_of(attn_mask="boolean")


def test_every_option_is_shared_or_of_some_kinds_and_a_field_of_no_shape_is_forgotten() -> None:
    names = {field.name for field in fields(ShapeOptions)}
    own = {option for kind in KINDS.values() for option in kind.own}
    assert own < names
    assert all(set(kind.own) - {option for other in KINDS.values() if other is not kind for option in other.own}
               for kind in KINDS.values() if kind is not KINDS[AttentionShape])  # fmt: skip
    said = {"batch" if name == "tp" else name for name in names}
    for shape_class, kind in KINDS.items():
        # Values' width follows the model; varlen has no benchmark of its own.
        known = {kind.renamed.get(field.name, field.name) for field in fields(shape_class)}
        assert known - said <= {"head_dim_v", "varlen"}
        assert set(kind.own) <= known | {"ragged"}


def test_lists_of_batches_and_contexts_are_all_combined() -> None:
    found = shapes_of(operation="paged_decode", batch="1,...,4", context="512,2048", ragged=True)
    assert [
        (shape.batch, shape.max_context, shape.mean_context) for shape in found if isinstance(shape, PagedShape)
    ] == [
        *((1, 512, 512), (2, 512, 256), (4, 512, 256)),
        *((1, 2048, 2048), (2, 2048, 1024), (4, 2048, 1024)),
    ]
    assert [shape.as_dict()["batch"] for shape in shapes_of(batch="1,2", seq="64,128")] == [1, 2, 1, 2]


def test_heads_of_a_dense_problem_are_not_grouped_unless_it_is_said() -> None:
    assert (shape_of(heads=12).heads, shape_of(heads=12).kv_heads) == (12, 12)
    assert shape_of(heads=12, kv_heads=4).kv_heads == 4


PREFILL = "paged_prefill_of_a_test"


@pytest.fixture
def prefill(monkeypatch: pytest.MonkeyPatch) -> str:
    """An operation of one's own that takes paged shapes."""
    monkeypatch.setitem(registry._operations, PREFILL, registry.operation_reference("paged_decode"))
    return PREFILL


def test_an_operation_may_have_usual_sizes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert USUAL["paged_prefill"] == Usual(batch="8", queries=2048)
    monkeypatch.setattr("autotune.console.shapes.USUAL", {"paged_decode": Usual(batch="5", queries=3)})
    assert (paged_of().seq_q, paged_of().batch) == (3, 5)
    assert (paged_of(queries=2).seq_q, paged_of(batch="7").batch) == (2, 7)


def prefill_of(**given: Any) -> PagedShape:
    (shape,) = shapes_of(operation="paged_prefill", **given)
    assert isinstance(shape, PagedShape)
    return shape


def test_a_prefill_may_have_a_quantized_cache_and_no_mask() -> None:
    shape = prefill_of(kv_dtype="fp8", causal=False)
    assert (shape.dtype, shape.kv_dtype, shape.causal) == ("bfloat16", "float8_e4m3fn", False)
    options = tuning_command("paged_prefill", shape)
    assert options.startswith("autotune search --operation paged_prefill")
    assert "--kv-dtype float8_e4m3fn" in options
    assert options.endswith("--no-causal")
    with pytest.raises(InvalidShapeError, match="--kv-dtype='int8' is not supported by paged_prefill with --d"):
        prefill_of(kv_dtype="int8", dtype="fp32")
    with pytest.raises(InvalidShapeError, match="--causal=False is not supported by paged_decode"):
        shapes_of(operation="paged_decode", causal=False)


def test_a_prefill_has_no_more_new_tokens_than_its_context() -> None:
    assert (prefill_of().seq_q, prefill_of(context="1024").seq_q) == (2048, 1024)
    assert prefill_of(context="512", queries=512).seq_q == 512
    assert prefill_of(context="512", queries=513, causal=False).seq_q == 513  # which are not among the keys
    for queries in (513, 2048):
        with pytest.raises(UsageError, match=rf"^--queries={queries} is more than --context=512,"):
            prefill_of(context="512", queries=queries)


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({}, ()),
        ({"ragged": True, "queries": 1}, ()),
        (
            {"ragged": True, "batch": "64", "queries": 33},
            ("batch 64 of context 8192 is mixed: 63 sequences with 1 query each, one with 2049 (33 in the mean)",),
        ),
        (
            {"ragged": True, "batch": "2", "context": "512", "queries": 512},
            (
                "batch 2 of context 512 is mixed: 1 sequence with 1 query each, one with 512 "
                "(all of --context, where 512 in the mean would be 1023)",
            ),
        ),
        (
            {"ragged": True, "batch": "1"},
            ("--ragged changes nothing for a batch of 1: its sequence is as long as --context",),
        ),
    ],
)
def test_how_a_ragged_prefill_spreads_its_queries_is_said(given: dict[str, Any], note: tuple[str, ...]) -> None:
    assert describe(ShapeOptions(operation="paged_prefill", **given)).notes == note


def test_a_ragged_decode_spreads_nothing_but_lengths() -> None:
    assert describe(ShapeOptions(operation="paged_decode", ragged=True)).notes == ()
    (note,) = describe(ShapeOptions(operation="paged_decode", ragged=True, batch="1")).notes
    assert note.startswith("--ragged changes nothing for a batch of 1")


def test_a_window_that_hides_nothing_is_said_to() -> None:
    wanted = describe(ShapeOptions(seq="512,8192", batch="1", window=4096))
    assert wanted.notes == ("--window 4096 hides none of 512 keys: this is the shape without a window",)
    assert [shape.window for _, shape in wanted.problems] == [None, 4096]  # type: ignore[attr-defined]


def test_the_window_of_some_layers_is_said_where_it_would_hide_keys() -> None:
    def notes(seq: str) -> tuple[str, ...]:
        return describe(ShapeOptions(model="gemma-2-9b", seq=seq)).notes

    text = "only some layers of gemma-2-9b have its window of 4096 keys"
    assert notes("512,4096") == ()
    assert notes("8192") == (f"{text}: this is for the others; --window 4096 names those",)
    assert notes("512,8192") == (f"{text}: what is longer is for the others; --window 4096 names those",)


def test_an_operation_of_ones_own_says_how_it_spreads_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(registry.get_operation("paged_decode"), query_counts=lambda shape: (1, 1, 5))
    monkeypatch.setattr("autotune.console.shapes.get_operation", lambda name: own)
    (note,) = describe(ShapeOptions(operation="paged_decode", ragged=True, batch="3")).notes
    assert note.startswith("batch 3 of context 8192 is mixed: 2 sequences with 1 query each, one with 5 ")


def test_a_shape_class_without_options_of_its_own_needs_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.console.shapes.KINDS", {AttentionShape: KINDS[AttentionShape]})
    with pytest.raises(UsageError, match=r"operation='paged_decode' needs --shape .*: batch=INTEGER, "):
        shapes_of(operation="paged_decode")


def test_a_model_alone_is_its_prefill_and_its_decode() -> None:
    problems, notes = describe_model(ShapeOptions(model="llama-3.1-70b", tp=8, seq="512,1024", context="2048"))
    assert [(operation.name, str(shape)) for operation, shape in problems] == [
        ("flash_attention", "batch 32, 8/1 heads of 128, seq 512, bfloat16, causal"),
        ("flash_attention", "batch 16, 8/1 heads of 128, seq 1024, bfloat16, causal"),
        ("paged_decode", "batch 64, 8/1 heads of 128, context 2048, NHD pages of 16, bfloat16"),
    ]
    first, *others = notes
    assert first.startswith("llama-3.1-70b tp8: prefill and decode; --operation names one of them, ")
    expected = zip(("prefill", "prefill", "decode"), problems, strict=True)
    assert others == [f"{phase:9} {operation.name}: {shape}" for phase, (operation, shape) in expected]


def test_a_model_with_an_operation_is_that_alone() -> None:
    for name in ("flash_attention", "paged_decode"):
        problems, notes = describe_model(ShapeOptions(model="llama-3.1-8b", operation=name))
        assert ([operation.name for operation, _ in problems], notes) == ([name], ())


def test_a_model_without_a_cache_is_its_prefill_alone() -> None:
    problems, (note,) = describe_model(ShapeOptions(model="flux.1"))
    assert [operation.name for operation, _ in problems] == ["flash_attention"]
    assert note == "flux.1 is not causal and has no cache: only its prefill is tuned"


def test_a_model_of_latents_decodes_over_one_head_of_them() -> None:
    problems, _ = describe_model(ShapeOptions(model="kimi-k2", tp=4))
    assert [operation.name for operation, _ in problems] == ["flash_attention", "paged_decode"]
    dense, paged = (shape.as_dict() for _, shape in problems)
    names = ("heads", "kv_heads", "head_dim", "head_dim_v")
    assert [dense[name] for name in names] == [16, 16, 192, 128]
    assert [paged[name] for name in names] == [16, 1, 576, 512]


def test_prefill_over_a_cache_of_latents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"caches latents \(MLA\), not keys and values: paged_prefill cannot serve it"):
        describe(ShapeOptions(model="kimi-k2", operation="paged_prefill"))
    config = tmp_path / "config.json"
    config.write_text('{"num_attention_heads": 8, "hidden_size": 512, "qk_nope_head_dim": 64, "v_head_dim": 64}')
    with pytest.raises(UsageError, match=r"caches latents \(MLA\) of widths that it does not say"):
        describe(ShapeOptions(model=str(config), operation="paged_decode"))


def test_an_encoder_by_its_config_is_not_causal_and_its_window_goes_both_ways(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "modernbert", "num_attention_heads": 12, "hidden_size": 768, "local_attention": 128}'
    )
    problems, notes = describe_model(ShapeOptions(model=str(tmp_path)))
    assert [str(shape) for _, shape in problems] == ["batch 16, 12 heads of 64, seq 1024, bfloat16, full"]
    assert notes == (
        f"{config} is not causal and has no cache: only its prefill is tuned",
        f"only some layers of {config} have its window of 65 keys to either side, one's own included: "
        "this is for the others; --window 65 names those",
    )
    with pytest.raises(UsageError, match="is not causal and has no cache: paged_decode cannot serve it"):
        describe(ShapeOptions(model=str(config), operation="paged_decode"))


def test_a_width_of_latents_brings_that_of_their_values() -> None:
    ((_, shape),) = describe(ShapeOptions(operation="paged_decode", heads=128, kv_heads=1, head_dim=576)).problems
    assert shape.as_dict()["head_dim_v"] == 512
    ((_, shape),) = describe(ShapeOptions(operation="paged_decode", head_dim=64)).problems
    assert shape.as_dict()["head_dim_v"] == 64


def test_what_dense_attention_leaves_out_of_a_model_is_said() -> None:
    problems, notes = describe_model(ShapeOptions(model="gpt-oss-120b"))
    assert [shape.as_dict().get("sinks") for _, shape in problems] == [True, True]
    assert notes[3:] == (
        "only some layers of gpt-oss-120b have its window of 128 keys: this is for the others; "
        "--window 128 names those",
    )
    assert describe(ShapeOptions(model="mpt-7b")).notes == (
        "mpt-7b has alibi, which flash_attention does not compute: left out",
    )
    assert describe(ShapeOptions(model="mpt-7b", operation="paged_decode")).notes == ()
