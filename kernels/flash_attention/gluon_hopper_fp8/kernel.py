"""Flash attention of e4m3 in Gluon as the framework sees it."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.kernels.flash_attention.definition import SCALED_PER, SOFTCAP, Inputs, meta_tensors
from autotune.kernels.flash_attention.gluon_hopper_fp8.byte_call import BoundBytes
from autotune.kernels.flash_attention.gluon_hopper_fp8.launch import launch_bytes
from autotune.kernels.flash_attention.scales import NAMES
from autotune.kernels.tensors import check_device, launch_options, require_context
from autotune.shape import AttentionShape
from autotune.space import Config

FEATURES: Final = ("causal", "window", "softcap", "scale", *NAMES)


def prepare(q: torch.Tensor) -> None:
    """Refuse a device that Triton does not launch on; descriptors need its context."""
    check_device(q.device, q.dtype)
    require_context(q.device)


class ByteKernel:
    """Implements ``autotune.implementation.Kernel`` for ``AttentionShape`` of e4m3."""

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        lse = outputs[1] if len(outputs) > 1 else None
        features = {name: getattr(inputs, name) for name in FEATURES}
        launch_bytes(inputs.q, inputs.k, inputs.v, outputs[0], lse, **features, options=launch_options(config))

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Sequence[Any]:
        """Compile over tensors of the meta device, with scales of the kinds that random inputs have."""
        q, k, v, out, lse = meta_tensors(shape)
        scales: dict[str, Any] = {}
        for name, tensor, per in zip(NAMES, (q, k, v), SCALED_PER, strict=True):
            batches, heads = tensor.shape[0], tensor.shape[2]
            sizes = {"tensor": None, "head": (heads,), "sequence": (batches, heads)}[per]
            scales[name] = None if sizes is None else torch.empty(sizes, device="meta")
        return launch_bytes(
            *(q, k, v, out, lse if every_output else None),
            **scales,
            causal=shape.causal,
            window=shape.window,
            softcap=SOFTCAP if shape.softcap else None,
            scale=shape.head_dim**-0.5,
            options=launch_options(config),
            compile_only=True,
        )

    def bind(self, config: Config, shape: AttentionShape) -> Callable[..., Any]:
        return BoundBytes(launch_bytes, prepare, shape, launch_options(config))


KERNEL: Final = ByteKernel()
"""Launches flash attention of e4m3 over checked tensors: values transposed, descriptors, constants, grid."""
