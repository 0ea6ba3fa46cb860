"""Decode over latents: the problems, what is printed of a race, and what ends with 1."""

import math

import pytest

from autotune.device import NVIDIA_H200
from autotune.space import Config
from autotune.trial import Candidate
from benchmarks.latent_decode import SHAPE, RacedLatents, implementations_of, is_wanted, print_raced, sparse_shapes

FEW = RacedLatents({"by index": 110.0, "side by side": 100.0})


def test_the_problems_differ_in_their_pages_alone_and_only_ours_over_latents_computes_them() -> None:
    indexed, dense = sparse_shapes()
    assert (indexed.page_size, dense.page_size, indexed.max_context) == (1, 64, 2048)
    assert indexed.as_dict() | {"page_size": 64} == dense.as_dict()
    assert implementations_of(SHAPE, NVIDIA_H200) == ["gluon_hopper_latent", "triton_latent"]
    assert implementations_of(dense, NVIDIA_H200) == ["gluon_hopper_latent", "triton_latent"]
    assert implementations_of(indexed, NVIDIA_H200) == ["gluon_hopper_latent", "triton_latent"]


@pytest.mark.parametrize(
    ("all_keys", "few_keys", "wanted"),
    [
        (RacedLatents({"ours": 100.0, "flashinfer mla": 85.0}), FEW, True),
        (RacedLatents({"ours": 100.0, "flashinfer mla": 84.0}), FEW, False),
        (RacedLatents({"ours": 100.0}), FEW, True),
        (RacedLatents({"ours": 100.0}), RacedLatents({"by index": 111.0, "side by side": 100.0}), False),
    ],
)
def test_what_is_wanted(all_keys: RacedLatents, few_keys: RacedLatents, wanted: bool) -> None:
    assert is_wanted(all_keys, few_keys) is wanted


def test_a_row_for_each_entrant(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("triton_latent", "by index", "side by side")
    found = {name: Candidate("triton_latent", Config(BLOCK_ROWS=64)) for name in names}
    times = {"ours": 200.0, "triton_latent": 200.0, "triton_latent default": 250.0}
    print_raced(RacedLatents(times, bound_us=148.0), FEW, found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| 8192 | ours | 200.0 | 0.740 |  |"
    assert lines[3].startswith("| 8192 | triton_latent | 200.0 | 0.740 | triton_latent")
    assert lines[4] == "| 8192 | triton_latent default | 250.0 | 0.592 |  |"
    assert lines[5].startswith("| 2048 | by index | 110.0 |  | triton_latent")
    assert lines[-1] == "FlashInfer's time over ours: nan; by index over side by side: 1.100"
    assert math.isnan(RacedLatents({}).ratio("ours", "default"))
