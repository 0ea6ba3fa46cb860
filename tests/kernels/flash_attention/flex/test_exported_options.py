"""Options that ``autotune export --format flex`` writes, handed to torch as a user would: all that ship.

On the CPU dynamo traces what a user would compile, and torch's own code computes it uncompiled: what is traced shows
the options, which a GPU's kernel alone has a use for.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from autotune.search_spaces.flash_attention.flex import PARAMETERS, kernel_options
from autotune.shape import AttentionShape
from autotune.table import export
from tests import flex_sample
from tests.kernels.numerics import dense_attention


@pytest.fixture
def traced() -> Iterator[list[torch.fx.GraphModule]]:
    """The graphs that ``keep`` was given; torch forgets what it compiled, of which it keeps no more than eight."""
    torch._dynamo.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # pytest's workers take the cores
    graphs: list[torch.fx.GraphModule] = []
    yield graphs
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def attend(
    shape: AttentionShape, options: dict[str, int], backend: Callable[..., Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlexAttention as a user would call it, with nothing of this package; and its formula in fp64. fp32 inputs."""

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        seen = key <= query
        return seen & (query - key < shape.window) if shape.window else seen

    def cap(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return 50.0 * torch.tanh(score / 50.0)

    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    q, k, v = (torch.randn(shape.batch, shape.seq_q, count, shape.head_dim) for count in heads)
    length = shape.seq_q
    settings: Any = {
        "score_mod": cap if shape.softcap else None,
        "block_mask": create_block_mask(visible, None, None, length, length, device="cpu") if shape.causal else None,
        "enable_gqa": shape.heads != shape.kv_heads,
        "kernel_options": options,
    }
    compiled: Any = torch.compile(flex_attention, backend=backend, fullgraph=True, dynamic=False)
    out = compiled(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **settings)
    features: dict[str, Any] = {"causal": shape.causal, "window": shape.window, "scale": shape.head_dim**-0.5}
    expected, _ = dense_attention(q, k, v, softcap=50.0 if shape.softcap else None, **features)
    return out.transpose(1, 2), expected


def given_options(graph: torch.fx.GraphModule) -> dict[str, int]:
    """The kernel options that dynamo traced into the one call of FlexAttention."""
    (node,) = [node for node in graph.graph.nodes if node.target is torch.ops.higher_order.flex_attention]
    (options,) = [value for value in (*node.args, *node.kwargs.values()) if isinstance(value, dict)]
    return {parameter.name: options[parameter.name] for parameter in PARAMETERS}


@pytest.mark.parametrize("shape", flex_sample.SHAPES, ids=str)
def test_torch_takes_what_is_exported_of_each_problem_that_ships(
    traced: list[torch.fx.GraphModule], shape: AttentionShape
) -> None:
    """Shorter on the CPU, of one sequence, and one window instead of another."""

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        traced.append(graph)
        return graph.forward

    found = {AttentionShape(**w["shape"]): w for w in json.loads(export(flex_sample.winners(), "flex"))}
    assert len(found) == 8
    winner = found[shape]
    assert (winner["torch"], winner["median_us"], winner["default_us"]) == ("2.11.0+cu130", 1000.0, 1250.0)
    options = winner["kernel_options"]
    assert options == kernel_options(flex_sample.tuned(shape))
    assert all(128 % options[name] == 0 for name in ("BLOCK_M", "BLOCK_N"))  # as a mask's blocks are
    small = replace(shape, batch=1, seq_q=150, seq_kv=150, window=40 if shape.window else None)
    out, expected = attend(small, options, keep)
    assert torch.allclose(out.double(), expected, atol=1e-5)
    (graph,) = traced
    assert given_options(graph) == options
