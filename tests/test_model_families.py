"""The attention of each family of models is computed right by the config that is served, at its heads and widths."""

import os
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from autotune.correctness import Verdict
from autotune.dispatch import get_kernel
from autotune.executor.interpreter import check_interpreted
from autotune.registry import get_implementation
from autotune.shape import Shape
from autotune.trial import Status
from autotune.workload import operation_for
from tests.model_families import FAMILIES, Family

PAGE: Final = Path(__file__).parent.parent / "docs" / "model-families.md"
BEGIN, END = "<!-- families -->", "<!-- end -->"
# On this device the kernels of Triton are served, which its interpreter runs; those of Gluon compute the same features.
DEVICE: Final = "sm_80"
WANTED: Final = 34


@cache
def verdict(shape: Shape) -> Verdict:
    """Check what is served for a shape, all of its outputs, on small problems of its binaries."""
    kernel = get_kernel(shape, device=DEVICE)
    implementation = get_implementation(operation_for(shape).name, kernel.candidate.implementation)
    return check_interpreted(implementation, kernel.candidate.config, shape)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "shape"),
    [pytest.param(*each, id=f"{each[0]}: {each[1]}") for family in FAMILIES for each in family.named()],
)
def test_attention_is_computed(family: str, shape: Shape) -> None:
    found = verdict(shape)
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
