"""The space of packed sequences in Gluon: its default, what it takes over from dense attention, what it refuses."""

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import InvalidShapeError
from autotune.search_spaces.flash_attention_varlen.gluon_hopper import IMPLEMENTATION, as_dense
from autotune.space import Config
from autotune.varlen_shape import VarlenShape

SPACE = IMPLEMENTATION.space


def shape_of(**fields: Any) -> VarlenShape:
    sizes = {"batch": 16, "heads": 32, "kv_heads": 8, "max_seq_q": 4096, "mean_seq_q": 900, "head_dim": 128}
    return VarlenShape(**{**sizes, **fields})


def test_the_default_is_valid_and_the_space_has_others() -> None:
    widths = ((8, 8), (64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (256, 160))
    lengths = ((1, 1), (64, 9), (4096, 900), (4096, 4096), (70, 3))
    for (head_dim, head_dim_v), (longest, mean), causal in itertools.product(widths, lengths, (False, True)):
        shape = shape_of(
            head_dim=head_dim, head_dim_v=head_dim_v, max_seq_q=longest, mean_seq_q=mean, causal=causal, sinks=causal
        )
        assert SPACE.why_invalid(SPACE.default(shape, NVIDIA_H200), shape, NVIDIA_H200) is None, shape
    assert 20 <= len(list(SPACE.configs(shape_of(causal=True), NVIDIA_H200))) <= 1500


def test_the_default_has_tiles_as_long_as_sequences_in_the_mean() -> None:
    consumers = {
        mean: SPACE.default(shape_of(head_dim=64, mean_seq_q=mean), NVIDIA_H200)["consumers"] for mean in (30, 128, 900)
    }
    assert consumers == {30: 2, 128: 2, 900: 3}
    assert SPACE.default(shape_of(max_seq_q=40, mean_seq_q=30), NVIDIA_H200)["consumers"] == 1


def test_sequences_that_differ_are_sorted_where_there_is_much_to_do() -> None:
    def sequences(**fields: Any) -> object:
        return SPACE.default(shape_of(**fields), NVIDIA_H200)["sequences"]

    assert sequences() == "longest"
    assert sequences(mean_seq_q=4096) == "packed"  # they do not differ
    assert sequences(batch=4) == "packed"
    recorded: dict[str, Any] = {"batch": 64, "max_seq_q": 2048, "mean_seq_q": 512}
    found = {causal: sequences(**recorded, causal=causal) for causal in (False, True)}
    assert found == {False: "longest", True: "packed"}  # 1.04 and 1.02 times as long the other way


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"causal": True, "window": 128}, {"BLOCK_K": 64, "slots": 2, "workers": "sm"}),
        ({"max_seq_q": 512, "mean_seq_q": 128}, {"BLOCK_K": 64, "slots": 2, "workers": "sm"}),
        ({"max_seq_q": 4096, "mean_seq_q": 128}, {"BLOCK_K": 128}),  # the long ones have most of the work
        ({"batch": 1, "max_seq_q": 2048, "mean_seq_q": 2048, "max_seq_kv": 4096, "causal": True}, {"workers": "2sm"}),
        ({"batch": 1, "max_seq_q": 2048, "mean_seq_q": 2048, "causal": True}, {"workers": "sm"}),
        ({"batch": 1, "max_seq_q": 2048, "mean_seq_q": 2048, "max_seq_kv": 4096, "window": 1024}, {"workers": "sm"}),
        ({"head_dim": 256, "max_seq_q": 512, "mean_seq_q": 512, "causal": True}, {"workers": "tiles"}),
        ({"head_dim": 256, "max_seq_q": 512, "mean_seq_q": 512}, {"workers": "sm"}),
        ({"batch": 1, "max_seq_q": 2048, "mean_seq_q": 2048, "max_seq_kv": 2049, "causal": True}, {"workers": "sm"}),
        ({"batch": 1, "max_seq_q": 2048, "mean_seq_q": 2048, "max_seq_kv": 8192}, {"workers": "sm"}),
        (
            {"batch": 1, "heads": 16, "max_seq_q": 512, "max_seq_kv": 2048, "causal": True},
            {"consumers": 1, "ping_pong": "off", "values": "late"},
        ),
        ({"batch": 1, "heads": 24, "max_seq_q": 512, "max_seq_kv": 2048, "causal": True}, {"consumers": 2}),
        ({"batch": 1, "heads": 16, "max_seq_q": 512, "max_seq_kv": 2048}, {"consumers": 2}),
    ],
    ids=str,
)
def test_the_default_is_what_recordings_chose(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    fields = {"mean_seq_q": fields["max_seq_q"]} | fields if "max_seq_q" in fields else fields
    shape = shape_of(**fields)
    config = SPACE.default(shape, NVIDIA_H200)
    assert {name: config[name] for name in expected} == expected
    assert SPACE.why_invalid(config, shape, NVIDIA_H200) is None


def test_a_batch_is_taken_for_as_many_longest_sequences_as_have_its_queries() -> None:
    dense = as_dense(shape_of(batch=10, mean_seq_q=1024, max_seq_kv=8192))
    assert (dense.batch, dense.seq_q, dense.seq_kv, dense.heads, dense.kv_heads) == (3, 4096, 8192, 32, 8)


@pytest.mark.parametrize(
    ("change", "shape", "reason"),
    [
        ({}, {}, None),
        ({"sequences": "longest"}, {"mean_seq_q": 4096}, "sequences='longest' does not pay: all are equally long"),
        ({"consumers": 2}, {"max_seq_q": 64, "mean_seq_q": 9}, "consumers=2 have more rows than a length of 64"),
        ({"slots": 4, "BLOCK_K": 128}, {}, "tiles take .* bytes of shared memory, sm_90 has 232448"),
    ],
)
def test_a_refusal_names_the_value_and_the_limit(
    change: dict[str, Any], shape: dict[str, Any], reason: str | None
) -> None:
    config = Config({**SPACE.default(shape_of(), NVIDIA_H200), **change})
    found = SPACE.reject(config, shape_of(**shape), NVIDIA_H200)
    assert found is None if reason is None else re.match(reason, found or "")


def test_what_the_kernel_does_not_compute_is_said() -> None:
    shape = shape_of()
    assert IMPLEMENTATION.supports(shape, NVIDIA_H200) is None
    assert "sm_100" in str(IMPLEMENTATION.supports(shape, replace(NVIDIA_H200, arch="sm_100")))
    assert "float32" in str(IMPLEMENTATION.supports(shape_of(dtype="float32"), NVIDIA_H200))
    with pytest.raises(InvalidShapeError, match="16 bits"):
        SPACE.default(shape_of(dtype="float32"), NVIDIA_H200)
