"""docs/dispatch.md lists every implementation that may be served."""

import re
from pathlib import Path

import pytest

from autotune.registry import our_implementations

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dispatch.md"


@pytest.mark.parametrize("operation", ["flash_attention", "flash_attention_varlen", "paged_decode", "paged_prefill"])
def test_a_row_names_each_of_an_operations_implementations(operation: str) -> None:
    (row,) = re.findall(rf"^\| `{operation}` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {each.name for each in our_implementations(operation)}
