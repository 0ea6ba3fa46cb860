"""The command that a miss is told: typed as it stands, it describes the very shape."""

import ast
import random
import shlex
from dataclasses import replace
from typing import Any

import click
import pytest

from autotune.console.command import command
from autotune.console.shape_options import ShapeOptions, shape_options
from autotune.console.shapes import describe
from autotune.errors import InvalidShapeError
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.tuning_command import tuning_command
from autotune.workload import operation_for
from tests.outside import row_scale
from tests.outside.row_scale.space import RowShape


def described(text: str) -> list[tuple[str, Shape]]:
    """The shapes that the command line makes of a command, without running it."""
    found: list[ShapeOptions] = []

    @command("search")
    @shape_options()
    def search(shape: ShapeOptions) -> None:
        found.append(shape)

    words = shlex.split(text)
    assert words[:2] == ["autotune", "search"]
    search.main(words[2:], standalone_mode=False)
    return [(operation.name, shape) for operation, shape in describe(found[0]).problems]


def random_shape(random_: random.Random) -> Shape:
    """Draw a shape that an operation takes."""
    while True:
        shape = any_shape(random_)
        try:
            operation_for(shape)
        except InvalidShapeError:
            continue
        return shape


def any_shape(random_: random.Random) -> Shape:
    kv_heads = random_.choice([1, 2, 5, 8])
    sizes: dict[str, Any] = {
        "batch": random_.randint(1, 300),
        "heads": kv_heads * random_.randint(1, 8),
        "kv_heads": kv_heads,
        "head_dim": random_.choice([64, 96, 128]),
        "dtype": random_.choice(["float16", "bfloat16", "float32"]),
        "window": random_.choice([None, None, 77]),
        "softcap": random_.random() < 0.3,
    }
    if random_.random() < 0.5:
        lengths: dict[str, Any] = {"seq_q": random_.randint(1, 5000), "seq_kv": random_.choice([None, 4096])}
        lengths |= {"attn_mask": random_.choice([None, None, "boolean", "additive"]), "sinks": random_.random() < 0.3}
        lengths |= {"causal": random_.random() < 0.5}
        return AttentionShape(**sizes, **lengths, kv_ends=lengths["causal"] and random_.random() < 0.3)
    context = random_.randint(16, 9999)
    sizes |= {"seq_q": random_.choice([1, 1, 4, 200]) if context > 200 else 1, "page_size": 64}
    sizes |= {"max_context": context, "mean_context": random_.choice([None, context // 2])}
    sizes |= {name: random_.random() < 0.3 for name in ("sinks", "alibi")}
    sizes |= {"kv_dtype": random_.choice([None, "int8"]), "layout": random_.choice(["NHD", "HND"])}
    return PagedShape(**sizes)


@pytest.mark.parametrize("seed", range(40))
def test_the_command_describes_the_shape(seed: int) -> None:
    shape = random_shape(random.Random(seed))
    operation = operation_for(shape).name
    assert described(tuning_command(operation, shape)) == [(operation, shape)]


def test_values_of_another_width_are_described_by_all_fields() -> None:
    shape = AttentionShape(batch=1, heads=2, seq_q=8, head_dim=192, head_dim_v=128)
    text = tuning_command("flash_attention", shape)
    assert " --shape batch=1," in text
    assert described(text) == [("flash_attention", shape)]


def test_a_shape_of_ones_own_is_described_by_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    row_scale.register(monkeypatch)
    shape = RowShape(rows=3, width=8, keep=True)
    text = tuning_command("row_scale", shape)
    assert text == "autotune search --operation row_scale --shape rows=3,width=8,keep=true"
    assert described(text) == [("row_scale", shape)]


def test_what_no_option_can_hold_is_tuned_in_python() -> None:
    call = ast.parse(tuning_command("row_scale", RowShape(rows=3, width=8, kind="a,b")), mode="eval").body
    assert isinstance(call, ast.Call)
    given, operation = call.args[0], call.keywords[0]
    assert isinstance(given, ast.Call)
    fields = {str(each.arg): ast.literal_eval(each.value) for each in given.keywords}
    assert (ast.unparse(call.func), ast.unparse(given.func)) == ("autotune.tune", "RowShape")
    assert RowShape(**fields) == RowShape(rows=3, width=8, kind="a,b")
    assert (operation.arg, ast.literal_eval(operation.value)) == ("operation", "row_scale")


def test_what_the_options_cannot_say_is_seen() -> None:
    """The parser above refuses what no option means, so that a wrong flag fails the test of the command."""
    shape = AttentionShape(batch=1, heads=2, seq_q=8, head_dim=64)
    with pytest.raises(click.UsageError):
        described(tuning_command("flash_attention", shape).replace("--seq ", "--seq-q "))
    assert described(tuning_command("flash_attention", shape)) != [("flash_attention", replace(shape, batch=2))]
