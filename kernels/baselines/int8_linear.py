"""Attention between linear projections in int8, quantized after training, beside the same module in float.

The scheme is that of ``int8_dynamic_activation_int8_weight`` of pytorch/ao: weights have a scale for each output,
inputs one for each row, found when the module runs ("vector-wise", Dettmers et al., arXiv 2208.07339, section 2), and
``torch._int_mm`` sums their products in int32. ``torch.ao.quantization.quantize_dynamic``, which has one scale for all
rows, is deprecated, and so are its tensors: torch 2.13 warns at both. For the CPU; on a GPU ``_int_mm`` wants more than
16 rows.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from autotune.errors import InputMismatchError, UsageError
from autotune.kernels.paged_cache.quantization import LARGEST, quantize

ROUNDING: Final = 2.0**-21  # of fp32, relative, of a few operations


class Int8Linear(torch.nn.Module):
    """A float linear layer's weights in int8, and its inputs too at each call; the output has the input's dtype.

    Its error is at most ``projection_error_bound``.

    Example:
        >>> out = Int8Linear(torch.nn.Linear(64, 32))(torch.randn(2, 10, 64))
    """

    weight: torch.Tensor  # int8 [in, out]
    scale: torch.Tensor  # fp32 [out]
    bias: torch.Tensor | None

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        values, scale = quantize(linear.weight.detach(), torch.int8)
        # Copied for its strides: of one row, a transposed view has (1, 1), and _int_mm (CPU, 2.13.0) reads outside it.
        self.register_buffer("weight", values.t().clone(memory_format=torch.contiguous_format))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Project ``[..., in]`` to ``[..., out]``."""
        rows, scale = quantize(inputs.reshape(-1, inputs.shape[-1]), torch.int8)
        sums = torch._int_mm(rows, self.weight)
        out = sums.float().mul_(scale[:, None]).mul_(self.scale)
        if self.bias is not None:
            out += self.bias
        return out.reshape(*inputs.shape[:-1], -1).to(inputs.dtype)


class ProjectedAttention(torch.nn.Module):
    """Queries, keys and values by projections of ``[B, S, hidden]``, torch's attention, and a projection of its output.

    Made by ``projected_attention``. Without gradients.
    """

    def __init__(self, projections: Sequence[torch.nn.Module], *, hidden: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = projections
        self.hidden, self.head_dim, self.causal = hidden, head_dim, causal

    @torch.no_grad()
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Compute the output ``[B, S, hidden]``; raise InputMismatchError for other sizes."""
        if hidden_states.ndim != 3 or hidden_states.shape[2] != self.hidden:
            raise InputMismatchError(f"hidden_states is {tuple(hidden_states.shape)}; expected [B, S, {self.hidden}]")
        batch, length = hidden_states.shape[:2]
        q, k, v = (
            projection(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        projected: torch.Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected


def projected_attention(
    hidden: int,
    heads: int,
    *,
    kv_heads: int | None = None,
    causal: bool = False,
    quantized: bool = False,
    seed: int = 0,
) -> ProjectedAttention:
    """Make attention inside its four projections, in fp32, or with the projections in int8.

    The weights depend on the seed alone, so that both hold the same before quantization. They are uniform in
    ``+-hidden ** -0.5``, as torch initializes a linear layer.

    Example:
        >>> exact, int8 = (projected_attention(256, 4, quantized=quantized) for quantized in (False, True))
        >>> output_error(int8, exact, torch.randn(2, 64, 256)).relative < 0.03
        True

    Raises:
        UsageError: ``heads`` does not divide ``hidden``, or ``kv_heads`` the heads.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    if heads < 1 or hidden < 1 or hidden % heads:
        raise UsageError(f"heads={heads} is not allowed; expected a divisor of hidden={hidden}")
    if kv_heads < 1 or heads % kv_heads:
        raise UsageError(f"kv_heads={kv_heads} is not allowed; expected a divisor of heads={heads}")
    generator = torch.Generator().manual_seed(seed)
    width = hidden // heads

    def project(outputs: int) -> torch.nn.Module:
        linear = torch.nn.Linear(hidden, outputs, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            for parameter in (linear.weight, linear.bias):
                parameter.uniform_(-(hidden**-0.5), hidden**-0.5, generator=generator)
        return Int8Linear(linear) if quantized else linear.requires_grad_(False)

    projections = [project(outputs) for outputs in (hidden, kv_heads * width, kv_heads * width, hidden)]
    return ProjectedAttention(projections, hidden=hidden, head_dim=width, causal=causal)


def projection_error_bound(inputs: torch.Tensor, linear: torch.nn.Linear) -> torch.Tensor:
    """Bound how far ``Int8Linear(linear)`` may be from the exact projection of ``inputs``, fp64 ``[..., out]``.

    A row x becomes x', off by at most half its scale s in each of its n elements, and an output's weights w become w',
    off by half theirs, t. ``|x'w' - xw| <= |x' - x| |w| + |x'| |w' - w|``, summed, is at most
    ``s/2 * sum|w| + t/2 * (sum|x| + n * s/2)``. fp32's rounding comes on top, of ratios up to 127 scales and of a sum
    no larger than ``127 s * sum|w|``. It is the worst case, all errors of one sign: what is seen is about a tenth.
    """
    rows, weight, largest = inputs.double(), linear.weight.detach().double(), LARGEST[torch.int8]
    half_s = rows.abs().amax(-1, keepdim=True) / largest / 2.0
    half_t = weight.abs().amax(1) / largest / 2.0
    sums = rows.abs().sum(-1, keepdim=True)
    bound = half_s * weight.abs().sum(1) + half_t * (sums + rows.shape[-1] * half_s)
    bias = 0.0 if linear.bias is None else linear.bias.detach().double().abs()
    return bound + ROUNDING * (2.0 * (largest + 1.0) * bound + bias)


@dataclass(frozen=True, slots=True)
class OutputError:
    """The largest absolute error of an output, and the root of its mean square over that of the exact output."""

    largest: float
    relative: float


def output_error(module: ProjectedAttention, exact: ProjectedAttention, hidden_states: torch.Tensor) -> OutputError:
    """Measure how far ``module(hidden_states)`` is from the output of the float module ``exact`` in fp64."""
    expected = copy.deepcopy(exact).double()(hidden_states.double())
    error = module(hidden_states).double() - expected
    return OutputError(
        largest=error.abs().max().item(),
        relative=math.sqrt(error.square().mean().item() / expected.square().mean().item()),
    )
