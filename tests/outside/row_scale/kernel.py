"""The operation on tensors, and a kernel in plain torch that takes so many rows at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from autotune.space import Config
from tests.outside.row_scale.space import RowShape


class RowScaleDefinition:
    """Implements ``autotune.operation.Definition`` for ``RowShape``; the inputs are one tensor."""

    def make_inputs(self, shape: RowShape, *, seed: int, device: str, data: str = "normal") -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(seed)
        x = torch.randn(shape.rows, shape.width, generator=generator, device=device, dtype=torch.float32)
        return (100 * x if data == "large" else x).to(getattr(torch, shape.kind))

    def check_shapes(self, shape: RowShape) -> Sequence[RowShape]:
        return [replace(shape, rows=min(shape.rows, 33))]

    def empty_outputs(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.full_like(inputs, math.nan),)

    def reference(self, inputs: torch.Tensor, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        x = inputs.double() if dtype is None else inputs.to(dtype)
        return (x * x.square().mean(dim=-1, keepdim=True).rsqrt(),)

    def statistic_slack(self, inputs: torch.Tensor) -> float:
        return 0.0


class RowScale:
    """Implements ``autotune.implementation.Kernel`` for ``RowShape``."""

    def launch(self, config: Config, inputs: torch.Tensor, outputs: tuple[torch.Tensor, ...]) -> None:
        for start in range(0, len(inputs), config.integer("ROWS")):
            rows = slice(start, start + config.integer("ROWS"))
            x = inputs[rows].float()
            outputs[0][rows] = (x * x.square().mean(dim=-1, keepdim=True).rsqrt()).to(inputs.dtype)

    def warmup(self, config: Config, shape: RowShape, *, every_output: bool = False) -> Sequence[Any]:
        return ()

    def bind(self, config: Config, shape: RowShape) -> Callable[..., Any]:
        def scale(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            self.launch(config, x, (out,))
            return out

        return scale


DEFINITION: Final = RowScaleDefinition()
KERNEL: Final = RowScale()
