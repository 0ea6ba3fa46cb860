"""Widths that vLLM's backend takes: those of keys and values that are as wide, and none of a cache of latents."""

import pytest

from autotune.integrations.vllm.limits import is_head_size


@pytest.mark.parametrize("head_size", [64, 72, 80, 128, 192, 256, 512])
def test_widths_that_are_computed(head_size: int) -> None:
    assert is_head_size(head_size)


@pytest.mark.parametrize("head_size", [0, 100, 264, 288, 320, 576])
def test_other_widths_are_not_among_them(head_size: int) -> None:
    assert not is_head_size(head_size)
