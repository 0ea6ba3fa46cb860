"""Numbers of padded batches, and of packed sequences of which not all rows count; the bugs that they must catch."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from autotune.errors import InputMismatchError, NotDifferentiableError
from autotune.kernels.flash_attention_varlen.triton import KERNEL
from autotune.varlen_shape import VarlenShape
from tests.contract.covering import Row, Rules, cover
from tests.contract.interpreting import interpret
from tests.contract.planting import Mutant, load_copy
from tests.kernels.flash_attention_varlen.numerics import CONFIG, ORDERS, config_of
from tests.kernels.flash_attention_varlen.padded import (
    CASES,
    USED_CASES,
    PaddedCase,
    UsedCase,
    graph_failure,
    hostile_failure,
    padded_failure,
    used_failure,
)

QUICK: Final = ("both",)
FACTORS: Final[dict[str, tuple[Any, ...]]] = {
    "dtype": ("float16", "float32"),
    "head_dims": ((16, 16), (40, 24), (64, 64), (80, 80), (128, 128)),
    "mask": ((False, None), (True, None), (False, 9), (True, 9)),
    "softcap": (False, True),
    "sinks": (False, True),
    "heads": ((2, 2), (6, 2), (5, 1)),
    "padding": ("right", "left", "both", "queries", "chunk", "more queries than keys", "one query"),
    "order": ORDERS,
}
ROWS: Final = cover(FACTORS, Rules(score=lambda found, row: found))


def case_of(row: Row) -> PaddedCase:
    fields = dict(zip(("head_dim", "head_dim_v"), row["head_dims"], strict=True))
    fields |= zip(("causal", "window"), row["mask"], strict=True)
    fields |= zip(("heads", "kv_heads"), row["heads"], strict=True)
    return replace(CASES[row["padding"]], fields=fields | {name: row[name] for name in ("dtype", "softcap", "sinks")})


def id_of(row: Row) -> str:
    return "-".join(str(value) for value in row.values()).replace(" ", "")


FIELDS: Final[dict[str, dict[str, Any]]] = {
    "causal": {},
    "full": {"causal": False, "window": 9},
    "float32": {"dtype": "float32"},
}
each_field = pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES]
)
def test_interpreted_padding_is_hidden(name: str) -> None:
    assert interpret(padded_failure, CASES[name], "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_gpu_padding_is_hidden(name: str, dtype: str) -> None:
    case = CASES[name]
    assert padded_failure(replace(case, fields={"dtype": dtype} | case.fields), "cuda") is None


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=id_of)
def test_interpreted_pairs_of_features_and_padding(row: Row) -> None:
    assert interpret(padded_failure, case_of(row), "cpu", (config_of(*row["order"]),)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("row", ROWS, ids=id_of)
def test_gpu_pairs_of_features_and_padding(row: Row, half: str) -> None:
    row = row | {"dtype": half if row["dtype"] == "float16" else row["dtype"]}
    assert padded_failure(case_of(row), "cuda", (config_of(*row["order"]),)) is None


@pytest.mark.slow
@each_field
def test_interpreted_sequences_end_where_their_rows_do(fields: dict[str, Any]) -> None:
    assert interpret(used_failure, UsedCase(fields), "cpu") is None


@pytest.mark.gpu
@each_field
def test_gpu_sequences_end_where_their_rows_do(fields: dict[str, Any]) -> None:
    assert used_failure(UsedCase(fields), "cuda") is None


@pytest.mark.slow
@pytest.mark.parametrize("name", USED_CASES)
def test_interpreted_rows_that_count_go_with_every_feature(name: str) -> None:
    assert interpret(used_failure, USED_CASES[name], "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", USED_CASES)
def test_gpu_rows_that_count_go_with_every_feature(name: str) -> None:
    assert used_failure(USED_CASES[name], "cuda") is None


@pytest.mark.slow
def test_interpreted_numbers_out_of_range_reach_nothing() -> None:
    assert interpret(hostile_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_numbers_out_of_range_reach_nothing() -> None:
    assert hostile_failure("cuda") is None


@pytest.mark.gpu
def test_gpu_graph_follows_other_numbers() -> None:
    assert graph_failure() is None


FORWARD, ORDER = "forward.py", "sequence_order.py"
MUTANTS: Final = (
    Mutant("padding on the left moves queries", FORWARD, "tokens - skipped  #", "tokens  #", "both"),
    Mutant("diagonal of positions", FORWARD, "diagonal = key_tokens - tokens - skipped", "diagonal = 0 - skipped",
           "chunk"),
    Mutant("keys from the first", FORWARD, "first_key += skipped", "first_key += 0", "full"),
    Mutant("padding of queries is computed", FORWARD, "_empty_rows(state, is_used)", "_empty_rows(state, is_row)",
           "queries alone"),
    Mutant("keys of the first of the batch", FORWARD, "Head(k, k_strides, entry,", "Head(k, k_strides, 0,", "both"),
    Mutant("queries of the first of the batch", FORWARD, "offset(entry, q_strides", "offset(0, q_strides", "both"),
    Mutant("output of the first of the batch", FORWARD, "offset(sequence, tokens)", "offset(0, tokens)", "both"),
    Mutant("one key too many", ORDER, "return skipped, end - skipped", "return skipped, end - skipped + 1", "full"),
    Mutant("first key lost", ORDER, "mask=present, other=0), 0), end)", "mask=present, other=0) + 1, 0), end)",
           "full"),
    Mutant("one tile a sequence", ORDER, "sequence = slot // tiles", "sequence = slot", "both"),
    Mutant("diagonal of all queries", FORWARD, "diagonal = length - used ", "diagonal = length - count ", "used"),
)  # fmt: skip


def mutant_failure(mutant: Mutant | None, gate: str, folder: Path, device: str) -> str | None:
    kernel = load_copy("flash_attention_varlen", "triton", mutant, folder)
    return (
        used_failure(UsedCase(), device, kernel)
        if gate == "used"
        else padded_failure(CASES[gate], device, kernel=kernel)
    )


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_mutant_is_caught_on_the_cpu(mutant: Mutant, tmp_path: Path) -> None:
    assert interpret(mutant_failure, mutant, mutant.gate, tmp_path, "cpu") is not None


SHAPE: Final = VarlenShape(batch=2, heads=4, kv_heads=2, max_seq_q=64, head_dim=16, dtype="float16")


def tensors(**replaced: Any) -> dict[str, Any]:
    sizes = {"q": (2, 7, 4, 16), "k": (2, 9, 2, 16), "v": (2, 9, 2, 16)}
    given: dict[str, Any] = {name: torch.zeros(size, dtype=torch.float16) for name, size in sizes.items()}
    return given | {"cu_seqlens_q": None, "cu_seqlens_k": None} | replaced


def ints(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


OFFSETS: Final[dict[str, Any]] = {
    **{name: each.flatten(0, 1) for name, each in tensors().items() if each is not None},
    "cu_seqlens_q": ints(0, 7, 14),
    "cu_seqlens_k": ints(0, 9, 18),
}
BAD: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "rank": ({"q": torch.zeros(14, 4, 16).half()}, r"q is \(14, 4, 16\) float16; .* takes \(any, any, 4, 16\) float16"),
    "batch": ({"v": torch.zeros(3, 9, 2, 16).half()}, "q has 2 sequences and v 3; expected as many"),
    "keys": ({"v": torch.zeros(2, 8, 2, 16).half()}, "k has 9 keys and v 8 values; expected as many"),
    "offsets of one": ({"cu_seqlens_k": ints(0, 9)}, "takes .any, 4, 16"),
    "type": ({"seqused_k": ints(3, 4, dtype=torch.int64)}, r"kv_lens is \(2,\) int64; expected \(2,\) int32, contig"),
    "number": ({"seqused_q": ints(3)}, r"q_lens is \(1,\) int32; expected \(2,\) int32, contiguous: a number for each"),
    "strides": ({"kv_starts": ints(3, 4, 5, 6)[::2]}, r"kv_starts is \(2,\) int32; expected \(2,\) int32, contiguous"),
    "list": ({"kv_starts": [0, 0]}, "kv_starts is a list; expected"),
    "place": ({"seqused_k": ints(3, 4).to("meta")}, "q is on cpu, kv_lens on meta; expected one device"),
    "packed": (OFFSETS | {"seqused_k": ints(3)}, r"seqused_k is \(1,\) int32; expected \(2,\) int32"),
    "starts of packed": (
        OFFSETS | {"kv_starts": ints(0, 0)},
        "kv_starts is given with packed sequences; expected a pad",
    ),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=[name.replace(" ", "-") for name in BAD])
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        KERNEL.bind(CONFIG, SHAPE)(**tensors(**changed))


READ: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "keys": ({"seqused_k": ints(9, 10)}, r"kv_lens\[1\]=10 is not allowed; expected 0 to 9, its keys"),
    "queries": ({"seqused_q": ints(-1, 7)}, r"q_lens\[0\]=-1 is not allowed; expected 0 to 7, its queries"),
    "starts": ({"kv_starts": ints(9, 10)}, r"kv_starts\[1\]=10 is not allowed; expected 0 to 9, its keys"),
    "starts behind": (
        {"kv_starts": ints(0, 5), "seqused_k": ints(0, 4)},
        r"kv_starts\[1\]=5 is not allowed; expected 0 to 4, its kv_lens",
    ),
    "packed": (OFFSETS | {"seqused_q": ints(7, 8)}, r"seqused_q\[1\]=8 is not allowed; expected 0 to 7, its queries"),
}


@pytest.mark.parametrize(("changed", "message"), READ.values(), ids=[name.replace(" ", "-") for name in READ])
def test_numbers_are_read_on_demand(changed: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)  # nothing is launched
    with pytest.raises(InputMismatchError, match=message):
        KERNEL.bind(CONFIG, SHAPE)(**tensors(**changed), check=True)


def test_gradients_are_refused() -> None:
    with pytest.raises(NotDifferentiableError, match="no backward kernel"):
        KERNEL.bind(CONFIG, SHAPE)(**tensors(k=torch.zeros(2, 9, 2, 16, requires_grad=True).half()))
