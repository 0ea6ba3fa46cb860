"""Transformers of diffusers with few and random weights: what they compute by our attention, and by torch's."""

from collections.abc import Callable
from typing import Any, Final

import torch
from diffusers import FluxTransformer2DModel, QwenImageTransformer2DModel, WanTransformer3DModel
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from autotune.integrations.diffusers import NAME, register

TOLERANCE: Final = 1e-4  # fp32


def flux() -> tuple[Any, dict[str, Any]]:
    """Return a FLUX of one double and one single block, and its inputs: 6 tokens of text, 9 of an image."""
    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    inputs = {"hidden_states": torch.randn(2, 9, 4), "encoder_hidden_states": torch.randn(2, 6, 32)}
    inputs |= {"pooled_projections": torch.randn(2, 32), "timestep": torch.tensor([1.0, 1.0])}
    return model, inputs | {"img_ids": torch.randn(9, 3), "txt_ids": torch.randn(6, 3)}


def wan() -> tuple[Any, dict[str, Any]]:
    """Return a Wan of two blocks, with cross attention over 5 tokens, and its inputs: 2 frames of 4 x 4."""
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4,
        text_dim=16, freq_dim=32, ffn_dim=32, num_layers=2, rope_max_seq_len=32,
    )  # fmt: skip
    inputs = {"hidden_states": torch.randn(1, 4, 2, 4, 4), "encoder_hidden_states": torch.randn(1, 5, 16)}
    return model, inputs | {"timestep": torch.tensor([7])}


def qwen_image() -> tuple[Any, dict[str, Any]]:
    """Return a Qwen-Image of two blocks, and its inputs: 5 tokens of text, none of them padding, 16 of an image."""
    model = QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    inputs = {"hidden_states": torch.randn(1, 16, 16), "encoder_hidden_states": torch.randn(1, 5, 16)}
    return model, inputs | {"timestep": torch.tensor([0.5]), "img_shapes": [[(1, 4, 4)]]}


MODELS: Final[dict[str, Callable[[], tuple[Any, dict[str, Any]]]]] = {
    "flux": flux,
    "wan": wan,
    "qwen-image": qwen_image,
}


def model_failure(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> str | None:
    """Return how a model's output differs between the backends, None if it does not."""
    register()
    torch.manual_seed(3)
    model, inputs = MODELS[name]()
    model = model.eval().to(device, dtype)
    inputs = {key: _moved(each, device, dtype) for key, each in inputs.items()}
    outputs: dict[str, torch.Tensor] = {}
    calls = 0
    backend = AttentionBackendName(NAME)
    function = _AttentionBackendRegistry._backends[backend]

    def counted(**given: Any) -> Any:
        nonlocal calls
        calls += 1
        return function(**given)

    _AttentionBackendRegistry._backends[backend] = counted
    try:
        for each in ("native", NAME):
            model.set_attention_backend(each)
            with torch.no_grad():
                outputs[each] = model(**inputs, return_dict=False)[0].float()
    finally:
        _AttentionBackendRegistry._backends[backend] = function
        model.set_attention_backend("native")
    difference = (outputs["native"] - outputs[NAME]).abs().max().item()
    if calls < 2:
        return f"{calls} layers called our attention"
    tolerance = TOLERANCE if dtype == torch.float32 else 2e-2
    return None if difference <= tolerance else f"off by {difference}"


def _moved(value: Any, device: str, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device, dtype if value.is_floating_point() else None)
