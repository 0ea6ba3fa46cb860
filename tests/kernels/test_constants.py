"""Constants of a kernel that are a named tuple have fields that Triton reads as fields, in all its versions."""

import ast
from pathlib import Path
from typing import Final

import triton.language as tl

KERNELS: Final = Path(__file__).resolve().parents[2] / "kernels"
# Triton 3.8 and later hand a tuple of constants on as ``tl.tuple``, which answers for its own attributes.
TAKEN: Final = set(dir(tl.tuple([tl.constexpr(1)])))


def fields_taken(tree: ast.AST) -> list[str]:
    return [
        f"{node.name}.{field.target.id}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id in TAKEN
    ]


def test_no_field_is_hidden_by_an_attribute_of_the_tuple() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in KERNELS.rglob("*.py")]
    assert [field for tree in trees for field in fields_taken(tree)] == []


def test_a_hidden_field_is_seen() -> None:
    widths = "class Widths(NamedTuple):\n    keys: int\n    values: int\n    type: int = 0\n"
    assert fields_taken(ast.parse(widths)) == ["Widths.values", "Widths.type"]
