"""Few queries on many keys: the problems, the bytes, the parts of what memory gives, and what ends with 1."""

import math
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.registry import get_implementation, load_baselines, our_implementations
from autotune.space import Config
from autotune.trial import Candidate
from benchmarks import short_queries
from benchmarks.shipped_problems import WINNERS
from benchmarks.shipped_problems import short_queries as problem
from benchmarks.short_queries import PEERS, RacedShape, cells_of, is_wanted, key_bytes

CANDIDATE = Candidate("triton_split_keys", Config(BLOCK_Q=64))


def raced(batch: int = 1, queries: int = 16, **times: Any) -> RacedShape:
    fields: dict[str, Any] = {"ours_us": 40.0, "peers_us": {"sdpa flash": 60.0, "sdpa math": 900.0}, "reading_us": 32.0}
    return RacedShape(problem(batch, queries), CANDIDATE, **{**fields, **times})


def test_bytes_are_those_of_tensors_of_keys_and_values() -> None:
    torch = pytest.importorskip("torch")
    shape = problem(4, 16)
    sizes = (shape.batch, shape.seq_kv, shape.kv_heads)
    tensors = [
        torch.empty(*sizes, width, dtype=getattr(torch, shape.dtype), device="meta")
        for width in (shape.head_dim, shape.head_dim_v)
    ]
    assert key_bytes(shape) == sum(tensor.nbytes for tensor in tensors) == 536_870_912
    assert str(problem(1, 16)) == "batch 1, 32/8 heads of 128, seq 16 x 32768, bfloat16, full"


def test_rates_are_parts_of_what_was_measured_beside() -> None:
    found = raced()
    assert found.of_reading == pytest.approx(0.8)
    assert found.of_best == pytest.approx(1.5)
    assert math.isnan(raced(peers_us={}).of_best)
    row = cells_of(found)
    assert row[:7] == (1, 16, "134", "4.19", "40.0", "3.36", "0.800")
    assert row[7:11] == ("60.0", "", "", "900.0")
    assert row[11:] == ("1.500", CANDIDATE)
    assert cells_of(raced(peers_us={}))[11] == ""


def test_only_sixteen_queries_of_one_sequence_have_a_wanted_rate() -> None:
    assert is_wanted([])
    assert is_wanted([raced(ours_us=35.5), raced(4), raced(queries=64)])
    assert not is_wanted([raced(4), raced(ours_us=35.6)])


def test_every_problem_is_searched_over_all_of_ours_beside_known_peers() -> None:
    names = {each.name for each in load_baselines("flash_attention")}
    assert set(PEERS) <= names
    for _, shape in WINNERS["flash_attention/triton_split_keys"]:
        supporting = [
            each.name for each in our_implementations("flash_attention") if not each.supports(shape, NVIDIA_H200)
        ]
        assert supporting == ["triton", "gluon_hopper", "triton_split_keys"]
    default = get_implementation("flash_attention", "triton_split_keys").space.default(problem(1, 16), NVIDIA_H200)
    assert (default["NUM_SPLITS"], default["loads"]) == (32, "descriptor")


def test_problems_can_be_chosen_and_others_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code, words in (
        (["--help"], 0, "16 and 64 queries on 32,768 keys"),
        (["--queries", "5"], 2, "invalid choice: 5"),
        (["--batch", "2"], 2, "invalid choice: 2"),
    ):
        with pytest.raises(SystemExit) as ended:
            short_queries.main(arguments)
        assert ended.value.code == code
        printed = capsys.readouterr()
        assert words in " ".join((printed.out + printed.err).split())
