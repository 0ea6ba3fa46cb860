"""Tests that have no GPU say so by ``sample.hide_gpu``: one of the two answers alone would let children start."""

from pathlib import Path

TESTS = Path(__file__).parent
ALONE = '"has_gpu", lambda: ' + "False"


def test_no_test_hides_a_gpu_from_torch_alone() -> None:
    found = [str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py") if ALONE in path.read_text(encoding="utf-8")]
    assert sorted(found) == ["sample.py", "test_paged_cache.py"]  # the latter hides it from tensors, and starts nothing
