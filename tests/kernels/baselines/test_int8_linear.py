"""Int8 projections against fp64 and against their stated bound, and that both modules hold the same weights."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autotune.errors import InputMismatchError, UsageError
from autotune.kernels.baselines.int8_linear import (
    Int8Linear,
    ProjectedAttention,
    output_error,
    projected_attention,
    projection_error_bound,
)

SIZES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "gqa": {"kv_heads": 2},
    "mqa-causal": {"kv_heads": 1, "causal": True},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """pytest's workers take the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def draw(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def make_linear(inputs: int, outputs: int, *, bias: bool = True) -> torch.nn.Linear:
    linear = torch.nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        linear.weight.copy_(draw(outputs, inputs, seed=1))
    return linear


def exact_projection(inputs: torch.Tensor, linear: torch.nn.Linear) -> torch.Tensor:
    out = inputs.double() @ linear.weight.detach().double().T
    return out if linear.bias is None else out + linear.bias.detach().double()


def rows_of(kind: str, width: int) -> torch.Tensor:
    rows = draw(3, 5, width)
    if kind == "outlier":
        rows[..., 0] = 300.0  # one element takes the scale, the others become a few integers
    elif kind == "tiny":
        rows *= 1e-6
    elif kind == "positive":
        rows = rows.abs() + 1.0  # all errors of the weights add up
    elif kind == "halves":
        rows = (rows * 8.0).round() + 0.5
    return rows


@pytest.mark.parametrize("width", [1, 7, 64, 1100])  # the last one's sums exceed 2**24
@pytest.mark.parametrize("kind", ["normal", "outlier", "tiny", "positive", "halves"])
def test_a_projection_is_within_its_bound(kind: str, width: int) -> None:
    linear, inputs = make_linear(width, 33), rows_of(kind, width)
    out = Int8Linear(linear)(inputs)
    assert out.shape == (3, 5, 33)
    error = (out.double() - exact_projection(inputs, linear)).abs()
    bound = projection_error_bound(inputs, linear)
    assert bool((error <= bound).all())
    if width == 64 and kind == "normal":  # the bound says something, and the weights are no floats
        assert bool((bound < 0.2 * exact_projection(inputs, linear).abs().max()).all())
        assert error.max().item() > 1e-3


def test_integers_within_127_are_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    linear = make_linear(16, 8, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.randint(-127, 128, (8, 16), generator=generator))
        linear.weight[:, 0] = 127.0
    inputs = torch.randint(-127, 128, (4, 16), generator=generator).float()
    inputs[:, 0] = -127.0
    assert torch.equal(Int8Linear(linear)(inputs).double(), exact_projection(inputs, linear))


def test_a_row_of_zeros_is_the_bias() -> None:
    linear = make_linear(16, 8)
    out = Int8Linear(linear)(torch.zeros(2, 16))
    assert torch.equal(out, linear.bias.detach().expand(2, 8))


def test_rows_do_not_share_a_scale() -> None:
    int8 = Int8Linear(make_linear(64, 32))
    rows = draw(4, 64)
    loud = rows * torch.tensor([1.0, 1e4, 1.0, 1.0])[:, None]
    assert torch.equal(int8(rows)[2:], int8(loud)[2:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_output_has_the_input_s_type(dtype: torch.dtype) -> None:
    linear, inputs = make_linear(64, 32), draw(4, 64).to(dtype)
    out = Int8Linear(linear)(inputs)
    assert out.dtype == dtype
    exact = exact_projection(inputs, linear)
    limit = projection_error_bound(inputs, linear) + torch.finfo(dtype).eps * exact.abs().max()
    assert bool(((out.double() - exact).abs() <= limit).all())


def test_weights_are_a_byte_each() -> None:
    int8 = Int8Linear(make_linear(64, 32))
    assert int8.weight.dtype == torch.int8
    assert sum(buffer.nbytes for buffer in int8.buffers()) == 64 * 32 + 2 * 4 * 32
    assert list(int8.parameters()) == []


def standard_attention(module: ProjectedAttention, hidden_states: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """The truth of the float module, in fp64, head by head."""
    projections: list[Any] = [module.q_proj, module.k_proj, module.v_proj, module.o_proj]
    q, k, v = (exact_projection(hidden_states, projection) for projection in projections[:3])
    width, length = module.head_dim, hidden_states.shape[1]
    outs = []
    for head in range(q.shape[2] // width):
        own = slice(head * width, (head + 1) * width)
        shared = head // (q.shape[2] // width // kv_heads)
        group = slice(shared * width, (shared + 1) * width)
        scores = q[..., own] @ k[..., group].mT * width**-0.5
        if module.causal:
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
        outs.append(scores.softmax(-1) @ v[..., group])
    return exact_projection(torch.cat(outs, -1), projections[3])


@pytest.mark.parametrize("options", SIZES.values(), ids=SIZES)
def test_both_modules_are_attention(options: dict[str, Any]) -> None:
    exact, int8 = (projected_attention(96, 4, **options, quantized=quantized) for quantized in (False, True))
    hidden_states = draw(2, 17, 96)
    expected = standard_attention(exact, hidden_states, options.get("kv_heads", 4))
    assert torch.allclose(exact(hidden_states).double(), expected, rtol=0.0, atol=1e-6)
    found = output_error(int8, exact, hidden_states)
    difference = int8(hidden_states).double() - expected
    assert found.largest == pytest.approx(difference.abs().max().item(), rel=1e-6)
    assert found.relative == pytest.approx((difference.norm() / expected.norm()).item(), rel=1e-6)
    assert 1e-3 < found.relative < 0.03
    assert output_error(exact, exact, hidden_states).relative < 1e-6


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "o_proj"])
def test_both_modules_hold_the_same_weights(name: str) -> None:
    exact, int8 = (projected_attention(64, 4, kv_heads=2, quantized=quantized) for quantized in (False, True))
    linear, quantized = getattr(exact, name), getattr(int8, name)
    assert torch.equal(linear.bias, quantized.bias)
    stored = quantized.weight.t().double() * quantized.scale.double()[:, None]
    half = linear.weight.double().abs().amax(1, keepdim=True) / 254.0
    assert bool(((stored - linear.weight.double()).abs() <= half * (1.0 + 1e-6)).all())


def test_weights_depend_on_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (projected_attention(64, 4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    hidden_states = draw(1, 3, 64)
    assert torch.equal(first(hidden_states), again(hidden_states))
    assert not torch.equal(first(hidden_states), other(hidden_states))
    weight = first.q_proj.weight
    assert isinstance(weight, torch.Tensor)
    assert weight.abs().max().item() <= 64**-0.5
    assert weight.std().item() == pytest.approx(64**-0.5 / 3**0.5, rel=0.05)


def test_comparing_leaves_the_modules_as_they_are() -> None:
    exact, int8 = (projected_attention(64, 4, quantized=quantized) for quantized in (False, True))
    states = [copy.deepcopy(module.state_dict()) for module in (exact, int8)]
    output_error(int8, exact, draw(1, 3, 64))
    for module, state in zip((exact, int8), states, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
        assert all(value.dtype == state[name].dtype for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden": 64, "heads": 5}, "heads=5 is not allowed; expected a divisor of hidden=64"),
        ({"hidden": 64, "heads": 0}, "heads=0 is not allowed"),
        ({"hidden": 64, "heads": 4, "kv_heads": 3}, "kv_heads=3 is not allowed; expected a divisor of heads=4"),
        ({"hidden": 64, "heads": 4, "kv_heads": 0}, "kv_heads=0 is not allowed"),
    ],
)
def test_sizes_that_make_no_heads_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        projected_attention(**sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(2, 64), (2, 3, 32)])
def test_states_of_another_width_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputMismatchError, match=r"hidden_states is .*; expected \[B, S, 64\]"):
        projected_attention(64, 4)(draw(*sizes))
