"""The attention of each family of models is computed right, of its widths and features, as it is served."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from autotune.correctness import Verdict, check_config, make_cases
from autotune.dispatch import get_kernel
from autotune.registry import load_definition, load_kernel
from autotune.shape import PagedShape, Shape
from autotune.trial import Candidate, Status
from autotune.workload import operation_for
from tests.contract.interpreting import interpret
from tests.model_families import FAMILIES, Family

PAGE: Final = Path(__file__).parent.parent / "docs" / "model-families.md"
BEGIN, END = "<!-- families -->", "<!-- end -->"
# On this device the kernels of Triton are served, which its interpreter runs; those of Gluon compute the same features.
DEVICE: Final = "sm_80"
WANTED: Final = 38


def with_few_heads(shape: Shape) -> Shape:
    """Return a shape with fewer heads, one for each KV head or up to four; fp16, which the interpreter computes.

    A tile is of one KV head: more of them are more programs. Groups of any size are the contract suite's.
    """
    heads, kv_heads = (int(shape.as_dict()[name] or 1) for name in ("heads", "kv_heads"))
    few = {"heads": 2, "kv_heads": 2} if heads == kv_heads else {"heads": min(heads // kv_heads, 4), "kv_heads": 1}
    return replace(shape, **few, dtype="float16", **_cache(shape))  # type: ignore[call-arg]


def _cache(shape: Shape) -> dict[str, str]:
    return {"kv_dtype": "float16"} if isinstance(shape, PagedShape) else {}


@cache
def verdict(shape: Shape) -> Verdict:
    operation = operation_for(shape).name
    return interpret(judged, operation, get_kernel(shape, device=DEVICE).candidate, shape)


def judged(operation: str, candidate: Candidate, shape: Shape) -> Verdict:
    """Judge all outputs of a config against fp64, on three sets of inputs."""
    cases = make_cases(load_definition(operation), (shape,), device="cpu")
    return check_config(load_kernel(operation, candidate.implementation), candidate.config, cases, every_output=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "shape"),
    [pytest.param(*each, id=f"{each[0]}: {each[1]}") for family in FAMILIES for each in family.named()],
)
def test_attention_is_computed(family: str, shape: Shape) -> None:
    found = verdict(with_few_heads(shape))
    assert found.status is Status.OK, found.message


def test_as_many_are_covered_as_are_promised() -> None:
    assert len(FAMILIES) == len({each.name for each in FAMILIES}) == 40
    assert sum(not each.lacks for each in FAMILIES) >= WANTED


def row_of(family: Family) -> str:
    kinds = {"AttentionShape": "dense", "VarlenShape": "packed", "PagedShape": "decode"}
    found = dict.fromkeys(
        "chunks" if getattr(shape, "page_size", 0) and getattr(shape, "seq_q", 1) > 8 else kinds[type(shape).__name__]
        for shape in family.shapes
    )
    return f"| {family.name} | {family.features} | {', '.join(found)} | {family.lacks or 'yes'} |"


def test_the_page_lists_them() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    head = "| family | its attention | computed as | covered; what is not |\n|---|---|---|---|"
    table = "\n".join([BEGIN, "", head, *map(row_of, FAMILIES), "", END])
    if os.environ.get("AUTOTUNE_GOLDEN") == "write":
        PAGE.write_text(f"{before}{table}{after}", encoding="utf-8")
    assert f"{before}{table}{after}" == PAGE.read_text(encoding="utf-8"), "AUTOTUNE_GOLDEN=write writes it anew"
