"""An implementation of dense attention that runs anywhere and declines tensors that tensor maps could not copy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from autotune.errors import UnsupportedCallError
from autotune.implementation import Implementation
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space


class Picky:
    """A kernel in plain torch; ``asked`` notes the calls that it was given, and which it declined."""

    def __init__(self, *, declines: bool) -> None:
        self.asked: list[bool] = []
        self._declines = declines

    def bind(self, config: Config, shape: AttentionShape) -> Callable[..., Any]:
        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: Any = None, **_: Any) -> torch.Tensor:
            unfit = [name for name, each in {"q": q, "k": k, "v": v}.items() if self._declines and _is_unfit(each)]
            self.asked.append(bool(unfit))
            if unfit:
                raise UnsupportedCallError(f"{unfit[0]}: copies need multiples of 16 bytes")
            heads = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
            found = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=shape.causal, scale=scale)
            return found.transpose(1, 2)

        return call


def _is_unfit(tensor: torch.Tensor) -> bool:
    strides = [stride * tensor.element_size() for stride in tensor.stride()[:3]]
    return tensor.data_ptr() % 16 != 0 or any(stride % 16 for stride in strides)


KERNEL: Final = Picky(declines=True)
ELSE: Final = Picky(declines=False)  # what stands for all others
IMPLEMENTATION: Final[Implementation[AttentionShape]] = Implementation(
    name="picky",
    operation="flash_attention",
    space=Space(
        (Parameter("ROWS", (16, 32)),), lambda config, shape, device: None, lambda shape, device: Config(ROWS=16)
    ),
    kernel="tests.dispatch.picky:KERNEL",
    sources=(Path(__file__),),
    entry=("Picky",),
    can_interpret=False,
)
