"""An outlook answers for many shapes as one look-up after the other would."""

import pytest

from autotune import dispatch
from autotune.device import NVIDIA_H200
from autotune.dispatch import outlook_on, pick_for_tuning
from autotune.errors import InvalidShapeError
from autotune.models import get_model
from autotune.registry import our_implementations
from autotune.shape import AttentionShape, PagedShape, Shape

LLAMA, GEMMA = get_model("llama-3.1-8b"), get_model("gemma-2-9b")
SHAPES: dict[str, list[Shape]] = {
    "flash_attention": [
        model.shape(AttentionShape, batch=batch, seq_q=length)
        for model in (LLAMA, GEMMA)
        for batch, length in ((1, 512), (3, 4096), (64, 32768), (100, 32768))
    ],
    "paged_decode": [
        model.shape(PagedShape, batch=batch, max_context=length)
        for model in (LLAMA, GEMMA)
        for batch, length in ((1, 512), (64, 8192), (256, 100), (300, 100), (512, 100))  # the last are of one likeness
    ],
}


@pytest.mark.parametrize("operation", SHAPES)
def test_an_outlook_answers_as_look_ups_do(operation: str) -> None:
    dispatch.reload()
    outlook = outlook_on(operation, NVIDIA_H200)
    for shape in SHAPES[operation]:
        among = tuple(each.name for each in our_implementations(operation) if each.supports(shape, NVIDIA_H200) is None)
        kernel = pick_for_tuning(shape, NVIDIA_H200, operation, among)
        why = kernel.provenance
        assert outlook.look(shape) == (kernel.candidate, why.rung, why.expected_regret, why.evidence)


def test_an_outlook_says_what_is_not_supported() -> None:
    outlook = outlook_on("flash_attention", NVIDIA_H200, ("gluon_hopper",))
    with pytest.raises(InvalidShapeError):
        outlook.look(AttentionShape(batch=1, heads=1, seq_q=64, head_dim=64, dtype="float32"))
